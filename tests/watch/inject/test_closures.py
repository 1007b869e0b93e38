"""Steps whose passes are made in a closure, as Lightning's are, with the hooks as they are set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vtool
from tests.watch.inject import tiny

ROOT = Path(__file__).parents[3]
INJECT = Path(vtool.__file__).parent / "watch/inject"


def run(how: str, facts: Path | None) -> str:
    """Return the digest of the final weights."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("VTOOL_WATCH")}
    own["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(ROOT)])
    if facts is not None:
        own["VTOOL_WATCH_TO"] = str(facts)
    command = [sys.executable, str(ROOT / "tests/watch/inject/closures.py"), how]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "vtool_watch" not in done.stderr  # no compiler speaks of our code
    return done.stdout.strip()


def told(facts: Path) -> list[dict[str, object]]:
    """Return what was read of each micro-batch."""
    names = ("step", "index", "supervised", "read", "not_next", "sum")
    return [{name: fact[name] for name in names} for fact in tiny.facts(facts, "micro")]


@pytest.mark.parametrize("how", ["inside", "by-name"])
def test_a_closure_is_read_as_a_loop_is(tmp_path: Path, how: str) -> None:
    plain = run("outside", tmp_path / "outside")
    assert run(how, tmp_path / how) == plain
    assert run(how, None) == plain
    assert told(tmp_path / how) == told(tmp_path / "outside")
    assert len(told(tmp_path / how)) == 3
    for stepped in tiny.facts(tmp_path / how, "stepped"):
        assert all(one["off"] < 8 for one in stepped["reference"].values())
    for arrived in tiny.facts(tmp_path / how, "arrived"):
        assert arrived["engine_factor"] == pytest.approx(1, abs=1e-6)
    assert tiny.facts(tmp_path / how, "error") == []


def test_of_a_closure_that_is_called_again_the_first_pass_is_read(tmp_path: Path) -> None:
    assert run("many", tmp_path) == run("many", None)
    assert [(one["step"], one["index"]) for one in told(tmp_path)] == [(0, 0), (1, 0), (2, 0)]
    assert all(one["read"] == one["supervised"] for one in told(tmp_path))


def test_a_closure_that_is_not_called_is_said(tmp_path: Path) -> None:
    assert run("ignored", tmp_path) == run("outside", None)
    assert told(tmp_path) == []
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "learnt"]
    assert why == ["the optimizer did not call the closure that it was given"]
    assert len(tiny.facts(tmp_path, "rows")) == 4


@pytest.mark.parametrize("how", [pytest.param("compiled", marks=pytest.mark.full), "never"])
def test_a_step_that_cannot_be_seen_is_not_compiled_and_is_said(tmp_path: Path, how: str) -> None:
    assert run(how, tmp_path) == run(how, None)
    (blind,) = tiny.facts(tmp_path, "blind")
    assert "made no step that could be seen" in str(blind["why"])
    assert tiny.facts(tmp_path, "micro") == []
