"""Settings of the run that proofs compute with: the recipe's, made small and its steps visible."""

from typing import Any

from vtool.config import schema
from vtool.config.attention import NOT_ON_CPU
from vtool.config.schema import Run
from vtool.families import family_facts
from vtool.verification.select_rows import FRAMES
from vtool.verification.shrink_run import shrink_run

_FEWEST, _MOST = 4, 32
"""Tokens of an image: enough that its positions are not those of text, and not too many."""
RATES = {"adamw": 1e-3}
"""By optimizer, a learning rate whose first step changes every float32 weight."""
FACTOR = 10.0
"""The largest ratio of that rate and the rate of a part of the model."""
LARGEST_EPS, SMALLEST_CLIP = 1e-8, 1.0


def update_section(run: Run, section: str, **values: Any) -> Run:
    """Return a run with other values in one section, such as `data`."""
    return run.model_copy(update={section: getattr(run, section).model_copy(update=values)})


def choose_proof_settings(recipe_run: Run, *, full_size: bool) -> tuple[Run, tuple[str, ...]]:
    """Return the run that proofs compute with, and how it differs from the recipe, in words.

    Args:
        full_size: keep the recipe's own model.
    """
    small = shrink_run(recipe_run)
    run, changes = small.run, list(small.changes)
    if full_size:
        run = run.model_copy(update={"model": recipe_run.model, "lora": recipe_run.lora})
        changes = [change for change in changes if change.startswith(("launch.", "engine."))]
    if recipe_run.model.dtype != "float32":
        changes.append(
            f"model.dtype {recipe_run.model.dtype} → float32, in which a wrong number is"
            " distinguished from a rounded one"
        )
        run = update_section(run, "model", dtype="float32")
        if run.lora is not None and run.lora.base_dtype == "bfloat16":
            run = update_section(run, "lora", base_dtype="float32")
    if (chosen := recipe_run.model.attention) in NOT_ON_CPU:
        changes.append(
            f"model.attention {chosen} → what torch's SDPA computes of the same lengths: there is"
            " no such kernel on a CPU"
        )
    learnt = family_facts(run.model.family).is_learnt  # its processor has sizes of its own
    both = () if learnt else (("image", _image_bounds(run)), ("video", _video_bounds(run)))
    for kind, bounds in both:
        for name, value in bounds.items():
            if (before := getattr(getattr(run.data, kind), name)) != value:
                changes.append(f"data.{kind}.{name} {before or 'of the model'} → {value}")
        kept = getattr(run.data, kind).model_copy(update=bounds)
        run = update_section(run, "data", **{kind: kept})
    if run.lora is not None and run.lora.dropout:
        changes.append(
            f"lora.dropout {run.lora.dropout} → 0: what is drawn at random is another with each"
            " number of micro-batches"
        )
        run = update_section(run, "lora", dropout=0.0)
    run = update_section(run, "optim", **_visible_steps(run.optim, changes))
    return update_section(run, "train", steps=4, epochs=None), tuple(changes)


def _visible_steps(optim: schema.Optim, changes: list[str]) -> dict[str, Any]:
    """Return settings with which one step changes every trained parameter in float32.

    AdamW's first step is lr · g / (|g| + eps), which is lr where |g| is far above eps. So the rates
    of parts are within a factor of 10 of that in `RATES`, and neither eps nor clipping makes steps
    small.
    """
    groups, rate = {}, RATES[optim.name]
    for name in ("vision", "projector", "language"):
        part: schema.Part = getattr(optim.groups, name)
        if part.lr is not None:
            factor = part.lr / optim.lr
            visible = min(max(factor, 1 / FACTOR), FACTOR)
            if visible != factor:
                changes.append(
                    f"optim.groups.{name}.lr {factor:g} → {visible:g} of optim.lr, which one step"
                    " shows"
                )
            groups[name] = part.model_copy(update={"lr": rate * visible})
    update: dict[str, Any] = {
        "lr": rate,
        "warmup_steps": 0,
        "warmup_ratio": None,
        "schedule": "constant",
        "groups": optim.groups.model_copy(update=groups),
    }
    if optim.eps > LARGEST_EPS:
        changes.append(f"optim.eps {optim.eps:g} → {LARGEST_EPS:g}, beside which one step is seen")
        update["eps"] = LARGEST_EPS
    if optim.clip_norm is not None and optim.clip_norm < SMALLEST_CLIP:
        changes.append(
            f"optim.clip_norm {optim.clip_norm:g} → {SMALLEST_CLIP:g}, at which one step is seen"
        )
        update["clip_norm"] = SMALLEST_CLIP
    return update


def _clamp_pixels(sizes: schema.Image | schema.Video, low: int, high: int) -> dict[str, int]:
    least = min(max(sizes.min_pixels or 0, low), high)
    return {
        "min_pixels": least,
        "max_pixels": max(least, min(sizes.max_pixels or high, high)),
    }


def _image_bounds(run: Run) -> dict[str, int]:
    token = family_facts(run.model.family).patches.pixels_per_token
    return _clamp_pixels(run.data.image, _FEWEST * token, _MOST * token)


def _video_bounds(run: Run) -> dict[str, int]:
    """Return bounds of each frame, or of all frames where the family sizes these together."""
    facts = family_facts(run.model.family)
    token = facts.patches.pixels_per_token
    token *= facts.patches.temporal_patch_size if facts.video.bounds_are_total else 1
    bounds = _clamp_pixels(run.data.video, _FEWEST * token, _MOST * token)
    return bounds | {"max_frames": min(run.data.video.max_frames or FRAMES, FRAMES)}
