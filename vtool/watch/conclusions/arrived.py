"""The gradients as the optimizer gets them, and the step that it takes with them."""

import math
from collections.abc import Sequence

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.clipped_ranks import clipped_ranks
from vtool.watch.conclusions.engine import (
    BFLOAT16_ROUNDING,
    GradientChange,
    engine_of,
    untrained_norm,
)
from vtool.watch.conclusions.rates import (
    never_had_rate,
    on_the_way,
    steps_without_moments,
)
from vtool.watch.conclusions.replicas import (
    gradients_differ,
    names_apart,
    not_comparable,
    shards_beside,
)
from vtool.watch.conclusions.shards import HELP as SHARDS_HELP
from vtool.watch.conclusions.shards import shards_apart
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

RANKS_DIFFER = Rule(
    name="gradients-differ-between-ranks",
    code="VT921",
    summary=(
        "Ranks that hold the same weights have different gradients when the optimizer steps, or"
        " scale their shards of one gradient apart."
    ),
    why=(
        "Each rank then trains a model of its own, and the one that is saved has learnt a part of"
        " the rows: a rank without images that left out a reduction, gradients changed on one rank"
        " alone (verl#5881). Shards that each rank clips by their own norm alone make one gradient"
        " that no rows have left."
    ),
    bad="with model.no_sync(): for every micro-batch, the last one too",
    good="no_sync() for all micro-batches but the last",
    fix=(
        "Look at what a rank does between backward and step: no_sync, a branch that depends on its"
        " rows, a parameter that DDP is set to ignore."
    ),
)
OTHER_GRADIENT = Rule(
    name="gradient-of-other-rows",
    code="VT922",
    summary="The gradient that the optimizer gets is not what this step's micro-batches left.",
    why=(
        "Gradients of an earlier step are still in it, or a micro-batch was lost on the way: the"
        " model is updated by rows that it was not shown, or not by those that it was."
    ),
    bad="loss.backward(); optimizer.step(), without optimizer.zero_grad()",
    good="optimizer.zero_grad() before the first micro-batch of each step",
    fix=(
        "Call zero_grad() once, between a step and the next forward pass; if something changes"
        " gradients on purpose (noise, clipping of single elements), nothing is wrong."
    ),
)
NOT_FINITE = Rule(
    name="gradient-not-finite",
    code="VT923",
    summary="The optimizer steps with a gradient that is infinite or not a number.",
    why=(
        "The weights are not numbers from then on; the printed loss may hide it (transformers"
        " replaces a NaN in its log by the mean of the others)."
    ),
    bad="optimizer.step() after a backward pass that overflowed",
    good="a step that is left out when the norm of the gradient is not finite",
    fix="Look for the row of that step; leave out steps whose norm is not finite.",
)
NOT_ADAM = Rule(
    name="step-not-the-optimizers",
    code="VT924",
    summary="Weights after a step are not what AdamW makes of this gradient.",
    why=(
        "Something else than the optimizer changes weights, or it does not use the learning rate,"
        " betas and decay that its groups say."
    ),
    bad="a hook after the step that scales weights, or an optimizer whose betas were dropped",
    good="weights that only the optimizer changes",
    fix="Look at hooks of the optimizer, at wrappers around it, and at what is loaded in between.",
)
LOST = Rule(
    name="updates-lost-in-rounding",
    code="VT925",
    summary="Many weights do not move, though they have a gradient and an update: it rounds away.",
    why=(
        "In bfloat16 an update below 1/256 of a weight is lost. AdamW on 16-bit weights trains only"
        " those that are small, and the loss still falls."
    ),
    bad="model.to(torch.bfloat16) and AdamW at a learning rate of 1e-5",
    good="weights in float32 with bf16=True (autocast), or stochastic rounding",
    fix=(
        "Keep weights in float32 and compute in bfloat16, or train adapters in float32. With"
        " stochastic rounding nothing is lost on average: then leave this."
    ),
    severity="warning",
)
NO_GROUP = Rule(
    name="parameter-in-no-group",
    code="VT927",
    summary="A parameter requires a gradient, and no group of the optimizer has it.",
    why="It is never trained, and nothing says so: gradients are computed and thrown away.",
    bad="AdamW([p for n, p in model.named_parameters() if 'layers' in n])",
    good="AdamW([p for p in model.parameters() if p.requires_grad])",
    fix="Give it to the optimizer, or freeze it with requires_grad_(False).",
)
_LEAST, _REST = 0.005, 0.02
"""The part of a step that is left, and the part of that which rounding may have moved."""
_CLIPPED_FIRST = (
    "reduce gradients over ranks first, and clip them then, by one norm that is the same on each"
    " rank (under DDP: after the backward pass of the step's last micro-batch)"
)
_GUARDED = (
    "a guard leaves these steps out: look for what makes their loss infinite or no number (a row"
    " without labels, an overflow in 16 bits, a logarithm of 0)"
)
_AVERAGE = "keep averages apart, and swap them in for evaluation alone"
_NOT_REDUCED = (
    "parameters that fully_shard ignores (ignored_params) are whole on each rank, and nobody"
    " reduces their gradients: all-reduce them before the step, or do not ignore them"
)
_MADE_LATER = (
    "make the optimizer after the model is sharded: fully_shard() replaces parameters by others"
)
_WRITES = "nothing, if weights are projected, pruned or averaged on purpose"


