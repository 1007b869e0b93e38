"""The weight of each learnt token, against the others of its step and against one mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.arrived import gradients_differ
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.engine import engine_of, norm_of
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.facts import Facts, LearntRow, MicroPass

DIFFER = Rule(
    name="token-weights-differ",
    code="VT906",
    summary="Tokens of one optimizer step weigh more than others, by where they happen to be.",
    why=(
        "A mean over each micro-batch or rank, and then over these, weighs a token by how many"
        " others share its mean: short answers count more, and the result depends on batch size,"
        " accumulation and ranks (transformers#34191, #34242, #37766, LLaMA-Factory#7443)."
    ),
    bad="loss = cross_entropy(...) / gradient_accumulation_steps, over micro-batches of any size",
    good="loss = cross_entropy(..., reduction='sum') / tokens_of_the_step",
    fix=(
        "Divide the sum of each micro-batch's loss by the tokens of the whole step, over all ranks."
        " Where the trainer cannot, use one micro-batch a step: the full batch size and"
        " gradient_accumulation_steps=1."
    ),
)
_SCALED = Rule(
    name="gradient-scaled",
    code="VT907",
    summary="The gradient of a step is not that of the mean over its tokens, but several times it.",
    why=(
        "A loss that is not divided by the accumulation, a sum over ranks, or a loss scaler that is"
        " applied twice makes the gradient k times too large: it is clipped at every step, and the"
        " learning rate means something else (transformers#37766, #34576). Clipped before a scaler"
        " has divided it, it is far too small."
    ),
    bad="loss.backward() for each of 4 micro-batches, without dividing by 4",
    good="(loss / 4).backward()",
    fix=(
        "Divide the loss once, by the tokens (or the micro-batches and ranks) of the step. With a"
        " GradScaler: scale(loss) once, unscale_(optimizer) before clipping, step(optimizer)."
    ),
)

_MICRO_HELP = (
    "the loss is averaged over each micro-batch by itself. Until the trainer divides by the tokens"
    " of the whole step (num_items_in_batch in transformers, which this model's class may not"
    " take), gradient_accumulation_steps=1 with a larger batch avoids it"
)
_RANK_HELP = (
    "each rank divides by its own tokens. average_tokens_across_devices=True avoids it in"
    " transformers; in a loop of your own, all-reduce the number of tokens first"
)
_SCALER_HELP = (
    "scaler.scale(loss).backward() for each loss, and scaler.step(optimizer) for each step"
)
_SHORT_HELP = (
    "divide by the micro-batches that the step has: the last step of an epoch may have fewer"
    " (transformers#39659); or leave the rest of the epoch out"
)
_POSITIONS_HELP = (
    "the loss is averaged over every position, learnt or not: take the mean with"
    " ignore_index=-100, or divide its sum by the learnt tokens of the whole step"
)


def _spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Return how many times the largest value is the smallest, or 1 within their tolerances."""
    low, high = min(pairs), max(pairs)
    if low[0] <= 0 or high[0] / low[0] - 1 <= low[1] + high[1]:
        return 1.0
    return high[0] / low[0]


def _steps(facts: Facts) -> list[tuple[int, list[MicroPass]]]:
    micros = read_micros(facts)
    return [
        (step, [micro for micro in micros if micro.step == step])
        for step in sorted({micro.step for micro in micros})
    ]


def _by_row(micros: Sequence[MicroPass]) -> bool:
    """Return whether weights are 1/n of a row's n tokens, where rows and micro-batches differ."""
    rows = [(micro, row) for micro in micros for row in micro.rows if row.tokens]
    # where rows of a micro-batch are as long as each other, 1/n of a row is 1/n of the micro-batch
    if all(len({row.tokens for row in micro.learning_rows}) <= 1 for micro in micros):
        return False
    if any(_uneven(micro, row) for micro, row in rows):
        return False
    return _spread([(row.middle * row.tokens, micro.single) for micro, row in rows]) == 1


def _uneven(micro: MicroPass, row: LearntRow) -> bool:
    """Return whether tokens of one row have different weights."""
    return row.low <= 0 or row.high / row.low - 1 > 2 * micro.single


