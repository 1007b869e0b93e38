"""Steps whose passes are made in a closure, as Lightning's are, with the hooks as they are set."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch.forks import Forks
from tests.watch.inject import tiny

SCRIPT = Path(__file__).parent / "closures.py"
HOW = ("outside", "inside", "by-name", "many", "never")
Run = Callable[[tuple[str, ...], Path | None], list[str]]


@pytest.fixture(scope="module")
def run(forks: Forks) -> Run:
    """Return the digests of the final weights, of loops made one after another in a process."""

    def digests(how: tuple[str, ...], facts: Path | None) -> list[str]:
        done = forks.run(SCRIPT, *how, facts=facts)
        assert done.returncode == 0, done.stderr
        assert "vtool_watch" not in done.stderr  # no compiler speaks of our code
        return done.stdout.split()

    return digests


@pytest.fixture(scope="module")
def plain(run: Run) -> dict[str, str]:
    """Return the digest of each loop without the watch: one process for them all."""
    return dict(zip(HOW, run(HOW, None), strict=True))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, run: Run, plain: dict[str, str]) -> Path:
    """Make the facts of a loop without a closure."""
    folder = tmp_path_factory.mktemp("outside")
    assert run(("outside",), folder) == [plain["outside"]]
    return folder


def micros_read(facts: Path) -> list[dict[str, object]]:
    """Return the facts that were read of each micro-batch."""
    names = ("step", "index", "supervised", "read", "not_next", "sum")
    return [{name: fact[name] for name in names} for fact in tiny.facts(facts, "micro")]


@pytest.mark.parametrize("how", ["inside", "by-name"])
def test_a_closure_is_read_as_a_loop_is(
    tmp_path: Path, run: Run, outside: Path, plain: dict[str, str], how: str
) -> None:
    assert run((how,), tmp_path / how) == [plain[how]] == [plain["outside"]]
    assert micros_read(tmp_path / how) == micros_read(outside)
    assert len(micros_read(tmp_path / how)) == 3
    for stepped in tiny.facts(tmp_path / how, "stepped"):
        assert all(one["off"] < 8 for one in stepped["reference"].values())
    for arrived in tiny.facts(tmp_path / how, "arrived"):
        assert arrived["engine_factor"] == pytest.approx(1, abs=1e-6)
    assert tiny.facts(tmp_path / how, "error") == []


def test_of_a_closure_that_is_called_again_the_first_pass_is_read(
    tmp_path: Path, run: Run, plain: dict[str, str]
) -> None:
    assert run(("many",), tmp_path) == [plain["many"]]
    assert [(one["step"], one["index"]) for one in micros_read(tmp_path)] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert all(one["read"] == one["supervised"] for one in micros_read(tmp_path))


def test_a_closure_that_is_not_called_is_said(
    tmp_path: Path, run: Run, plain: dict[str, str]
) -> None:
    assert run(("ignored",), tmp_path) == [plain["outside"]]
    assert micros_read(tmp_path) == []
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "learnt"]
    assert why == ["the optimizer did not call the closure that it was given"]
    assert len(tiny.facts(tmp_path, "rows")) == 4


def test_a_step_that_cannot_be_seen_is_said(
    tmp_path: Path, run: Run, plain: dict[str, str]
) -> None:
    assert run(("never",), tmp_path) == [plain["never"]]
    is_blind(tmp_path)


@pytest.mark.full
def test_a_compiled_step_is_left_alone_and_is_said(tmp_path: Path, run: Run) -> None:
    assert run(("compiled",), tmp_path) == run(("compiled",), None)
    is_blind(tmp_path)


def is_blind(facts: Path) -> None:
    (blind,) = tiny.facts(facts, "blind")
    assert "made no step that could be seen" in str(blind["why"])
    assert tiny.facts(facts, "micro") == []
