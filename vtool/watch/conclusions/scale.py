"""The gradient of each step, against that of the mean over its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.engine import BFLOAT16_ROUNDING, engine_of, norm_of
from vtool.watch.conclusions.gone import zeroed_before_step
from vtool.watch.conclusions.layers import is_scaled_in_part, whole_change
from vtool.watch.conclusions.learnt import nothing_read
from vtool.watch.conclusions.replicas import gradients_differ
from vtool.watch.conclusions.weights import is_even, micros_by_step
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass, not_null

_SCALED = Rule(
    name="gradient-scaled",
    code="VT907",
    summary="The gradient of a step is not that of the mean over its tokens, but a multiple of it.",
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

_SCALER_HELP = (
    "scaler.scale(loss).backward() for each loss, and scaler.step(optimizer) for each step"
)
_SHORT_HELP = (
    "divide by the micro-batches that the step has: the last step of an epoch may have fewer"
    " (transformers#39659); or leave the rest of the epoch out"
)
_LOST_HELP = (
    "divide by the tokens that are learnt; look for micro-batches that are skipped between forward"
    " and backward, or whose loss is multiplied by zero"
)
_MOST_NOISE = 0.25
_SILENT = ("no backward pass", "no position has a gradient")
"""Reasons why a pass taught nothing: it may have been counted all the same."""


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
    same_norm: float
    """The part by which norms may differ that are clipped to one: three products are rounded."""
    scaled: float
    """Times of the loss, with what a scaler has multiplied it by."""
    of: str
    """The gradient that the times are of, in words."""
    at: str
    """The tensors at which its way was seen, in words; empty where it was not."""
    has_arrived: bool
    """True where the way of the gradient to the optimizer was seen."""
    silent: int
    """Passes in which nothing is learnt."""
    token: float | None
    """The weight of each token, where all weigh the same; None where they differ."""
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
    passes = [one for one in facts.of("micro") if int(one["step"]) == step]
    if facts.world != len({int(one["rank"]) for one in passes}):
        return None
    each = len(micros) // max(1, len({micro.rank for micro in micros}))
    of_loss, arrival = total / facts.world, whole_change(facts, step)
    scaled = of_loss * float(micros[0].fact["loss_scale"])
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    scalers = tuple({float(by) for one in arrived for by in one["scalers"]} - {1.0})
    same = not any(micro.is_uneven for micro in micros) and is_even(micros)
    token = median(micro.weight for micro in micros) if same else None
    times, norm, of, at = of_loss, None, "the gradient", ""
    if arrival is not None and arrival.misfit <= arrival.tolerance:
        times, norm = total * arrival.factor, norm_of(facts, step)
        tolerance += arrival.tolerance
        inner = engine_of(facts, step, inner=True)
        alone = inner is None and engine_of(facts, step) is not None
        at = _measured_at(facts, step)
        if alone and abs(times / of_loss - 1) > tolerance:
            of = f"the gradient of {facts.model['norm']}.weight, the only one that was looked at,"
    silent = sum(one["why"] in _SILENT for one in passes)
    return _Scale(
        step=step,
        times=times,
        tolerance=tolerance,
        micro_batches=each,
        of_loss=of_loss,
        norm=norm,
        same_norm=3 * BFLOAT16_ROUNDING if "bfloat16" in not_null(facts.model, "dtype") else 1e-4,
        scaled=scaled,
        of=of,
        at=at,
        has_arrived=arrival is not None,
        silent=silent,
        token=token,
        scalers=scalers,
    )


def _measured_at(facts: Facts, step: int) -> str:
    """Say at which norms the way of the gradient was seen, or at how many other tensors."""
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    names = [each["norm_name"] for one in arrived[:1] for each in (one, one["inner"]) if each]
    if engine_of(facts, step) is not None and any(names):
        return f" (measured at {' and '.join(str(name) for name in names if name)})"
    return f" (measured at {len(arrived[0]['layers'] or ())} tensors)" if arrived else ""


def _scales(facts: Facts) -> list[_Scale]:
    found = []
    for step, micros in micros_by_step(facts).items():
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
    if zeroed_before_step(facts):
        return "no gradient comes to the optimizer"
    return "each rank has another gradient" if gradients_differ(facts) else None


def _not_comparable(scales: Sequence[_Scale]) -> str | None:
    if not scales:
        return "not every learnt token of a step could be measured"
    noise = max(one.tolerance for one in scales)
    if noise > _MOST_NOISE:  # it would be that of any number of micro-batches
        return f"the scale is known to {noise:.0%} alone"
    return "the gradient has the other sign" if any(one.times < 0 for one in scales) else None


def _scaled(facts: Facts) -> CheckOutcome:
    scales: list[_Scale] = []
    why = _no_scale(facts) or _not_comparable(scales := _scales(facts))
    if why:
        return CheckOutcome(not_run=why)
    measured = {f"step {one.step + 1}": f"{one.times:.6g}" for one in scales}
    finding = (
        _too_large(facts, scales)
        or _too_small(facts, scales)
        or _of_scaler(scales)
        or _short_step(scales, [one.times for one in scales])
        or _within_accumulation(facts, scales)
        or _rows_lost(facts, scales)
        or _other_scale(scales)
    )
    if not finding and (unseen := [one.step for one in scales if not one.has_arrived]):
        why = (
            f"the loss of step {unseen[0] + 1} is {scales[0].of_loss:.4g} times a mean over its"
            " tokens, and what came of its gradient on the way to the optimizer was not seen"
        )
        return CheckOutcome(not_run=why, measured=measured)
    is_clipped = _is_clipped(scales)
    if not finding and not is_clipped:
        finding = _sum_of_tokens(scales) or _varies(facts, scales)
        if finding and finding.severity == "note" and is_scaled_in_part(facts):
            why = "layers are scaled apart: sizes of the whole gradient do not show clipping"
            return CheckOutcome(not_run=why, measured=measured)
    if finding or not is_clipped:
        looked_at: dict[Unit, int] = {"steps": len(scales)}
        noise = max(one.tolerance for one in scales)
        return CheckOutcome(
            (finding,) if finding else (),
            not_run=facts.hooked,
            looked_at=looked_at,
            noise=noise,
            measured=measured,
        )
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
    if len(norms) < max(2, len(scales)) or max(norms) > (1 + scales[0].same_norm) * min(norms):
        return False
    same = all(one.is_(scales[0].times) for one in scales)
    return not same and any(abs(one.of_loss - 1) > one.tolerance for one in scales)


def _is_clipped_alone(facts: Facts) -> bool:
    """Return whether nothing but clipping wrote gradients after the backward pass: no division.

    Of several ranks each has the sum or mean of all written into its own, once.
    """
    once = 1 if facts.world == 1 else 2
    return all(one["changes"] == once for one in facts.of("arrived"))


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
                    f"in step {one.step + 1} {one.of} is {one.times:.4g} times that of the mean"
                    f" over its tokens: it has {times} {name}, and is not divided by them"
                )
                return found(_SCALED, message)
    return None


def _too_small(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    names = {scales[0].micro_batches: "micro-batches", facts.world: "ranks"}
    if any(one.silent for one in scales) or _explained_by_clipping(scales):
        return None
    for times, name in names.items():
        # clipping, which makes a gradient smaller too, differs from step to step
        if times > 1 and len(scales) > 1 and all(one.is_(1 / times) for one in scales):
            message = (
                f"in every step {scales[0].of} is 1/{times} of that of the mean over its tokens: it"
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
    if found_at.silent:
        message = (
            f"the gradient of step {found_at.step + 1} is {found_at.micro_batches}/{most} of that"
            f" of the mean over its tokens: it has {most} micro-batches, and"
            f" {found_at.micro_batches} with a label that is learnt; the loss is divided by all of"
            " them (a mean over no label is not a number)"
        )
        return found(_SCALED, message, help=_LOST_HELP, severity="warning")
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


def _in_words(values: Sequence[float]) -> str:
    """Return numbers as text, the first few of them."""
    return ", ".join(f"{value:.4g}" for value in values[:4]) + (", …" if len(values) > 4 else "")


def _within_accumulation(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    """Look for steps that accelerate holds for the middle of an accumulation."""
    early = [one for one in facts.of("arrived") if one["accumulating"]]
    if not early or all(one.is_(1) for one in scales):
        return None
    looked = len(facts.of("arrived"))
    message = (
        f"{len(early)} of {looked} steps are made while accelerate still accumulates gradients:"
        f" the gradient is {_in_words([one.times for one in scales])} times that of the mean over"
        " a step's tokens, the loss is divided by micro-batches that the step does not have"
    )
    help = "prepare the optimizer too: model, optimizer = accelerator.prepare(model, optimizer)"
    return found(_SCALED, message, help=help, severity="warning")


def _rows_lost(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    """Look for passes that teach nothing and are counted in what the loss is divided by."""
    short = [one for one in scales if one.of_loss < 1 - one.tolerance]
    teaching = {micro.rank for micro in facts.micros if micro.supervised}
    if len(teaching) < facts.world:  # that is another rule's
        return None
    # those in which every pass teaches something are the mean's
    if any(not one.silent for one in short) or any(one.of_loss > 1.05 for one in scales):
        return None
    lost = {}
    for one in short:
        passes = [fact for fact in facts.of("micro") if int(fact["step"]) == one.step]
        silent = [fact for fact in passes if fact["why"] in _SILENT]
        lost[one.step] = len(silent), len(passes), str(silent[0]["why"])
    if not lost:
        return None
    silent_passes, of, why = next(iter(lost.values()))
    message = (
        f"in {len(lost)} of {len(scales)} steps passes teach nothing, such as {silent_passes} of"
        f" {of} in step {next(iter(lost)) + 1} ({why}), and the loss is divided by their tokens as"
        f" well: the gradient is {_in_words([one.of_loss for one in scales])} times that of the"
        " mean over the tokens that are learnt"
    )
    return found(_SCALED, message, help=_LOST_HELP, severity="warning")


def _sum_of_tokens(scales: Sequence[_Scale]) -> Diagnostic | None:
    """Look for a loss that is divided by a constant, so that a step weighs as its tokens do."""
    weights = [one.token for one in scales if one.token]
    tolerance = max(one.tolerance for one in scales)
    of_loss = [one.of_loss for one in scales]
    if len(weights) < max(2, len(scales)) or max(of_loss) / min(of_loss) - 1 <= tolerance:
        return None
    if max(weights) / min(weights) - 1 > tolerance:
        return None
    weight = weights[0]
    by = "" if abs(weight - 1) <= tolerance else f", divided by {1 / weight:.4g}"
    if weight > 1 + tolerance:
        by = f", multiplied by {weight:.4g}"
    message = (
        f"the loss is a sum over tokens{by}: a token weighs the same in every step, and the"
        f" gradients are {_in_words([one.times for one in scales])} times that of the mean over a"
        " step's tokens"
    )
    help = "nothing, if that is meant; a step with more tokens is a larger one, before clipping"
    return found(_SCALED, message, help=help, severity="note")


def _varies(facts: Facts, scales: Sequence[_Scale]) -> Diagnostic | None:
    """Look for a scale that is another one in each step, and that clipping does not explain."""
    # where tokens weigh differently, that is why the loss is no mean, and another rule's
    of_weights = all(
        one.is_(1) or (one.token is None and abs(one.times / one.of_loss - 1) <= one.tolerance)
        for one in scales
    )
    if of_weights or _explained_by_clipping(scales):
        return None
    loses = any(one.of_loss < 1 - one.tolerance for one in scales) and not any(
        one.of_loss > 1 + one.tolerance or one.token is None for one in scales
    )
    of = [one.of_loss if loses else one.times for one in scales]
    message = (
        f"the gradient{scales[0].at} is {_in_words(of)} times that of the mean over a step's"
        " tokens, another number in each step, and by no rule that is known here"
    )
    thrown = [str(one["why"]) for one in facts.of("skipped") if "thrown away" in str(one["why"])]
    if loses and thrown:
        message += f"; {thrown[0]}"
    help = (
        "look for rows or micro-batches that are counted in the loss's divisor and not learnt"
        if loses
        else "nothing, if weights of tokens or of steps are meant to be so"
    )
    severity = "warning" if loses and len(scales) > 1 else "note"
    return found(_SCALED, message, help=help, severity=severity)


def _explained_by_clipping(scales: Sequence[_Scale]) -> bool:
    """Return whether each step is the mean's, or smaller and of the size that steps are cut to."""
    cut = [one for one in scales if not one.is_(1)]
    if not cut or any(abs(one.of_loss - 1) > one.tolerance or one.times > 1 for one in cut):
        return False
    norms = [one.norm for one in cut if one.norm]
    if len(norms) < len(cut):
        return False
    limit, apart = max(norms), scales[0].same_norm
    if any(norm < limit * (1 - apart) for norm in norms):
        return False
    others = [one.norm for one in scales if one.is_(1) and one.norm]
    return all(norm <= limit * (1 + apart) for norm in others)


def _other_scale(scales: Sequence[_Scale]) -> Diagnostic | None:
    first = scales[0]
    if any(not one.is_(first.times) for one in scales) or first.is_(1):
        return None
    if first.times < 1 and (len(scales) < 2 or _explained_by_clipping(scales)):
        return None
    times = sorted(one.times for one in scales)
    low, high = f"{times[0]:.4g}", f"{times[-1]:.4g}"
    said = low if low == high else f"{low} to {high}"
    message = f"{first.of}{first.at} is {said} times that of the mean over a step's tokens"
    help = "nothing, if the loss is meant to be so; AdamW hardly sees it, clipping does"
    return found(_SCALED, message, help=help, severity="note")


CHECKS = (WatchCheck(_SCALED, "learnt", _scaled, {"steps": 1}, most_noise=_MOST_NOISE),)
