"""Weights from step to step: replicas that diverge, and parameters that do not move."""

from collections import Counter

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.arrived import first_names, lost_updates
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.rates import groups_without_rate, on_the_way, without_rate
from vtool.watch.conclusions.replicas import (
    gradients_differ,
    names_apart,
    not_comparable,
    shards_beside,
)
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

DRIFT = Rule(
    name="replicas-drift",
    code="VT929",
    summary="Ranks that should hold the same weights do not.",
    why=(
        "One copy is saved; the others were trained on their rows for nothing, and each step's"
        " mean gradient is of several models."
    ),
    bad="weights drawn on each rank from a seed of its own, without DDP's broadcast",
    good="weights that are the same on each rank after every step",
    fix="Broadcast weights from rank 0 before the first step, and reduce every gradient.",
)
STUCK = Rule(
    name="parameter-stopped-moving",
    code="VT930",
    summary="Parameters with a gradient have not moved since an earlier step, or were put back.",
    why="They are trained no more, and something has done it: the rate, or what writes them back.",
    bad="a learning rate of 1e-30, or old weights that are written back after each step",
    good="weights that move as long as they have a gradient and a rate",
    fix="Look at the learning rate of its group at that step, and at what else writes weights.",
    severity="warning",
)


_NO_RATE = (
    "look at the rate that the optimizer is made with, and at what the schedule makes of it: a"
    " warm-up that divides with //, a number of steps that is too small"
)
_NEVER_STEPPED = "call the schedule's step() after each optimizer.step(), or once an epoch"
_WAITS = "nothing, if the schedule is stepped once an epoch: it trains from then on"
_FROZEN_BY_RATE = "nothing, if it is raised later; requires_grad_(False) freezes for good"
_ROUNDED = (
    "with steps as small as these gradients, float32 may round them away; a larger rate moves"
)


def _drift(facts: Facts) -> CheckOutcome:
    if not facts.of("drift"):
        return CheckOutcome(not_run="no digest of the weights was taken")
    if why := not_comparable(facts, "drift", "weights"):
        return CheckOutcome(not_run=why)
    if len({one["rank"] for one in facts.of("drift")}) < 2:
        return CheckOutcome(not_run="one rank alone has this model")
    differ = gradients_differ(facts)
    if differ or any(names_apart(facts, ones) for _, ones in facts.by_step("arrived")):
        return CheckOutcome(not_run="each rank has another gradient: weights differ by that")
    for step, ones in facts.by_step("drift"):
        if (names := names_apart(facts, ones)) is None:
            continue
        message = (
            f"after step {step + 1} ranks differ in {first_names(names, len(names)) or 'weights'}"
        )
        return CheckOutcome((found(DRIFT, message),))
    several = [ones for _, ones in facts.by_step("drift") if len({o["rank"] for o in ones}) > 1]
    looked = [one for ones in several for one in ones]
    looked_at: dict[Unit, int] = {
        "steps": len(several),
        "ranks": len({one["rank"] for one in looked}),
        "tensors": min((len(one["tensors"]) for one in looked), default=0),
    }
    return CheckOutcome(looked_at=looked_at, not_run=shards_beside(facts, facts.of("drift")))


def _undone(facts: Facts) -> Diagnostic | None:
    """Look for steps that were undone before the next: what happens once may be a trial."""
    looked = [
        (int(one["step"]), one["undone"]["to"])
        for one in facts.of("arrived")
        if one["undone"] is not None
    ]
    put_back = {step: int(to) for step, to in looked if to is not None}
    if not put_back:
        return None
    step, to = next(iter(put_back.items()))
    always = len(put_back) > 1 and set(put_back) == {step for step, _ in looked}
    often = f"before each of {len(put_back)} steps" if always else f"before step {step + 1}"
    message = (
        f"{often} all small weights are put back to what they were before"
        f" {'an earlier one' if always else f'step {to + 1}'}: what was learnt in between is lost"
    )
    if always:
        return found(STUCK, message)
    help = "nothing, if a trial was undone, or a step that went wrong"
    return found(STUCK, message, help=help, severity="note")


