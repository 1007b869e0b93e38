"""No check passes by what it did not see: of real runs, each fact that it reads is taken away."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch import unseen
from tests.watch.forks import ROOT
from tests.watch.runs.__main__ import place
from vtool.watch.conclude import with_turns
from vtool.watch.conclusions import CHECKS
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck
from vtool.watch.facts import Facts
from vtool.watch.folder import WatchOptions, watched_environment
from vtool.watch.reading import read_facts

pytestmark = pytest.mark.full

RUNS = (
    "chats of three turns",
    "DDP, 2 ranks, two epochs",
    "Qwen2.5-VL, an image in each row",
    "a frozen layer",
    "with dropout",
    "two epochs in two orders",
    "bfloat16 weights, a large rate",
    "LoRA",
    "packed rows",
)
PREFERENCES = ("DPO",)
ABSENT = {
    "model.specials.pad": "a config may name no padding token",
    "skipped.what": "nothing may have been left out",
    "stepped.groups.lr": "an optimizer may find its rate by itself (Adafactor)",
    "stepped.groups.maximize": "an optimizer may not have it",
    "inputs.inputs": "lines without ids are no `inputs`",
    "rows.data": "the first line of a run alone has it",
}
"""Fields that a healthy run may not have at all, with the reason."""
NULL = {
    *ABSENT,
    "arrived.accumulating",  # accelerate is not used
    "arrived.engine_factor",  # there are several ranks
    "arrived.inner",  # there is no second norm, or it is frozen: layers are looked at
    "arrived.inner.norm_gradient",
    "arrived.inner.norm_name",  # a word of the finding alone
    "arrived.inner.norm_sum",
    "arrived.kept_by",  # the gradient is where torch keeps it
    "arrived.largest.rows",  # the embedding is not trained
    "arrived.left",  # single tensors were not seen on their way
    "arrived.norm_name",
    "arrived.norm_gradient",  # the final norm is frozen: layers are looked at
    "arrived.norm_sum",
    "arrived.reduced_in",  # in the gradient's own dtype
    "arrived.tokens.at_mean",  # the embedding is trained
    "arrived.undone",  # the step before was not looked at
    "arrived.undone.to",
    "arrived.undone.written",
    "arrived.waiting",
    "alone.repeats",  # nothing was beyond the tolerance
    "micro.not_next",  # ids were not seen, which the check of targets says
    "micro.per_token.next",  # --no-text
    "micro.why",  # a pass that was read
    "model.mesh",
    "model.norm",
    "process.world",
    "rows.data.batch",  # a batch sampler
    "rows.data.copies",  # a data set that is too large, or makes its rows by code
    "rows.data.drop_last",
    "rows.data.packed",
    "rows.data.rows",
    "rows.data.sampler",
    "rows.pixels",
    "stepped.adapters",
    "stepped.moved",  # weights were not compared
    "stepped.reference",  # another optimizer than AdamW
    "stepped.reference.age",
    "stepped.reference.moved",
}
"""Fields of which null is an ordinary value: docs/watch-facts.md says of what."""
THEIRS = ("preference.arguments.", "preference.sides")
"""Settings and columns of another project's trainer, which a release of it may not have."""
OF_PREFERENCES = {
    "micro.dropout",  # the model has none
    "micro.reference",  # the reference is another model
    "preference.reference.kind",  # margins show that it is another one
    "preference.reference.ran",
    "micro.pairs",  # the reference's own passes show more
    "micro.pairs.alike",
    "micro.per_row",
    "micro.per_row.logp",
    "micro.per_row.median",
    "micro.shape",
    "micro.tolerance",  # margins are compared, not single weights
    "preference.method",  # none is known of this loss
    "preference.reference.follows",  # the reference is another object
    "preference.reference.same",
    "rows.images",
    "rows.pixels",
}
"""Fields that say more of a preference than it takes to pass."""
MAY_LACK = {
    "preference-scaled": {"arrived", "stepped"},
    "preference-sides": {"arrived", "rows", "stepped"},
    "preference-reference": {"arrived", "stepped"},
    "rows-judged": {"arrived", "stepped"},
    "special-token-doubled": {"micro"},
    "gradients-differ-between-ranks": {"micro"},
    "gradient-of-other-rows": {"micro"},
    "gradient-scaled": {"stepped"},  # the sign, which is that of `tokens-unlearnt`
    "gradient-stepped-twice": {"micro", "rows"},
    "layers-scaled-apart": {"micro"},
    "parameter-in-no-group": {"stepped"},
    "parameter-stopped-moving": {"arrived", "stepped"},
    "parameter-without-gradient": {"micro", "rows", "stepped"},
    "replicas-drift": {"arrived"},
    "row-changes-in-batch": {"inputs", "rows", "micro"},
    "row-positions-differ": {"micro"},
    "rows-seen-unevenly": {"micro"},
    "epochs-in-one-order": {"micro"},
    "same-batch-every-step": {"micro"},
    "step-not-the-optimizers": {"arrived"},
}
"""Kinds of facts that only say why a check is another's, or how its finding is worded."""
EXACT = {
    "rows-judged": "a note: how rows are judged, in words",
    "preference-reference": "passes of the same rows are compared bit by bit",
    "gradients-differ-between-ranks": "digests; estimates only tell shards apart",
    "layers-scaled-apart": "tensors of each layer are compared by their dtype's rounding",
}
BY_MODEL_ALONE = {"parameter-in-no-group", "head-not-tied"}
"""Checks of the model as the optimizer was made: they look at no step."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    """Return the facts of healthy runs."""
    folder = tmp_path_factory.mktemp("bases")
    made = [(folder / "loops", "tests.watch.runs", RUNS)]
    if all(importlib.util.find_spec(name) for name in ("trl", "datasets")):
        made.append((folder / "trl", "tests.watch.preferences", PREFERENCES))
    return [facts for one in made for facts in _facts(*one)]


def _facts(folder: Path, module: str, names: tuple[str, ...]) -> Iterator[Facts]:
    folder.mkdir()
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    wanted = [f"healthy: {name}" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *wanted],
        env=watched_environment(folder / "none", WatchOptions(), own),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in wanted:
        (facts,) = read_facts(place(folder, name)).models
        yield with_turns(facts, None)


def passed(check: WatchCheck, bases: list[Facts]) -> list[Facts]:
    return [facts for facts in bases if check.outcome(facts).state == "passed"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_passes_nowhere_without_what_it_reads(
    check: WatchCheck, bases: list[Facts]
) -> None:
    seen = passed(check, bases)
    if check.name.startswith("preference") and not importlib.util.find_spec("trl"):
        pytest.skip("TRL is not installed")
    assert seen, "no healthy run has what it takes to pass"
    found = set()
    for facts in seen:
        for one in unseen.still_passes(check, facts):
            how, _, what = one.partition(" ")
            allowed = {
                "remove": ABSENT.keys(),
                "null": NULL,
                "without": MAY_LACK.get(check.name, set()) | {"model", "skipped"},
                "of": {"no step"} if check.name in BY_MODEL_ALONE else set(),
            }[how]
            more = OF_PREFERENCES if check.name.startswith("preference") else set()
            if what not in {*allowed, *more} and not what.startswith(THEIRS):
                found.add(one)
    assert not found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_passes_nowhere_by_estimates_that_are_noise(
    check: WatchCheck, bases: list[Facts]
) -> None:
    for facts in passed(check, bases):
        estimated = {path[-1] for path in unseen.reads_of(check, facts)} & {"tolerance", "u"}
        if estimated and check.name not in EXACT:
            assert check.most_noise is not None
            assert check.outcome(unseen.blurred(facts)).state != "passed", check.name


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_passes_nowhere_with_fewer_steps_than_it_must_see(
    check: WatchCheck, bases: list[Facts]
) -> None:
    least = check.must_see.get("steps", 1)
    for facts in passed(check, bases):
        fewer = unseen.first_steps(facts, least - 1)
        assert check.outcome(fewer).state != "passed" or check.name in BY_MODEL_ALONE


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_that_counts_nothing_has_not_passed(check: WatchCheck) -> None:
    outcome = CheckOutcome(looked_at=dict.fromkeys(check.must_see, 0))
    assert (outcome.state, CheckOutcome().state) == ("not-run", "not-run")
    less = {unit: count - 1 for unit, count in check.must_see.items()}
    assert CheckOutcome(looked_at=less).state == "not-run" or max(less.values()) > 0
