"""The set-up of a run before its first step."""

from pathlib import Path

import pytest
import torch

from tests.rows import chat, write_rows
from tests.runs import messages, request
from vtool.data.sources import Rows
from vtool.engines.ranks import Ranks
from vtool.training import setup
from vtool.training.setup import _with_workers, read_texts


def test_of_many_rows_a_new_tokenizer_is_trained_on_some_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.jsonl", [chat(f"q{n}", f"a{n}") for n in range(10)])
    rows = Rows(request("rows", messages(tmp_path / "rows.jsonl")).run.data.train)
    assert list(read_texts(rows)) == [text for n in range(10) for text in (f"q{n}", f"a{n}")]
    monkeypatch.setattr(setup, "MOST_ROWS_READ", 4)
    assert list(read_texts(rows)) == ["q0", "a0", "q3", "a3", "q6", "a6", "q9", "a9"]


@pytest.mark.parametrize(
    ("device", "settings", "workers"),
    [
        ("cuda", (), "auto"),
        ("cpu", (), 0),
        ("privateuseone", (), 0),
        ("cuda", ("data.workers=0",), 0),
        ("cpu", ("data.workers=auto",), "auto"),
    ],
)
def test_on_a_gpu_rows_are_encoded_by_workers_unless_the_recipe_says_otherwise(
    device: str, settings: tuple[str, ...], workers: int | str
) -> None:
    ranks = Ranks(device=torch.device(device))
    assert _with_workers(request("digits", *settings).run, ranks).data.workers == workers