def _thrown_away(facts: Facts) -> tuple[int, int] | None:
    """Return how many passes of a step left nothing, and of how many, if some did in every step.

    One step alone may be one that a loss scaler gave up.
    """
    why = [str(one.get("why")) for one in facts.of("skipped") if one.get("what") == "learnt"]
    steps = {(micro.step, micro.rank) for micro in facts.micros}
    if len(steps) < 2 or not any("thrown away" in one for one in why):
        return None
    lost = []
    for step, rank in steps:
        here = [
            [one for one in facts.of(kind) if (int(one["step"]), int(one["rank"])) == (step, rank)]
            for kind in ("rows", "micro")
        ]
        lost.append((len(here[0]) - len(here[1]), len(here[0])))
    return min(lost) if min(lost)[0] > 0 else None


def _passes_lost(facts: Facts) -> Diagnostic | None:
    """Look for passes that left nothing in every step."""
    if not (lost := _thrown_away(facts)):
        return None
    message = (
        f"in every step the gradients of {lost[0]} of {lost[1]} passes were thrown away before"
        " the optimizer saw them"
    )
    if not _only_not_finite(facts):
        return found(OTHER_GRADIENT, message)
    message += ", each time with some that are infinite or no number"
    return found(OTHER_GRADIENT, message, help=_GUARDED, severity="warning")


def _only_not_finite(facts: Facts) -> bool:
    """Return whether gradients were thrown away where some of them were not finite, and nowhere."""
    why = [str(one["why"]) for one in facts.of("skipped") if one["what"] == "learnt"]
    thrown = [one for one in why if "thrown away" in one]
    return all("not finite" in one for one in thrown)


def not_arrived(facts: Facts) -> str | None:
    """Return why gradients were not looked at where they arrive, or None."""
    if errors := facts.errors_of("arrived"):
        return errors[0]
    if not facts.of("arrived"):
        return facts.skipped("arrived") or "no step was reached"
    return None


