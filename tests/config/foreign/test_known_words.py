"""The tables of what each release of a trainer knows, and a package that is read in their place."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vtool.config.foreign.known_words import TABLES, known_words
from vtool.config.foreign.package_fields import read_package

_FIELDS = """
import dataclasses, json
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig
def plain(field):
    made = field.default_factory is not dataclasses.MISSING
    value = field.default_factory() if made else field.default
    value = getattr(value, "value", value)
    return value if isinstance(value, (str, int, float, bool, list)) else None
classes = (ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig)
fields = {f.name: plain(f) for one in classes for f in dataclasses.fields(one) if f.init}
print("RECORD" + json.dumps(fields))
"""


def _trl_of_the_table() -> Path:
    releases = json.loads((TABLES / "trl.json").read_text("utf-8"))["releases"]
    trl, transformers = list(releases.items())[-1]
    for name, version in (("trl", trl), ("transformers", transformers)):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here = None
        if here != version:
            pytest.skip(f"not run: {name} {version} is not installed")
    return Path(str(importlib.metadata.distribution("trl").locate_file("")))


def test_a_package_that_is_read_has_the_settings_of_its_release() -> None:
    table = json.loads((TABLES / "trl.json").read_text("utf-8"))
    assert read_package("trl", [_trl_of_the_table()]).fields == table["fields"]


@pytest.mark.full
def test_the_table_has_what_the_dataclasses_of_the_release_have() -> None:
    _trl_of_the_table()
    done = subprocess.run(
        [sys.executable, "-c", _FIELDS], capture_output=True, text=True, check=True, cwd="/"
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RECORD")]
    table = json.loads((TABLES / "trl.json").read_text("utf-8"))
    assert json.loads(line.removeprefix("RECORD")) == table["fields"]


@pytest.mark.parametrize(
    ("trainer", "word", "expected"),
    [
        ("verl", "model.partial_pretrain", "known until 0.7.0"),
        ("verl", "engine.grad_offload", "known until 0.9.0"),
        ("verl", "data.no_such_word", None),
        ("trl", "max_seq_length", "known until 0.19.1"),
        ("llamafactory", "evaluation_strategy", "known until 0.9.2"),
        ("ms-swift", "train_type", "known until 4.0.4"),
        ("axolotl", "fsdp", "known until 0.19.0"),
    ],
)
def test_a_word_says_which_releases_knew_it(trainer: str, word: str, expected: str | None) -> None:
    assert known_words(trainer).other_releases(word) == expected


MADE = """
from dataclasses import dataclass, field
from transformers import TrainingArguments
MISSING = 3
@dataclass
class SFTConfig(TrainingArguments):
    max_length: int | None = field(default=256 * 4, metadata={"help": "rows"})
    listed: list = field(default_factory=lambda: ["a"])
    hidden: int = field(init=False, default=1)
    _private: int = 0
    learning_rate: float = field(default=2e-5)
"""


def test_a_release_that_no_table_has_is_read_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("trl", "9.9.0"), ("transformers", "8.8.0")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in (
        ("trl/trainer/sft_config.py", MADE),
        (
            "transformers/training_args.py",
            "class TrainingArguments:\n    learning_rate: float = 5e-5\n",
        ),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    known_words.cache_clear()
    try:
        found = known_words("trl")
        assert (found.release, found.beside) == ("9.9.0", "8.8.0")
        assert found.fields == {"learning_rate": 2e-5, "max_length": 1024, "listed": ["a"]}
        assert found.other_releases("packing") == "known until 1.16.0"
        assert found.other_releases("max_seq_length") == "known until 0.19.1"
    finally:
        known_words.cache_clear()
