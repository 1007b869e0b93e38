"""Stock trainers under the watch: read, and their final weights the same to the bit."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks, watched
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

SCRIPT = Path(__file__).parent / "trainers.py"
HF = [[], ["amp"], ["bf16"], ["checkpointing"]]
SFT = [[], ["packing"], ["lora"], ["amp", "checkpointing"]]
CASES = [("hf", *how) for how in HF] + [("sft", *how) for how in SFT]
JUDGED = [("dpo",), ("dpo", "lora"), ("grpo",)]


def run(forks: Forks, case: tuple[str, ...], facts: Path | None) -> str:
    """Return the digest of the final weights."""
    done = forks.run(SCRIPT, *case, facts=facts)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def needs_trl() -> None:
    if not all(importlib.util.find_spec(name) for name in ("trl", "datasets", "peft")):
        pytest.skip("TRL is not installed (make .venv/installed-bench)")


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=[" ".join(case) for case in CASES])
def test_a_trainer_is_read_and_not_changed(
    tmp_path: Path, trainer_forks: Forks, case: tuple[str, ...]
) -> None:
    if case[0] == "sft":
        needs_trl()
    assert run(trainer_forks, case, tmp_path) == run(trainer_forks, case, None)
    is_read(tmp_path)


@pytest.mark.full
def test_a_process_with_a_trainer_is_read_and_not_changed(
    tmp_path: Path, trainer_forks: Forks
) -> None:
    """The watch is there before torch is imported, as under `vtool watch`."""
    own = watched(tmp_path)
    command = [sys.executable, str(SCRIPT), "hf"]
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == run(trainer_forks, ("hf",), None)
    is_read(tmp_path)


def is_read(facts: Path) -> None:
    assert tiny.facts(facts, "error") == []
    micro = tiny.facts(facts, "micro")
    assert len(micro) == 6
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] > 0 for f in micro)
    rounding = 1e-6 if micro[0]["u"] < 1e-6 else 0.02
    for step in range(2):
        total = sum(f["sum"] for f in micro if f["step"] == step)
        assert total == pytest.approx(1, abs=rounding)
    alone = tiny.facts(facts, "alone")  # one of each kind: the first without padding, and with it
    assert 0 < len(alone) <= 2
    assert all(one["worst_over_tolerance"] < 1 for one in alone)


@pytest.mark.full
@pytest.mark.parametrize("case", JUDGED, ids=[" ".join(case) for case in JUDGED])
def test_a_trainer_that_judges_rows_is_read_and_not_changed(
    tmp_path: Path, trainer_forks: Forks, case: tuple[str, ...]
) -> None:
    needs_trl()
    assert run(trainer_forks, case, tmp_path) == run(trainer_forks, case, None)
    assert tiny.facts(tmp_path, "error") == []
    micro = tiny.facts(tmp_path, "micro")
    assert micro
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] > 0 for f in micro)
    (result,) = conclude_folder(tmp_path, "judged", None)
    assert result.checks["targets-not-next"] == "passed"
    assert {each.severity for each in result.findings} == {"note"}
    assert "rows-judged" in {each.rule for each in result.findings}