def first_names(names: Sequence[str], count: int) -> str:
    """Return the first names, and how many of `count` are left."""
    rest = count - len(names[:3])
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def _ranks_differ(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts):
        return CheckOutcome(not_run=why)
    arrived = facts.of("arrived")
    if len({one["rank"] for one in arrived}) < 2:
        return CheckOutcome(not_run="one rank alone has this model")
    if apart := shards_apart(facts):
        return CheckOutcome((found(RANKS_DIFFER, apart, help=SHARDS_HELP),))
    if why := facts.no_gradients or not_comparable(facts, "arrived", "gradients"):
        return CheckOutcome(not_run=why)
    for step, ones in facts.by_step("arrived"):
        if (names := names_apart(facts, ones)) is None:
            continue
        named = f": {first_names(names, len(names))}" if names else ""
        digests = len({str(one["digest"]) for one in ones})
        message = f"in step {step + 1} {len(ones)} ranks have {digests} gradients{named}"
        help = _NOT_REDUCED if shards_beside(facts, ones) else None
        return CheckOutcome((found(RANKS_DIFFER, message, help=help),))
    looked_at: dict[Unit, int] = {
        "steps": len({one["step"] for one in arrived}),
        "ranks": len({one["rank"] for one in arrived}),
        "tensors": min(len(one["tensors"]) for one in arrived),
    }
    return CheckOutcome(looked_at=looked_at, not_run=shards_beside(facts, arrived))


def _other_gradient(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts):
        return CheckOutcome(not_run=why)
    if thrown := _passes_lost(facts):
        return CheckOutcome((thrown,))
    if gradients_differ(facts) or shards_apart(facts):
        return CheckOutcome(not_run="each rank has another gradient")
    engines = {step: engine_of(facts, step) for step, _ in facts.by_step("arrived")}
    known = {step: one for step, one in engines.items() if one and not one.by_value}
    if not known:
        norm = untrained_norm(facts)
        share = facts.not_data_parallel
        why = (
            f"no optimizer has {norm}"
            if norm
            else facts.skipped("engine")
            or (f"ranks share the model ({share})" if share else None)
            or "the final norm's gradient could not be recomputed"
        )
        return CheckOutcome(not_run=why)
    measured = {f"step {step + 1}": f"{one.misfit:.2g}" for step, one in known.items()}
    for step, one in known.items():
        if one.misfit <= one.tolerance:
            continue
        return CheckOutcome(
            (_away(facts, step, one),), looked_at={"steps": len(known)}, measured=measured
        )
    return CheckOutcome(
        looked_at={"steps": len(known)},
        noise=max(one.noise for one in known.values()),
        measured=measured,
    )


def _away(facts: Facts, step: int, engine: GradientChange) -> Diagnostic:
    arrived = [fact for fact in facts.of("arrived") if int(fact["step"]) == step]
    before = any(fact.get("gradients_before") for fact in arrived)
    if not before and (apart := clipped_ranks(facts, step, engine)):
        return found(OTHER_GRADIENT, str(apart), help=_CLIPPED_FIRST)
    message = (
        f"in step {step + 1} the final norm's gradient is {engine.misfit:.2g} away from any"
        f" multiple of what the micro-batches left (rounding allows {engine.tolerance:.1g})"
    )
    if before:
        message += "; gradients were there before its first forward pass"
    elif facts.world > 1 and engine.misfit <= BFLOAT16_ROUNDING * math.sqrt(facts.world):
        coarse = [str(one["reduced_in"]) for one in arrived] + [str(facts.model["dtype"])]
        leaves = "leaves" if any("16" in dtype for dtype in coarse) else "would leave"
        message += f"; communication in 16 bits {leaves} as much"
        help = "look at hooks of the communication (bf16_compress_hook), and at what clips by rank"
        return found(OTHER_GRADIENT, message, help=help, severity="note")
    return found(OTHER_GRADIENT, message)


def _not_finite(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts) or facts.no_gradients:
        return CheckOutcome(not_run=why)
    for one in facts.of("arrived"):
        if names := not_null(one, "nonfinite"):
            count = int(one["n_nonfinite"])
            message = (
                f"step {int(one['step']) + 1}, rank {one['rank']}: {first_names(names, count)}"
            )
            return CheckOutcome((found(NOT_FINITE, message),))
    tensors = min(len(one["tensors"]) for one in facts.of("arrived"))
    steps = len({int(one["step"]) for one in facts.of("arrived")})
    return CheckOutcome(looked_at={"steps": steps, "tensors": tensors})


