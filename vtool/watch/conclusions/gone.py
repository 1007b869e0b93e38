"""Gradients that backward passes left, and that are not there when the optimizer steps."""

from dataclasses import dataclass
from typing import Literal

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

_ZEROED_HELP = (
    "call zero_grad() after optimizer.step(), or before the first backward() of a step: not between"
    " the two. Look at what comes between them: callbacks, model.zero_grad(), p.grad = None"
)
_SYNC_HELP = (
    "call set_requires_gradient_sync(True) before the backward pass of a step's last micro-batch;"
    " False is for the others alone, and at the end of an epoch too"
)
_REPLICAS_HELP = (
    "call set_requires_all_reduce(True) before the backward pass of a step's last micro-batch;"
    " False is for the others alone"
)
_PART_HELP = (
    "look for zero_grad() or p.grad = None between backward() and step(); if these are not to be"
    " trained, requires_grad_(False) says so, and saves their backward pass"
)
IN_EACH_STEP = 0.8
"""The share of the tensors without a gradient that must be the same ones in each step."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A finding: what is said of it, what to do, and how certain it is."""

    message: str
    help: str
    severity: Literal["error", "warning"]


def waiting_in_engine(facts: Facts) -> Gone | None:
    """Look for gradients that FSDP2 still has when the optimizer steps: it will not see them."""
    waiting = [one for one in facts.of("arrived") if one["waiting"]]
    if not waiting:
        return None
    steps = {int(one["step"]) for one in waiting}
    of = len({int(one["step"]) for one in facts.of("arrived")})
    kept = [one["waiting"] for one in waiting]
    tensors = max(int(one["tensors"]) for one in kept)
    trained = max(int(one["trained"]) for one in waiting)
    within = any(one["replicas"] for one in kept)
    where = "over its replicas" if within else "over ranks"
    switch = "set_requires_all_reduce(False)" if within else "set_requires_gradient_sync(False)"
    message = (
        f"in {len(steps)} of {of} steps gradients of {tensors} of {trained} tensors wait in"
        f" {kept[0]['engine']} when the optimizer steps, not reduced {where}: it does not get them."
        f" {switch} holds for the last micro-batch too"
    )
    return Gone(message, _REPLICAS_HELP if within else _SYNC_HELP, "error")


def zeroed_before_step(facts: Facts) -> Gone | None:
    """Look for steps whose backward passes left gradients, and that find none at all."""
    taught = {(micro.step, micro.rank) for micro in facts.micros if micro.supervised}
    moved = {int(one["step"]) for one in facts.of("stepped") if one["moved"]}
    steps, gone = 0, []
    for step, arrived in facts.by_step("arrived"):
        if not any((step, int(one["rank"])) in taught for one in arrived):
            continue
        steps += 1
        if all(_has_none(one, step in moved) for one in arrived) and any(map(_had_some, arrived)):
            gone.append((step, arrived))
    if not gone:
        return None
    how = "gone" if any(one["n_no_gradient"] for _, each in gone for one in each) else "zeros"
    trained = max(int(one["trained"]) for _, each in gone for one in each)
    where = f"in each of {steps} steps" if steps > 1 else "in the step that was looked at"
    if len(gone) < steps:
        where = f"in {len(gone)} of {steps} steps"
    message = (
        f"{where} backward passes left gradients, and when the optimizer steps those of all"
        f" {trained} tensors are {how}: something zeroes them between backward() and step()"
    )
    return Gone(message, _ZEROED_HELP, "error" if 1 < steps == len(gone) else "warning")


def _has_none(arrived: Fact, moved: bool) -> bool:
    """Return whether no parameter has a gradient, and nothing else is known to have it."""
    without = int(arrived["n_no_gradient"]) + int(arrived["n_zero_gradient"])
    trained = int(arrived["trained"])
    # an optimizer leaves alone what has none: where weights move, something keeps their gradients
    elsewhere = moved and int(arrived["n_no_gradient"]) == trained
    return without == trained > 0 and not arrived["kept_by"] and not elsewhere


def _had_some(arrived: Fact) -> bool:
    left = arrived["left"]
    if left is not None:
        return int(left["tensors"]) > 0
    # single tensors were not seen on their way: all of them must be the optimizer's own
    return int(arrived["owned"]) == int(arrived["trained"])


def partly_zeroed(facts: Facts) -> Gone | None:
    """Look for tensors whose gradients are thrown away in each step, while others keep theirs."""
    arrived = facts.of("arrived")
    left = [one["left"] for one in arrived if one["left"] and not one["kept_by"]]
    if len({int(one["step"]) for one in arrived}) < 2 or len(left) < len(arrived):
        return None
    names = [name for name in left[0]["gone"] if all(name in one["gone"] for one in left)]
    if not names or any(one["tensors"] == one["n_gone"] for one in left):
        return None
    if len(names) < IN_EACH_STEP * len({name for one in left for name in one["gone"]}):
        return None  # parts take turns
    most = min(int(one["n_gone"]) for one in left)
    of = max(int(one["tensors"]) for one in left)
    listed = ", ".join(names[:3]) + (f" and {most - 3} more" if most > 3 else "")
    message = (
        f"in each step backward passes left gradients of {of} tensors that were looked at, and"
        f" when the optimizer steps {most} of them have none: {listed}"
    )
    return Gone(message, _PART_HELP, "warning")
