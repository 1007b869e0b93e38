"""`--from TRAINER`: the spellings that people use, and the answer to any other name."""

from pathlib import Path

import pytest

from tests.commands import run_vtool
from tests.config.foreign.test_hf import STOCK
from vtool.cli.readable_trainer import ReadableTrainer, readable_trainer


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("llama-factory", "llamafactory"),
        ("LLaMA-Factory", "llamafactory"),
        ("llama_factory", "llamafactory"),
        ("llamafactory-cli", "llamafactory"),
        ("swift", "ms-swift"),
        ("ms_swift", "ms-swift"),
        ("MS-Swift", "ms-swift"),
        ("TRL", "trl"),
        ("veRL", "verl"),
        *((name, name) for name in ReadableTrainer),
    ],
)
def test_a_name_is_understood_however_it_is_written(given: str, meant: str) -> None:
    assert readable_trainer(given) == meant


@pytest.mark.parametrize("command", ["validate-config", "doctor"])
def test_another_spelling_reads_the_same_file(command: str, tmp_path: Path) -> None:
    Path(tmp_path, "theirs.yaml").write_text(STOCK["llamafactory"])
    said = [
        run_vtool(tmp_path, command, "--from", name, "theirs.yaml")
        for name in ("llamafactory", "LLaMA-Factory")
    ]
    assert said[0].stdout == said[1].stdout
    assert said[0].status == said[1].status == 0


@pytest.mark.parametrize("command", ["validate-config", "doctor"])
@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("llamafctory", "did you mean `llamafactory`?"),
        ("nemo", "recipes of verl, trl, llamafactory, ms-swift, axolotl can be read"),
    ],
)
def test_another_name_is_answered_with_those_that_there_are(
    command: str, given: str, answer: str, tmp_path: Path
) -> None:
    done = run_vtool(tmp_path, command, "--from", given, "theirs.yaml")
    assert done.status == 2
    assert answer in " ".join(done.stderr.replace("│", " ").split())
