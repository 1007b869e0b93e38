"""The learning rates of the steps that were looked at."""

from vtool.watch.facts import Facts

_ENDS_AT = 1e-12
"""The part of its highest rate that no schedule ends at: a cosine has as much at step 1,000,000."""


def rates_are_zero(facts: Facts) -> bool:
    """Return whether no group has ever had a learning rate, and none is on its way to one.

    A schedule that begins at zero has noted the rate that it rises to. One by hand is seen to rise,
    or cannot yet be distinguished from this in a single step.
    """
    groups = [group for one in facts.of("stepped") for group in one.get("groups") or ()]
    steps = {int(one["step"]) for one in facts.of("stepped")}
    known = all(group.get("initial_lr") == 0 for group in groups)
    return (
        bool(groups)
        and all(group.get("lr") == 0 and not group.get("initial_lr") for group in groups)
        and (known or len(steps) > 2)
        and facts.weights_move is not True  # an optimizer may keep its rate elsewhere
    )


def groups_without_rate(facts: Facts) -> list[tuple[int, int]]:
    """Return the groups that never had a learning rate while others had one: number, tensors.

    A group whose rate a schedule, or somebody by hand, is to raise later cannot be distinguished
    from these in fewer than three steps.
    """
    stepped = [one.get("groups") or () for one in facts.of("stepped")]
    steps = {int(one["step"]) for one in facts.of("stepped")}
    if len(steps) < 3 or len({len(groups) for groups in stepped}) != 1:
        return []
    found = []
    for number in range(len(stepped[0])):
        mine = [groups[number] for groups in stepped]
        none = all(one.get("lr") == 0 and not one.get("initial_lr") for one in mine)
        if none and mine[0].get("tensors"):
            found.append((number, int(mine[0]["tensors"])))
    others = [g for groups in stepped for g in groups if g.get("lr")]
    return found if others else []


def steps_without_moments(facts: Facts) -> int:
    """Return in how many steps AdamW had no moments of an earlier one; 0 where it had some."""
    ages = [
        (int(one["step"]), int(tensor["age"]))
        for one in facts.of("stepped")
        for tensor in (one.get("reference") or {}).values()
        if tensor.get("age") is not None
    ]
    steps = len({step for step, _ in ages})
    return steps if steps > 2 and not any(age for _, age in ages) else 0


def on_the_way(facts: Facts, step: int) -> str | None:
    """Return why the rate of a step is not the full one: it still rises, or is below half of it."""
    rates: dict[int, list[tuple[int, float, float]]] = {}
    for one in facts.of("stepped"):
        for number, group in enumerate(one.get("groups") or ()):
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