def _not_compared(facts: Facts) -> str | None:
    """Return why weights were not compared with those of an earlier step."""
    looked = facts.of("drift")
    if not looked:
        return "no later step was looked at (--every)"
    if any(not_null(one, "nonfinite") for one in facts.of("arrived")):
        return "gradients are not finite: weights are no numbers from then on"
    if facts.owns_nothing:
        return "the optimizer has none of the model's parameters"
    if lost_updates(facts).findings:
        return "updates are lost in rounding"
    alone = max(Counter(int(one["rank"]) for one in looked).values()) < 2
    return "one step alone was looked at (--steps, --every)" if alone else None


def _may_round_away(facts: Facts, drift: Fact, stuck: int) -> bool:
    """Return whether steps are as small as gradients, and few tensors have not moved.

    Where Adam and its kin divide by the gradient's size, a step is about the learning rate; in
    plain descent that of a norm's weight, near 1, may be too small for float32.
    """
    adam = "adam" in str(facts.model.get("optimizer")).lower()
    return not adam and stuck * 2 < len(drift["tensors"])


def _put_back(facts: Facts) -> Diagnostic | None:
    """Look for tensors that are put back before each step, while others are not."""
    looked = [one["undone"] for one in facts.of("arrived") if one["undone"] is not None]
    if len(looked) < 2:
        return None
    back = set.intersection(*(set(one["back"]) for one in looked))
    if back:
        message = (
            f"before each of {len(looked)} steps {first_names(sorted(back), len(back))} are put"
            " back to what they were before the last one"
        )
        return found(STUCK, message)
    return None


def _without_rate(facts: Facts) -> Diagnostic | None:
    """Look for groups whose learning rate is 0 in every step."""
    if (seen := without_rate(facts)) and seen.is_certain:
        never = seen.ended and seen.schedule and not seen.scheduled
        return found(STUCK, str(seen), help=_NEVER_STEPPED if never else _NO_RATE)
    if seen and not seen.moved:
        return None
    steps = len({int(one["step"]) for one in facts.of("stepped")})
    if groups := groups_without_rate(facts):
        number, tensors = groups[0]
        message = (
            f"the learning rate of group {number + 1} of the optimizer, of {tensors} tensors, is 0"
            f" in each of {steps} steps, and of others it is not"
        )
        return found(STUCK, message, help=_FROZEN_BY_RATE, severity="note")
    return None


def _cannot_tell(facts: Facts) -> CheckOutcome | None:
    """Return why it is not known whether weights stand still; None where it is."""
    seen = without_rate(facts)
    if seen and not seen.moved and (seen.is_waiting or len(seen.steps) == seen.watched):
        waits = found(STUCK, str(seen), help=_WAITS, severity="note")
        return CheckOutcome((waits,) if seen.is_waiting else (), not_run=str(seen))
    why = _not_compared(facts)
    return CheckOutcome(not_run=why) if why else None


def _stuck(facts: Facts) -> CheckOutcome:
    if undone := _undone(facts) or _put_back(facts) or _without_rate(facts):
        return CheckOutcome((undone,))
    if outcome := _cannot_tell(facts):
        return outcome
    excused = None
    looked = []
    for one in facts.of("drift"):
        way = on_the_way(facts, int(one["step"])) if not_null(one, "stuck") else None
        excused = way or excused
        if one["compared"] and way is None:
            looked.append(one)
        if (names := one["stuck"]) and way is None:
            count = int(one["n_stuck"])
            message = f"until step {int(one['step']) + 1}: {first_names(names, count)}"
            if _may_round_away(facts, one, count):
                return CheckOutcome((found(STUCK, message, help=_ROUNDED, severity="note"),))
            return CheckOutcome((found(STUCK, message),))
    if not looked:
        why = "no weight had a gradient and a rate in two steps"
        return CheckOutcome(not_run=f"{excused}: look later (--every)" if excused else why)
    return CheckOutcome(
        looked_at={
            "steps": 1 + len({int(one["step"]) for one in looked}),
            "tensors": min(int(one["compared"]) for one in looked),
        }
    )


CHECKS = (
    WatchCheck(DRIFT, "arrived", _drift, {"steps": 1, "ranks": 2, "tensors": 1}),
    WatchCheck(STUCK, "arrived", _stuck, {"steps": 2, "tensors": 1}),
)
