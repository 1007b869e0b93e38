"""A gradient that is used for two steps."""

from itertools import pairwise

from vtool.diagnostics import Rule
from vtool.watch.conclusions.arrived import not_arrived
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

TWICE = Rule(
    name="gradient-stepped-twice",
    code="VT934",
    summary="One gradient is used for two steps of the same parameters.",
    why=(
        "The second step moves weights along a gradient that was taken elsewhere, and moments count"
        " it twice: a trainer's step and one's own, or two optimizers that both have a parameter."
        " The learning rate is nearly twice what the log says."
    ),
    bad="trainer.step(); optimizer.step(), or a parameter in the groups of two optimizers",
    good="one step for each gradient, and each parameter in one optimizer",
    fix="Leave one of the two steps out, or give each optimizer parameters of its own.",
)


def _twice(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts) or facts.no_gradients:
        return CheckOutcome(not_run=why)
    for one in facts.of("stepped"):
        if others := not_null(one, "others"):
            name, tensors = next(iter(others.items()))
            message = (
                f"up to step {int(one['step']) + 1} {tensors} tensors are stepped with the same"
                f" gradient by {facts.model.get('optimizer')} and by another {name}"
            )
            return CheckOutcome((found(TWICE, message),))
    passes = {int(one["step"]) for kind in ("rows", "micro") for one in facts.of(kind)}
    by_rank: dict[int, list[Fact]] = {}
    for one in facts.of("arrived"):
        by_rank.setdefault(int(one["rank"]), []).append(one)
    for ones in by_rank.values():
        for before, one in pairwise(ones):
            step, last = int(one["step"]), int(before["step"])
            if step != last + 1 or step in passes or last not in passes or not one["norm"]:
                continue
            if one["digest"] == before["digest"]:
                message = (
                    f"step {step + 1} is made with the gradient of step {step} once more: nothing"
                    " was computed in between"
                )
                return CheckOutcome((found(TWICE, message),))
    steps = len({int(one["step"]) for one in facts.of("arrived")})
    looked_at: dict[Unit, int] = {"steps": min(steps, len(facts.of("stepped")))}
    return CheckOutcome(looked_at=looked_at, measured={"steps": steps})


CHECKS = (WatchCheck(TWICE, "arrived", _twice, {"steps": 2}),)