def _writes_between(facts: Facts) -> dict[int, Fact | None]:
    """Return the writes before each step that was looked at, or followed; None: no write."""
    steps: dict[int, list[Fact | None]] = {}
    for one in (*facts.of("arrived"), *facts.of("followed")):
        if one["undone"]:
            steps.setdefault(int(one["step"]), []).append(one["undone"]["written"])
    return {
        step: ones[0] if all(one and one["tensors"] * 2 >= one["of"] for one in ones) else None
        for step, ones in sorted(steps.items())
    }


def _written(facts: Facts) -> Diagnostic | None:
    """Look for something that takes a part of each step back, or writes weights otherwise.

    An average that begins as a copy of the weights changes nothing where it is written first.
    """
    looked = _writes_between(facts)
    writes = [one for one in looked.values() if one]
    if len(writes) < 2 or not all([*looked.values()][1:]):
        return None
    steps = f"before each of {len(writes)} steps"
    if len(writes) < len(looked):
        steps += f" from step {[*looked][1] + 1} on"
    if all(one["rest"] <= _REST and _LEAST < one["share"] < 1 - _LEAST for one in writes):
        shares = [float(one["share"]) for one in writes]
        message = (
            f"{steps}, of what the last one changed only {min(shares):.1%} is left: an average is"
            " written back into the weights that train"
        )
        return found(NOT_ADAM, message, help=_AVERAGE, severity="warning")
    message = f"{steps} something other than the optimizer writes weights"
    return found(NOT_ADAM, message, help=_WRITES, severity="note")


def _written_at_times(facts: Facts) -> str | None:
    """Return before how many steps weights were written, where it is some and not all of them."""
    looked = [*_writes_between(facts).values()]
    writes = sum(map(bool, looked))
    if not writes or (writes > 1 and all(looked[1:])):
        return None
    return (
        f"before {writes} of {len(looked)} steps something other than this optimizer writes"
        " weights: another one, an average every few steps, a trial"
    )


def _begins_anew(facts: Facts) -> Diagnostic | None:
    """Look for an optimizer whose moments are thrown away before each step."""
    if not (steps := steps_without_moments(facts)):
        return None
    message = f"in each of {steps} steps AdamW begins anew, without the moments of the one before"
    help = "make the optimizer once, before the loop, and keep its state"
    return found(NOT_ADAM, message, help=help, severity="warning")


def _not_adam(facts: Facts) -> CheckOutcome:
    references = [
        (one, name, tensor)
        for one in facts.of("stepped")
        for name, tensor in (one["reference"] or {}).items()
        if tensor["off"] is not None
    ]
    written = _written(facts)
    if not references:
        return CheckOutcome((written,) if written else (), not_run=_no_reference(facts))
    worst = max(references, key=lambda each: each[2]["off"])
    off = float(worst[2]["off"])
    tensors = len({name for _, name, _ in references})
    measured = {"ulps": f"{off:.3g}", "tensors": tensors}
    if off <= 16 and (why := never_had_rate(facts)):
        return CheckOutcome((written,) if written else (), not_run=why, measured=measured)
    if off <= 16:
        one = _begins_anew(facts) or written
        steps = len({int(each["step"]) for each, _, _ in references})
        looked_at: dict[Unit, int] = {"steps": steps, "tensors": tensors}
        at_times = _written_at_times(facts)
        return CheckOutcome(
            (one,) if one else (), not_run=at_times, looked_at=looked_at, measured=measured
        )
    message = (
        f"{worst[1]} is {off:.3g} units in the last place away from AdamW's step"
        f" {int(worst[0]['step']) + 1} in float64 (rounding allows 16)"
    )
    return CheckOutcome((found(NOT_ADAM, message),), measured=measured)


def _no_reference(facts: Facts) -> str:
    return (
        facts.skipped("reference")
        or ("the optimizer has none of the model's parameters" if facts.owns_nothing else None)
        or next(iter(facts.errors_of("arrived")), None)
        or f"there is no reference step of {facts.model.get('optimizer') or 'this optimizer'}"
    )


