"""Megatron-core's own model, DDP and optimizer under the watch, its head cut over two ranks or not.

What is learnt is known: the loop draws its rows from a seed, and learns each row's last tokens.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.forks import Forks
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

pytest.importorskip("megatron.core", reason="pip install 'vtool[megatron]'")
pytestmark = pytest.mark.full
SCRIPT = Path(__file__).parent / "megatron_loop.py"
MODULES = (
    "torch._dynamo",
    "megatron.core.distributed",
    "megatron.core.models.gpt",
    "megatron.core.optimizer",
    "vtool.engines.megatron.shim",
)
KINDS = ["tensor", "data"]


@pytest.fixture(scope="module")
def megatron_forks() -> Iterator[Forks]:
    with Forks(*MODULES) as made:
        yield made


def run(forks: Forks, facts: Path | None, *arguments: str) -> str:
    """Return the digest of the final weights."""
    done = forks.run(SCRIPT, *arguments, facts=facts, ranks=2)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_over_its_ranks_and_not_changed(
    tmp_path: Path, megatron_forks: Forks, kind: str
) -> None:
    facts = tmp_path / "facts"
    assert run(megatron_forks, facts, kind) == run(megatron_forks, None, kind)
    assert tiny.facts(facts, "error") == []
    micros = tiny.facts(facts, "micro")
    assert len(micros) == 2 * 3 * 2  # ranks, steps, micro-batches
    assert all(f["read"] == f["supervised"] > 0 and f["not_next"] == 0 for f in micros)
    for rank in range(2):
        for step in range(3):
            mine = [f["sum"] for f in micros if (f["rank"], f["step"]) == (rank, step)]
            assert sum(mine) == pytest.approx(1, abs=1e-5)
    (result,) = conclude_folder(facts, kind, None)
    assert (result.verdict, result.findings) == ("clean", ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_of_means_is_found(tmp_path: Path, megatron_forks: Forks, kind: str) -> None:
    run(megatron_forks, tmp_path / "facts", kind, "mean-of-means")
    (result,) = conclude_folder(tmp_path / "facts", kind, None)
    ((rule, message),) = [(one.rule, one.message) for one in result.findings]
    assert rule == "token-weights-differ"
    assert "1.4444 times" in message  # 13 / 9 learnt tokens of the two micro-batches


@pytest.mark.parametrize("kind", ["shared", "bf16"])
def test_shares_and_float32_copies_are_read_and_not_changed(
    tmp_path: Path, megatron_forks: Forks, kind: str
) -> None:
    facts = tmp_path / "facts"
    assert run(megatron_forks, facts, kind) == run(megatron_forks, None, kind)
    assert tiny.facts(facts, "error") == []
    (result,) = conclude_folder(facts, kind, None)
    assert (result.verdict, result.findings) == ("clean", ())


@pytest.mark.parametrize("kind", ["data", "tensor", "shared", "bf16"])
def test_buffers_that_are_zeroed_before_the_step_are_found(
    tmp_path: Path, megatron_forks: Forks, kind: str
) -> None:
    run(megatron_forks, tmp_path / "facts", kind, "zeroed")
    (result,) = conclude_folder(tmp_path / "facts", kind, None)
    ((rule, severity, message),) = [(x.rule, x.severity, x.message) for x in result.findings]
    assert (rule, severity) == ("parameter-without-gradient", "error")
    assert "something zeroes them between backward() and step()" in message
