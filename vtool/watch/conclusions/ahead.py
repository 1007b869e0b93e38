"""Learnt tokens that the model sees before it is to predict them."""

from collections.abc import Sequence

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.kinds import OTHER, kinds_seen, micro_batches_of
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

SEEN = Rule(
    name="targets-seen",
    code="VT914",
    summary="Learnt tokens are predicted from positions that see them: attention is not causal.",
    why=(
        "The model learns to copy the token it is shown, the loss falls to nearly 0, and nothing of"
        " that is of use where an answer is written token by token."
    ),
    bad="a mask of rows x 1 x queries x keys that is made from the padding alone",
    good="a mask that is causal as well, or none: the model makes its own",
    fix=(
        "Give the model the mask of two dimensions, or combine yours with a lower triangle. Look"
        " for is_causal=False, and for an encoder's settings."
    ),
)


def _seen(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    if any(micro.not_next for micro in read_micros(facts)):
        return CheckOutcome(not_run="what is learnt is not the next token")
    tested = tested_batches(facts)
    if message := _by_mask(facts) or _by_replaced(tested):
        return CheckOutcome((found(SEEN, message),))
    times = [float(one["apart"]) / float(one["tolerance"]) for one in tested]
    measured = {
        "tested": [one["batch"] for one in tested],
        "largest": f"{max(times):.2g} of what rounding allows" if times else None,
    }
    why = _untested(facts, {str(one["batch"]) for one in tested})
    if why is None and any(most > 1 for most in times):
        apart = max(float(one["apart"]) for one in tested)
        why = (
            f"hidden states move by {apart:.2g} with what follows them: more than rounding"
            " explains, and less than is certain"
        )
    looked_at: dict[Unit, int] = {
        "micro-batches": len(tested),
        "tokens": sum(int(one["tokens"]) for one in tested),
    }
    noise = max((float(one["tolerance"]) for one in tested), default=0.0)
    return CheckOutcome(not_run=why, looked_at=looked_at, noise=noise, measured=measured)


def tested_batches(facts: Facts) -> list[Fact]:
    """Return the micro-batches that were computed again with other tokens."""
    return [one for one in facts.of("causal") if not not_null(one, "dropout") and one["repeats"]]


def is_seen(one: Fact) -> bool:
    """Return whether hidden states of a tested micro-batch see what follows them, for certain."""
    return float(one["apart"]) > float(one["certain"])


def _by_mask(facts: Facts) -> str | None:
    for one in facts.of("ahead"):
        if one["seen"]:
            return (
                f"{one['seen']} of {one['tokens']} learnt tokens are seen by the positions that"
                " predict them, by the model's attention_mask of four dimensions"
            )
    return None


def _by_replaced(tested: Sequence[Fact]) -> str | None:
    one = next(filter(is_seen, tested), None)
    if one is None:
        return None
    kind = f" of a {one['batch']} micro-batch" if one["batch"] != OTHER else ""
    return (
        f"where {one['replaced']} tokens behind learnt places{kind} are replaced by others"
        f" (step {int(one['step']) + 1}, micro-batch {int(one['micro']) + 1}), hidden states"
        f" before them are {float(one['apart']):.2g} apart (rounding allows"
        f" {float(one['tolerance']):.1g}): they see what follows"
    )


def _untested(facts: Facts, kinds: set[str]) -> str | None:
    """Return which kind of micro-batch was seen, and none of it tested, with the reason."""
    missing = kinds_seen(facts) - kinds
    if None in missing:
        return "the ids of micro-batches were not seen: whether they are padded is not known"
    if not missing:
        return None
    kind = min(map(str, missing))
    return f"{micro_batches_of(kind)} were seen, and none could be tested: {_why(facts, kind)}"


def _why(facts: Facts, kind: str) -> str:
    mine = [one for one in facts.of("causal") if one["batch"] == kind]
    if any(one["dropout"] for one in mine):
        return "dropout was on"
    if mine:
        return (
            "computed once more, they are others: noise in training (NEFTune), or weights that"
            " changed before this step"
        )
    why = facts.skipped("causal") or next(iter(facts.errors_of("causal")), None)
    return why or "none of them was kept (VTOOL_WATCH_MIB)"


CHECKS = (WatchCheck(SEEN, "causal", _seen, {"micro-batches": 1, "tokens": 1}, most_noise=0.3),)