def lost_updates(facts: Facts) -> CheckOutcome:
    """Look for updates so small that weights in 16 bits are rounded back to their old values."""
    references = [
        (int(one["step"]), name, tensor)
        for one in facts.of("stepped")
        for name, tensor in (one["reference"] or {}).items()
        if tensor["moved"] is not None
    ]
    if not references:
        return CheckOutcome(not_run=never_had_rate(facts) or _no_reference(facts))
    dtypes = [str(not_null(each[2], "dtype")) for each in references]
    coarse = [each for each, dtype in zip(references, dtypes, strict=True) if "16" in dtype]
    if not coarse:  # an update that float32 loses is one of a rate that is nearly zero
        return CheckOutcome(
            looked_at={"tensors": len(dtypes)}, measured={"weights are in": dtypes[0]}
        )
    shares = {
        name: float(tensor["moved"]) for step, name, tensor in coarse if not on_the_way(facts, step)
    }
    if not shares:
        return CheckOutcome(not_run=f"{on_the_way(facts, coarse[-1][0])}: look later (--every)")
    name = min(shares, key=lambda each: shares[each])
    if shares[name] >= 0.8:
        return CheckOutcome(
            looked_at={"tensors": len(shares)}, measured={"moved, at least": shares[name]}
        )
    message = (
        f"of {name} only {shares[name]:.0%} of the elements that had an update moved; its dtype is"
        f" {facts.model.get('dtype')}"
    )
    return CheckOutcome((found(LOST, message),), measured={"moved, at least": shares[name]})


def _unfrozen(facts: Facts) -> Diagnostic | None:
    """Look for parameters that came to require a gradient later, and that no optimizer has."""
    if facts.owns_nothing:
        return None
    for step, ones in facts.by_step("stepped"):
        names = set.intersection(*(set(one["in_no_group"]) for one in ones))
        if names:
            most = max(int(one["n_in_no_group"]) for one in ones)
            message = (
                f"from step {step + 1} on {first_names(sorted(names), most)} require a gradient,"
                f" which the {facts.model.get('optimizer')} was made without: add_param_group()"
            )
            return found(NO_GROUP, message)
    return None


def _no_group(facts: Facts) -> CheckOutcome:
    models = facts.of("model")
    orphans = [set(one["in_no_group"]) for one in models]
    common = set.intersection(*orphans) if orphans else set()
    if not common:
        late = _unfrozen(facts)
        return CheckOutcome(
            (late,) if late else (), looked_at={"tensors": int(facts.model["trainable"])}
        )
    if facts.owns_nothing and facts.weights_move is not False:
        has = "copies" if facts.weights_move else "none"
        return CheckOutcome(not_run=f"the optimizer has {has} of the model's parameters")
    help = _MADE_LATER if facts.owns_nothing and not_null(facts.model, "sharded") else None
    most = max(int(one["n_in_no_group"]) for one in models)
    message = (
        f"{first_names(sorted(common), most)}; the optimizer is {facts.model.get('optimizer')}"
    )
    without = [set(one.get("no_gradient") or ()) for one in facts.of("arrived")]
    if without and all(common <= names for names in without):
        message += "; nothing gives it a gradient either"
        unused = "nothing, if it is not used: requires_grad_(False) says so"
        note = found(NO_GROUP, message, help=unused, severity="note")
        return CheckOutcome((note,), looked_at={"tensors": int(facts.model["trainable"])})
    return CheckOutcome((found(NO_GROUP, message, help=help),))


CHECKS = (
    WatchCheck(RANKS_DIFFER, "arrived", _ranks_differ, {"steps": 1, "ranks": 2, "tensors": 1}),
    WatchCheck(OTHER_GRADIENT, "arrived", _other_gradient, {"steps": 1}, most_noise=0.05),
    WatchCheck(NOT_FINITE, "arrived", _not_finite, {"steps": 1, "tensors": 1}),
    WatchCheck(NOT_ADAM, "arrived", _not_adam, {"steps": 1, "tensors": 1}),
    WatchCheck(LOST, "arrived", lost_updates, {"tensors": 1}),
    WatchCheck(NO_GROUP, "arrived", _no_group, {"tensors": 1}),
)
