"""The learning rates of the steps that were looked at."""

from collections import Counter
from dataclasses import dataclass

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

_ENDS_AT = 1e-12
"""The part of its highest rate that no schedule ends at: a cosine has as much at step 1,000,000."""


@dataclass(frozen=True, slots=True)
class WithoutRate:
    """The last watched steps, one after another, in which every group's learning rate is 0."""

    steps: tuple[int, ...]
    watched: int
    """All steps that were watched."""
    highest: float
    """The highest rate that a group was made with, or had in an earlier step."""
    schedule: str | None
    """The kind of the schedule, if one was found."""
    is_waiting: bool
    """The schedule was stepped in none of several steps: it may be stepped once an epoch."""
    fell: bool
    """The rate fell to 0, and its schedule left it there when it was stepped again."""
    never: bool
    """A schedule multiplies a rate of 0: there will never be one."""
    moved: bool
    """Weights moved in them: an optimizer may keep its rate elsewhere, or another one trains."""
    ended: int = 0
    """Steps of the whole run, if it has ended and none of them had a rate."""
    scheduled: int | None = None
    """Steps of the schedule at the last of them."""

    @property
    def is_certain(self) -> bool:
        """Return whether no schedule that is as it should be looks like this.

        One that begins at 0 has a rate in the second step, or is not stepped in each.
        """
        several = len(self.steps) > 2 and (self.ended > 0 or not self.is_waiting)
        return not self.moved and (self.never or several or self.fell)

    def __str__(self) -> str:
        if self.ended:
            said = f"the learning rate of every group is 0 in all {self.ended} steps of the run"
            if self.schedule is None:
                return said
            how = f"was stepped {self.scheduled} times" if self.scheduled else "was never stepped"
            return f"{said}, and its schedule ({self.schedule}) {how}"
        since = "" if len(self.steps) == self.watched else f" from step {self.steps[0] + 1} on"
        count = len(self.steps)
        said = f"the learning rate of every group is 0 in {_each(count)}{since}"
        if self.schedule is None:
            return f"{said}, and it was {self.highest:.2g}" if self.highest else said
        if self.is_waiting:
            return f"{said}, in which its schedule ({self.schedule}) was not stepped"
        return f"{said}: a schedule ({self.schedule}) of up to {self.highest:.2g} has it at 0"


def _each(steps: int) -> str:
    return f"each of {steps} steps" if steps > 1 else "the step that was watched"


def without_rate(facts: Facts) -> WithoutRate | None:
    """Return the last watched steps without a learning rate; None where the last one has some."""
    steps = [*facts.by_step("stepped")]
    zero: list[tuple[int, tuple[Fact, ...]]] = []
    for step, ones in reversed(steps):
        groups = [group for one in ones for group in one["groups"]]
        if not groups or any(group.get("lr") != 0 for group in groups):
            break
        zero.insert(0, (step, ones))
    if not zero:
        return None
    groups = [group for _, ones in steps for one in ones for group in one["groups"]]
    rates = [group.get(name) or 0.0 for group in groups for name in ("lr", "initial_lr")]
    looked = [one for _, ones in zero for one in ones]
    schedules = [one["schedule"] for one in looked if one["schedule"] is not None]
    ended = [one for one in facts.of("rate_ended") if len(zero) == len(steps)]
    counts = {(one["rank"], one["schedule"]["steps"]) for one in looked if one["schedule"]}
    return WithoutRate(
        steps=tuple(step for step, _ in zero),
        watched=len(steps),
        highest=max(map(float, rates)),
        schedule=str(schedules[0]["kind"]) if schedules else None,
        fell=1 < len(zero) < len(steps) and len(counts) > len({rank for rank, _ in counts}),
        is_waiting=len(zero) > 2 and 0 < len(counts) == len({rank for rank, _ in counts}),
        never=all(group.get("initial_lr") == 0 == group.get("lr") for group in groups),
        moved=_moved_in(facts, {step for step, _ in zero}),
        ended=min((int(one["steps"]) for one in ended), default=0),
        scheduled=next((one["scheduled"] for one in ended), None),
    )


def _moved_in(facts: Facts, steps: set[int]) -> bool:
    """Return whether weights after some steps differ."""
    digests: dict[int, set[str]] = {}
    for one in facts.of("drift"):
        if int(one["step"]) in steps:
            digests.setdefault(int(one["rank"]), set()).add(str(one["digest"]))
    return any(len(each) > 1 for each in digests.values())


def never_had_rate(facts: Facts) -> str | None:
    """Return that the rate was 0 in all watched steps, so that no step was to do anything."""
    seen = without_rate(facts)
    return str(seen) if seen and len(seen.steps) == seen.watched and not seen.moved else None


def groups_without_rate(facts: Facts) -> list[tuple[int, int]]:
    """Return the groups that never had a learning rate while others had one: number, tensors.

    A group whose rate a schedule, or somebody by hand, is to raise later cannot be distinguished
    from these in fewer than three steps.
    """
    stepped = [one["groups"] for one in facts.of("stepped")]
    steps = {int(one["step"]) for one in facts.of("stepped")}
    if len(steps) < 3 or len({len(groups) for groups in stepped}) != 1:
        return []
    found = []
    for number in range(len(stepped[0])):
        mine = [groups[number] for groups in stepped]
        none = all(one.get("lr") == 0 and not one.get("initial_lr") for one in mine)
        if none and mine[0]["tensors"]:
            found.append((number, int(mine[0]["tensors"])))
    others = [g for groups in stepped for g in groups if g.get("lr")]
    return found if others else []


def steps_without_moments(facts: Facts) -> int:
    """Return in how many steps AdamW had no moments of an earlier one; 0 where it had some.

    Of tensors that were stepped before: where layers take turns, each has its first step late.
    """
    ages = [
        (int(one["step"]), name, int(tensor["age"]))
        for one in facts.of("stepped")
        for name, tensor in (one["reference"] or {}).items()
        if tensor["age"] is not None
    ]
    stepped = Counter(name for _, name in {(step, name) for step, name, _ in ages})
    steps = max(stepped.values(), default=0)
    return steps if steps > 2 and not any(age for _, _, age in ages) else 0


def on_the_way(facts: Facts, step: int) -> str | None:
    """Return why the rate of a step is not the full one: it still rises, or is below half of it."""
    rates: dict[int, list[tuple[int, float, float]]] = {}
    for one in facts.of("stepped"):
        for number, group in enumerate(one["groups"]):
            rate = float(group.get("lr") or 0)
            known = int(one["step"]), rate, float(group.get("initial_lr") or 0)
            rates.setdefault(number, []).append(known)
    for steps in rates.values():
        peak = max(max(rate, first) for _, rate, first in steps)
        before = [rate for at, rate, _ in steps if at < step]
        for rate in {rate for at, rate, _ in steps if at == step}:
            if before and rate > min(before):
                return f"the learning rate still rises in step {step + 1}"
            if _ENDS_AT * peak < rate < peak / 2 or rate == 0 < peak:
                return f"the learning rate of step {step + 1} is {rate:.2g}, of up to {peak:.2g}"
    return None