def _explained(micros: Sequence[MicroPass]) -> tuple[str, str] | None:
    """Return by what rule weights differ between micro-batches or ranks, and what avoids it."""
    # whole rows have a label more than they have targets: nothing predicts their first token
    for firsts, counted in ((0, "learnt tokens"), (1, "labels, first tokens among them,")):
        counts = [micro.supervised + firsts * len(micro.learning_rows) for micro in micros]
        ranks: dict[int, int] = {}
        for micro, count in zip(micros, counts, strict=True):
            ranks[micro.rank] = ranks.get(micro.rank, 0) + count
        if _is_one_over(micros, counts):
            return f"as 1/n of the n {counted} of its own micro-batch", _MICRO_HELP
        if len(ranks) > 1 and _is_one_over(micros, [ranks[micro.rank] for micro in micros]):
            return f"as 1/n of the n {counted} of its own rank", _RANK_HELP
    for behind in (0, 1):  # of each row the last position has no target: some leave it out
        if _is_one_over(micros, [micro.positions(behind) for micro in micros]):
            how = "as 1/n of the n positions of its own micro-batch, prompts and padding too"
            return how, _POSITIONS_HELP
    return None


def _is_one_over(micros: Sequence[MicroPass], counts: Sequence[int]) -> bool:
    """Return whether weights of each micro-batch are in proportion to 1/n, of a count n each."""
    pairs = zip(micros, counts, strict=True)
    return all(counts) and _spread([(one.weight * n, one.tolerance) for one, n in pairs]) == 1


def is_even_by_a_rule(micros: Sequence[MicroPass]) -> bool:
    """Return whether weights are those of a mean: over tokens, micro-batches, ranks, or rows."""
    if any(micro.is_uneven for micro in micros):
        return _by_row(micros)
    even = _spread([(micro.weight, micro.tolerance) for micro in micros]) == 1
    return even or _explained(micros) is not None or _by_row(micros)


def _differ_in_step(step: int, micros: Sequence[MicroPass]) -> Diagnostic | None:
    within = [micro for micro in micros if micro.is_uneven]
    ratio = _spread([(micro.weight, micro.tolerance) for micro in micros])
    if ratio == 1 and not within:
        return None
    where = f"in step {step + 1}"
    if _by_row(micros):
        message = (
            f"{where} each token weighs 1/n of the n learnt tokens of its row: every row counts the"
            " same, whatever its length"
        )
        help = "nothing, if a mean over rows is meant; otherwise divide by the tokens of the step"
        return found(DIFFER, message, help=help, severity="note")
    if within:
        micro = within[0]
        message = (
            f"{where} tokens of one micro-batch have weights from {micro.low:.4g} to"
            f" {micro.high:.4g}: the loss weighs tokens, or rows"
        )
        return found(DIFFER, message, help="nothing, if that is meant", severity="note")
    counts = f"{len(micros)} micro-batches"
    ranks = len({micro.rank for micro in micros})
    counts += f" on {ranks} ranks" if ranks > 1 else ""
    summary = f"{where} some tokens weigh {ratio:.4f} times others, over {counts}"
    if explained := _explained(micros):
        by, help = explained
        return found(DIFFER, f"{summary}: each weighs {by}", help=help)
    message = f"{summary}; by no rule that is known here"
    return found(DIFFER, message, severity="warning")


