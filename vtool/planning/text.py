"""A plan in words."""

from collections.abc import Iterator

from vtool.planning.measured import MeasuredRows
from vtool.planning.micro_batch import shape_in_words
from vtool.planning.plan import ERROR, GIB, MFU, Change, MemoryPlan
from vtool.planning.recompute import Choice
from vtool.planning.step import MEMORY_KINDS
from vtool.words import plural


def lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield the lines of a plan."""
    asked, step = plan.asked, plan.step
    if plan.measured_rows is not None:
        yield _of_rows(plan.measured_rows)
    yield (
        f"{plan.parameters:,} parameters, {plan.trained:,} of them trained; ranks: {asked.gpus};"
        f" micro-batch: {shape_in_words(plan.shape)}{_of_images(plan)}"
    )
    yield "each rank, at its peak:"
    for kind in MEMORY_KINDS:
        later = kind == "gradients" and plan.trained and not step.memory[kind]
        note = "  (the peak is before there are any)" if later else ""
        yield f"  {kind:<24}{size(step.memory[kind]):>12}{note}"
    yield f"  {'together':<24}{size(step.peak):>12}"
    if plan.offloaded:
        yield f"  {'of it on the device':<24}{size(plan.device):>12}"
    if plan.choice is not None:
        yield _of_choice(plan.choice)
    yield (
        f"logits: {plural(plan.chunks, 'chunk')}, {size(plan.logits)} each, among the activations"
    )
    yield (
        f"host memory of a rank: {size(plan.load)} besides mapped files at load, {size(plan.save)}"
        f" at save; a checkpoint has {size(plan.checkpoint)}"
    )
    most = "at most " if plan.shape.packed else ""
    given = "at most " if plan.shape.packed or plan.measured_rows else ""
    yield (
        f"a step: {most}{plural(plan.micro_batches, 'micro-batch', 'micro-batches')} a rank,"
        f" {most}{size(step.sent)} sent by each rank; {step.flops / 1e12:,.3g} TFLOP a micro-batch"
    )
    if plan.idle:
        yield (
            f"a step has fewer rows than ranks: {plan.idle:,} of {asked.gpus:,} ranks have none,"
            " and take as long; raise data.global_batch_size"
        )
    feeding, per = plan.feeding(), "second" if plan.seconds else "step"
    yield (
        f"the loader of each rank must give {given}{_count(feeding['images'], 'image')} and"
        f" {_count(feeding['tokens'], 'token')} a {per}"
    )
    if plan.seconds is not None:
        steps = plan.steps or 1000
        seconds = steps * plan.seconds
        yield (
            f"time: {most}{_time(plan.seconds)} a step, {_time(seconds)} for {steps:,} steps, at"
            f" {MFU:.0%} MFU"
        )
        if asked.price is not None:
            paid = asked.price * asked.gpus * seconds / 3600
            yield (
                f"price: {most}{_money(paid)} for {steps:,} steps on"
                f" {plural(asked.gpus, 'GPU')}, at {asked.price:,g} a GPU-hour"
            )
    yield verdict(plan)


def verdict(plan: MemoryPlan) -> str:
    """Say whether it fits."""
    if plan.asked.memory is None:
        return "whether it fits was not asked: --memory GIB"
    there = f"{size(plan.device)} of {size(plan.asked.memory)}"
    free = plan.asked.memory - plan.asked.reserved - plan.device
    if plan.asked.reserved:
        there += f"; {size(plan.asked.reserved)} are left for the driver and its libraries"
    if free < 0:
        return f"does not fit: {there}"
    if free < ERROR * plan.device:
        return f"fits, but for the plan's own error of {ERROR:.0%}: {there}"
    return f"fits: {there}"


def remedy(plan: MemoryPlan) -> str:
    """Say the smallest change with which it fits."""
    room = plan.asked.room or 0
    adapters = "" if plan.trained < plan.parameters else "train adapters (lora), "
    others = f"{adapters}shorten data.max_length, or train a smaller model"
    for change in plan.changes:
        what = _of_change(plan, change)
        if change.device <= room:
            return f"{what}: then {size(change.device)} a rank"
        return (
            f"no change that the plan knows of makes it fit: with {what}, a rank still needs"
            f" {size(change.device)}; {others}"
        )
    return f"no change that the plan knows of makes it fit: {others}"


def _of_images(plan: MemoryPlan) -> str:
    """Say where the number of images is from, where nobody has measured or asked for it."""
    measured = plan.measured_rows is not None and plan.measured_rows.images is not None
    guessed = plan.shape.images and plan.asked.images is None and not measured
    return " (images fill three quarters of a row: else --images N)" if guessed else ""


def _of_rows(rows: MeasuredRows) -> str:
    """Describe the rows that were measured."""
    images = "videos are not planned" if rows.images is None else f"at most {rows.images} a row"
    images = "no image" if rows.images == 0 else f"images: {images}"
    return f"measured from {plural(rows.rows, 'row')}: at most {rows.tokens:,} tokens, {images}"


def _of_choice(choice: Choice) -> str:
    name = "model.gradient_checkpointing=auto"
    if choice.without is None:
        return f"{name} is planned as full: with --memory GIB it is chosen"
    if not choice.blocks:
        return f"{name} is none: it fits without"
    again = f"{choice.blocks} of {choice.of} blocks compute again, those of the tower first"
    return f"{name} is {choice.setting}: {again}; with none, {size(choice.without)} on the device"


def _time(seconds: float) -> str:
    """Say a duration with three digits."""
    for unit, size_of, most in (("ms", 0.001, 1), ("s", 1, 120), ("min", 60, 7200)):
        if seconds < most:
            return f"{seconds / size_of:.3g} {unit}"
    return f"{seconds / 3600:,.1f} h"


def _money(paid: float) -> str:
    return "less than 0.01" if 0 < paid < 0.01 else f"{paid:,.2f}"


def _count(number: float, noun: str) -> str:
    """Say a rate; one of 100 or more without decimals."""
    if number == int(number) or number >= 100:
        return plural(round(number), noun)
    return f"{number:.3g} {noun}s"


def _of_change(plan: MemoryPlan, change: Change) -> str:
    gpus = [f"--gpus {change.gpus}"] if change.gpus != plan.asked.gpus else []
    return " ".join([*change.settings, *gpus])


def size(number: float) -> str:
    """Return bytes in words."""
    return f"{number / GIB:,.2f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.1f} MiB"
