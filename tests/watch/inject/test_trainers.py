"""Stock trainers under the watch: read, and their final weights the same to the bit."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vtool
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

ROOT = Path(__file__).parents[3]
INJECT = Path(vtool.__file__).parent / "watch/inject"
HF = [[], ["amp"], ["bf16"], ["checkpointing"]]
SFT = [[], ["packing"], ["lora"], ["amp", "checkpointing"]]
CASES = [("hf", *how) for how in HF] + [("sft", *how) for how in SFT]
JUDGED = [("dpo",), ("dpo", "lora"), ("grpo",)]


def run(case: tuple[str, ...], facts: Path | None) -> str:
    """Return the digest of the final weights."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("VTOOL_WATCH")}
    own["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(ROOT)])
    if facts is not None:
        own["VTOOL_WATCH_TO"] = str(facts)
    command = [sys.executable, str(ROOT / "tests/watch/inject/trainers.py"), *case]
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def needs_trl() -> None:
    if not all(importlib.util.find_spec(name) for name in ("trl", "datasets", "peft")):
        pytest.skip("TRL is not installed (make .venv/installed-bench)")


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=[" ".join(case) for case in CASES])
def test_a_trainer_is_read_and_not_changed(tmp_path: Path, case: tuple[str, ...]) -> None:
    if case[0] == "sft":
        needs_trl()
    assert run(case, tmp_path) == run(case, None)
    assert tiny.facts(tmp_path, "error") == []
    micro = tiny.facts(tmp_path, "micro")
    assert len(micro) == 6
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] > 0 for f in micro)
    rounding = 1e-6 if micro[0]["u"] < 1e-6 else 0.02
    for step in range(2):
        total = sum(f["sum"] for f in micro if f["step"] == step)
        assert total == pytest.approx(1, abs=rounding)
    (alone,) = tiny.facts(tmp_path, "alone")
    assert alone["worst_over_tolerance"] < 1


@pytest.mark.full
@pytest.mark.parametrize("case", JUDGED, ids=[" ".join(case) for case in JUDGED])
def test_a_trainer_that_judges_rows_is_read_and_not_changed(
    tmp_path: Path, case: tuple[str, ...]
) -> None:
    needs_trl()
    assert run(case, tmp_path) == run(case, None)
    assert tiny.facts(tmp_path, "error") == []
    micro = tiny.facts(tmp_path, "micro")
    assert micro
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] > 0 for f in micro)
    (result,) = conclude_folder(tmp_path, "judged", None)
    assert result.checks["targets-not-next"] == "passed"
    assert {each.severity for each in result.findings} == {"note"}
    assert "rows-judged" in {each.rule for each in result.findings}