def _differ(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    if facts.is_judged:
        return CheckOutcome(not_run=f"{facts.judged}: rows are judged, not copied")
    found_in = []
    for step, micros in _steps(facts):
        if all(micro.measured for micro in micros) and (one := _differ_in_step(step, micros)):
            found_in.append(one)
    if not any(micro.measured for micro in read_micros(facts)):
        return CheckOutcome(
            not_run="the model is certain of every token: no weight can be measured"
        )
    looked_at: dict[Unit, int] = {
        "micro-batches": len(read_micros(facts)),
        "tokens": sum(micro.measured for micro in read_micros(facts)),
    }
    if len(read_micros(facts)) == 1 and not found_in:
        return CheckOutcome(looked_at=looked_at, measured={"micro-batches": 1})
    graver = sorted(found_in, key=lambda one: ("error", "warning", "note").index(str(one.severity)))
    return CheckOutcome(
        tuple(graver[:1]), looked_at=looked_at, measured={"steps": len(_steps(facts))}
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """The number of times that a step's gradient is that of the mean over its tokens."""

    step: int
    times: float
    tolerance: float
    micro_batches: int
    """The micro-batches of each rank."""
    of_loss: float
    """Times of the loss alone, where the engine takes the mean over ranks and no more."""
    norm: float | None
    """The size of the whole gradient at the optimizer, where the engine's part is known."""
    scaled: float
    """Times of the loss, with what a scaler has multiplied it by."""
    scalers: tuple[float, ...]
    """The factors of the loss scalers alive."""

    def is_(self, times: float) -> bool:
        return abs(self.times / times - 1) <= self.tolerance


def _scale_of_step(facts: Facts, step: int, micros: Sequence[MicroPass]) -> _Scale | None:
    """Return how many times the gradient is that of the mean over all tokens."""
    if not all(micro.total is not None for micro in micros):
        return None
    total = sum(micro.total or 0.0 for micro in micros)
    tolerance = max(micro.tolerance for micro in micros) * 2
    if facts.world != len({micro.rank for micro in micros}):
        return None
    each = len(micros) // max(1, len({micro.rank for micro in micros}))
    of_loss, arrival = total / facts.world, engine_of(facts, step)
    scaled = of_loss * float(micros[0].fact.get("loss_scale") or 1)
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    scalers = tuple({float(by) for one in arrived for by in one.get("scalers") or ()} - {1.0})
    times, norm = of_loss, None
    if arrival is not None and arrival.misfit <= arrival.tolerance:
        times, norm = total * arrival.factor, norm_of(facts, step)
        tolerance += arrival.tolerance
    return _Scale(step, times, tolerance, each, of_loss, norm, scaled, scalers)


def _scales(facts: Facts) -> list[_Scale]:
    found = []
    for step, micros in _steps(facts):
        if (scale := _scale_of_step(facts, step, micros)) is not None:
            found.append(scale)
    return found


def _no_scale(facts: Facts) -> str | None:
    """Return why the scale of gradients cannot be determined."""
    if why := nothing_read(facts):
        return why
    if facts.is_judged:
        return f"{facts.judged}: their sum is no mean"
    if shared := facts.not_data_parallel:
        return f"ranks share their rows ({shared})"
    return "each rank has another gradient" if gradients_differ(facts) else None


def _scaled(facts: Facts) -> CheckOutcome:
    if why := _no_scale(facts):
        return CheckOutcome(not_run=why)
    scales = _scales(facts)
    if not scales or any(one.times < 0 for one in scales):
        unmeasured = "not every learnt token of a step could be measured"
        return CheckOutcome(not_run="the gradient has the other sign" if scales else unmeasured)
    measured = {f"step {one.step + 1}": f"{one.times:.6g}" for one in scales}
    finding = (
        _too_large(facts, scales)
        or _too_small(facts, scales)
        or _of_scaler(scales)
        or _short_step(scales, [one.times for one in scales])
        or _other_scale(scales)
    )
    if finding or not _is_clipped(scales):
        looked_at: dict[Unit, int] = {"steps": len(scales)}
        found_in = (finding,) if finding else ()
        return CheckOutcome(found_in, looked_at=looked_at, measured=measured)
    if _is_clipped_alone(facts) and (
        finding := _too_large_unclipped(facts, scales)
        or _short_step(scales, [one.of_loss for one in scales])
    ):
        return CheckOutcome((finding,), measured=measured)
    why = (
        f"every step is clipped, and weights sum to {scales[0].of_loss:.4g} on a rank: what divides"
        " gradients before that is not known"
    )
    return CheckOutcome(not_run=why, measured=measured)


def _is_clipped(scales: Sequence[_Scale]) -> bool:
    """Return whether clipping hides the scale: gradients of one size, of a loss that is no mean."""
    norms = [one.norm for one in scales if one.norm]
    if len(norms) < max(2, len(scales)) or max(norms) > (1 + 1e-4) * min(norms):
        return False
    same = all(one.is_(scales[0].times) for one in scales)
    return not same and any(abs(one.of_loss - 1) > one.tolerance for one in scales)


def _is_clipped_alone(facts: Facts) -> bool:
    """Return whether nothing but clipping wrote gradients after the backward pass: no division.

    Of several ranks each has the sum or mean of all written into its own, once.
    """
    once = 1 if facts.world == 1 else 2
    return all(one.get("changes") == once for one in facts.of("arrived"))


def _too_large_unclipped(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    each = scales[0].micro_batches
    names = {each * facts.world: "passes", each: "micro-batches"}
    for times, name in names.items():
        if times > 1 and all(abs(one.of_loss / times - 1) <= one.tolerance for one in scales):
            message = (
                f"the loss of every step is {times} times the mean over its tokens: it has {times}"
                f" {name}, and is not divided by them; each step is clipped, which hides it"
            )
            return found(_SCALED, message, severity="warning")
    return None


def _too_large(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    for one in scales:
        each = one.micro_batches
        names = {each * facts.world: "passes", facts.world: "ranks", each: "micro-batches"}
        for times, name in names.items():
            if times > 1 and one.is_(times):
                message = (
                    f"the gradient of step {one.step + 1} is {one.times:.4g} times that of the mean"
                    f" over its tokens: it has {times} {name}, and is not divided by them"
                )
                return found(_SCALED, message)
    return None


def _too_small(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    names = {scales[0].micro_batches: "micro-batches", facts.world: "ranks"}
    for times, name in names.items():
        # clipping, which makes a gradient smaller too, differs from step to step
        if times > 1 and len(scales) > 1 and all(one.is_(1 / times) for one in scales):
            message = (
                f"the gradient of every step is 1/{times} of that of the mean over its tokens: it"
                f" has {times} {name}, and is divided by them twice"
            )
            return found(_SCALED, message)
    return None


def _short_step(scales: Sequence[_Scale], times: Sequence[float]) -> Diagnostic | None:
    """Look for a step of fewer micro-batches, divided by those that the other steps have."""
    most = max(one.micro_batches for one in scales)
    for one, here in zip(scales, times, strict=True):
        share = one.micro_batches / most
        is_right = abs(here - 1) <= one.tolerance
        if share == 1 and not is_right:
            return None
        if share < 1 and not is_right and abs(here / share - 1) <= one.tolerance:
            found_at = one
            break
    else:
        return None
    whole = [here for one, here in zip(scales, times, strict=True) if one.micro_batches == most]
    if any(abs(here - 1) > found_at.tolerance for here in whole):
        return None
    message = (
        f"the gradient of step {found_at.step + 1} is {found_at.micro_batches}/{most} of that of"
        f" the mean over its tokens: it has {found_at.micro_batches} micro-batches, and is divided"
        f" by the {most} that other steps have"
    )
    return found(_SCALED, message, help=_SHORT_HELP, severity="warning")


def _of_scaler(scales: Sequence[_Scale]) -> Diagnostic | None:
    """Compare the scale with those of loss scalers, by which a gradient is to be divided once."""
    first = scales[0]
    for by in first.scalers:
        if any(by not in one.scalers for one in scales):
            continue
        scaler = f"a loss scaler multiplies by {by:g}"
        where = f"in {len(scales)} steps the gradient is {first.times:.4g} times that of the mean"
        if all(one.is_(by) for one in scales):
            twice = all(abs(one.scaled / by**2 - 1) <= one.tolerance for one in scales)
            wrong = "does so twice" if twice else "nothing divides by it before the step"
            return found(_SCALED, f"{where}: {scaler}, and {wrong}", help=_SCALER_HELP)
        if all(one.is_(1 / by) for one in scales):
            return found(
                _SCALED,
                f"{where}: {scaler}, and gradients are divided by it twice",
                help=_SCALER_HELP,
            )
        limits = [one.norm * by for one in scales if one.norm]
        if len(limits) < max(2, len(scales)) or max(limits) > (1 + 1e-4) * min(limits):
            continue
        if _is_round(limits[0]) and not _is_round(limits[0] / by):
            message = (
                f"every step is clipped to {limits[0]:.4g} and then divided by {by:g}, which a loss"
                f" scaler had multiplied it by: gradients are of size {limits[0] / by:.3g}"
            )
            help = "call scaler.unscale_(optimizer) before gradients are clipped"
            return found(_SCALED, message, help=help, severity="warning")
    return None


def _is_round(value: float) -> bool:
    """Return whether somebody may have written a number down: it has two digits."""
    return abs(float(f"{value:.2g}") / value - 1) < 1e-4


def _other_scale(scales: Sequence[_Scale]) -> Diagnostic | None:
    first = scales[0]
    if any(not one.is_(first.times) for one in scales) or first.is_(1):
        return None
    if first.times < 1 and len(scales) < 2:
        return None
    message = f"the gradient is {first.times:.4g} times that of the mean over a step's tokens"
    help = "nothing, if the loss is meant to be so; AdamW hardly sees it, clipping does"
    return found(_SCALED, message, help=help, severity="note")


CHECKS = (
    WatchCheck(DIFFER, "learnt", _differ, {"micro-batches": 1, "tokens": 1}),
    WatchCheck(_SCALED, "learnt", _scaled, {"steps": 1}),
)
