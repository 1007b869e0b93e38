"""TRL's trainers of preferences under the watch: each mistake found by its rule, no false alarm."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT
from tests.watch.runs.__main__ import place
from vtool.diagnostics.result import Result
from vtool.watch.conclude import conclude_folder
from vtool.watch.folder import WatchOptions, watched_environment

if not all(importlib.util.find_spec(name) for name in ("trl", "datasets", "peft", "tokenizers")):
    pytest.skip("TRL is not installed (make .venv/installed-bench)", allow_module_level=True)

from tests.watch.preferences import runs

RULES = ("preference-scaled", "preference-sides", "preference-reference")
CORNERS = (
    "healthy: DPO",
    "healthy: DPO, LoRA",
    "healthy: CPO",
    "healthy: GRPO",
    "planted: DPO, not divided by its micro-batches",
    "planted: DPO, prompts judged",
    "planted: KTO, labels swapped",
)
OTHERS = tuple(
    name
    for name in (
        *(f"healthy: {name}" for name in runs.HEALTHY),
        *(f"planted: {name}" for name in runs.PLANTED),
        *(f"unseen: {name}" for name in runs.UNSEEN),
    )
    if name not in CORNERS
)
PASSES = {
    "healthy: DPO": RULES,
    "healthy: DPO, two ranks": RULES,
    "healthy: DPO, LoRA": RULES,
    "healthy: DPO, bfloat16 autocast": RULES,
    "healthy: DPO, reference computed before": RULES,
    "healthy: DPO, ipo": RULES,
    "healthy: DPO, apo_down": RULES,
    "healthy: KTO": RULES,
    "healthy: CPO": RULES[:2],
    "healthy: CPO, SimPO": RULES[:2],
    "healthy: ORPO": RULES[:2],
    "healthy: GRPO": (),
    "healthy: RLOO": (),
    "healthy: DPO, another model as its reference": RULES[1:],
}
"""Healthy runs of which these checks, and no others, must have passed."""


def make(folder: Path, names: tuple[str, ...]) -> Path:
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.watch.preferences", str(folder), *names],
        env=watched_environment(folder / "none", WatchOptions(), own),
        capture_output=True,
        text=True,
        check=False,
    )
    errors = "\n".join(file.read_text() for file in folder.glob("*/error-*.txt"))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    return folder


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a handful of the runs."""
    return make(tmp_path_factory.mktemp("corners"), CORNERS)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the other runs."""
    return make(tmp_path_factory.mktemp("others"), OTHERS)


def judge(folder: Path, name: str) -> None:
    results = conclude_folder(place(folder, name), "run", None)
    result = results[0]
    kind, _, short = name.partition(": ")
    if kind == "healthy":
        assert [one for one in result.findings if one.severity != "note"] == []
        if name in PASSES:
            assert tuple(n for n in RULES if result.checks[n] == "passed") == PASSES[name], result
        return
    if kind == "unseen":
        rules = runs.UNSEEN[short].rules
        assert [n for n in rules if result.checks[n] == "passed"] == [], result
        assert result.verdict != "clean", result
        return
    is_found(result, runs.PLANTED[short])


def is_found(result: Result, expected: runs.Planted) -> None:
    found = {(one.rule, one.severity) for one in result.findings}
    assert (expected.rule, expected.severity) in found, result.findings
    errors = {one.rule for one in result.findings if one.severity == "error"}
    assert errors <= {expected.rule, *expected.also}, result.findings
    assert result.checks[expected.rule] == "failed"


@pytest.mark.full
@pytest.mark.parametrize("name", CORNERS)
def test_a_trainer_of_preferences_is_judged(corners: Path, name: str) -> None:
    judge(corners, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_every_trainer_of_preferences_is_judged(others: Path, name: str) -> None:
    judge(others, name)
