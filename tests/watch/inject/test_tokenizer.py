"""The tokenizer of a training script is found by itself, where it has one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.runs.loop import tokenizer

_LOADED = """
import sys
from transformers import PreTrainedTokenizerFast
kept = [PreTrainedTokenizerFast.from_pretrained(one) for one in sys.argv[1:]]
from vtool.watch.inject.vtool_watch.tokenizer import tokenizer_folder
print(tokenizer_folder())
"""


@pytest.mark.parametrize(
    ("loaded", "found"), [(["a"], "a"), (["a", "a"], "a"), (["a", "b"], None), ([], None)]
)
def test_the_one_folder_of_all_tokenizers_is_found(
    tmp_path: Path, loaded: list[str], found: str | None
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tokenizer(tmp_path / name)
    folders = [str(tmp_path / name) for name in loaded]
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *folders], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (str(tmp_path / found) if found else "None")
