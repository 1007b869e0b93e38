"""Weights from step to step: replicas that diverge, and parameters that do not move."""

from collections import Counter

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.arrived import (
    first_names,
    gradients_differ,
    lost_updates,
    not_comparable,
)
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.rates import groups_without_rate, on_the_way, rates_are_zero
from vtool.watch.facts import Fact, Facts

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
    if gradients_differ(facts):
        return CheckOutcome(not_run="each rank has another gradient: weights differ by that")
    for step, ones in facts.by_step("drift"):
        if len({one["digest"] for one in ones}) < 2:
            continue
        first = ones[0].get("tensors") or {}
        names = [
            name
            for name in first
            if any((one.get("tensors") or {}).get(name) != first[name] for one in ones)
        ]
        message = (
            f"after step {step + 1} ranks differ in {first_names(names, len(names)) or 'weights'}"
        )
        return CheckOutcome((found(DRIFT, message),))
    looked = facts.of("drift")
    looked_at: dict[Unit, int] = {
        "steps": len({one["step"] for one in looked}),
        "ranks": len({one["rank"] for one in looked}),
        "tensors": min(len(one["tensors"]) for one in looked),
    }
    return CheckOutcome(looked_at=looked_at)


def _undone(facts: Facts) -> Diagnostic | None:
    """Look for steps that were undone before the next: what happens once may be a trial."""
    looked = [
        (int(one["step"]), one["undone"].get("to"))
        for one in facts.of("arrived")
        if one.get("undone")
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
    if any(one.get("nonfinite") for one in facts.of("arrived")):
        return "gradients are not finite: weights are no numbers from then on"
    if facts.owns_nothing:
        return "the optimizer has none of the model's parameters"
    if lost_updates(facts).findings:
        return "updates are lost in rounding"
    alone = max(Counter(one["rank"] for one in looked).values()) < 2
    return "one step alone was looked at (--steps, --every)" if alone else None


def _may_round_away(facts: Facts, drift: Fact, stuck: int) -> bool:
    """Return whether steps are as small as gradients, and few tensors have not moved.

    Where Adam and its kin divide by the gradient's size, a step is about the learning rate; in
    plain descent that of a norm's weight, near 1, may be too small for float32.
    """
    adam = "adam" in str(facts.model.get("optimizer")).lower()
    return not adam and stuck * 2 < len(drift.get("tensors") or ())


def _put_back(facts: Facts) -> Diagnostic | None:
    """Look for tensors that are put back before each step, while others are not."""
    looked = [one["undone"] for one in facts.of("arrived") if one.get("undone")]
    if len(looked) < 2:
        return None
    back = set.intersection(*(set(one.get("back") or ()) for one in looked))
    if back:
        message = (
            f"before each of {len(looked)} steps {first_names(sorted(back), len(back))} are put"
            " back to what they were before the last one"
        )
        return found(STUCK, message)
    return None


def _without_rate(facts: Facts) -> Diagnostic | None:
    """Look for groups whose learning rate is 0 in every step."""
    steps = len({int(one["step"]) for one in facts.of("stepped")})
    if rates_are_zero(facts):
        return found(STUCK, f"the learning rate of every group is 0 in each of {steps} steps")
    if groups := groups_without_rate(facts):
        number, tensors = groups[0]
        message = (
            f"the learning rate of group {number + 1} of the optimizer, of {tensors} tensors, is 0"
            f" in each of {steps} steps, and of others it is not"
        )
        return found(STUCK, message, help=_FROZEN_BY_RATE, severity="note")
    return None


def _stuck(facts: Facts) -> CheckOutcome:
    if undone := _undone(facts) or _put_back(facts) or _without_rate(facts):
        return CheckOutcome((undone,))
    if why := _not_compared(facts):
        return CheckOutcome(not_run=why)
    for one in facts.of("drift"):
        if (names := one["stuck"]) and not on_the_way(facts, int(one["step"])):
            count = int(one.get("n_stuck") or len(names))
            message = f"until step {int(one['step']) + 1}: {first_names(names, count)}"
            if _may_round_away(facts, one, count):
                return CheckOutcome((found(STUCK, message, help=_ROUNDED, severity="note"),))
            return CheckOutcome((found(STUCK, message),))
    looked = [one for one in facts.of("drift") if one["compared"]]
    if not looked:
        return CheckOutcome(not_run="no weight had a gradient and a rate in two steps")
    return CheckOutcome(
        looked_at={
            "steps": 1 + len({one["step"] for one in looked}),
            "tensors": min(int(one["compared"]) for one in looked),
        }
    )


CHECKS = (
    WatchCheck(DRIFT, "arrived", _drift, {"steps": 1, "ranks": 2, "tensors": 1}),
    WatchCheck(STUCK, "arrived", _stuck, {"steps": 2, "tensors": 1}),
)
