"""A few equal steps on any engine, for tests and for the benchmark to compare."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.engines.ranks import run_ranks
from tests.engines.state import model_of
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.data.loader import load_steps
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks
from vtool.export.huggingface import write_export
from vtool.training.session import RunRequest
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

ROWS, STEPS = 20, 5
TEXT_ONLY = (1, 4, 5, 11, 12, 13, 14)
WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 24,
    "max_window_layers": 1,
    "layer_types": None,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of one rank's run."""

    losses: list[float]
    norms: list[float]
    """Before clipping."""
    gradients: dict[str, torch.Tensor]
    """The gradients of step 1, before clipping."""
    before: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    """After the last step."""
    digests: list[str]
    """The digests of this rank's weights after each step, where they were asked for."""


def base_model(folder: Path) -> Path:
    """A tiny model's folder, so that runs of every dtype begin with the same weights.

    Beside it, the rows of `made_run`.
    """
    write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, TEXT_ONLY))
    torch.set_num_threads(1)
    opened, _ = session(made_run(folder, "ddp", "float32", None))
    return write_export(
        opened.engine.module,
        model_of(opened.engine),
        opened.processor,
        "qwen2_5_vl",
        folder / "model",
    )


def windowed(model: Path, folder: Path, **more: int) -> Path:
    """The model again, its second layer with a window of 24 tokens."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= WINDOWS | more
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def made_run(folder: Path, engine: str, dtype: str, model: Path | None, *more: str) -> RunRequest:
    """Steps of 8 rows in micro-batches of 3, an epoch of 20 rows:

    ranks and micro-batches differ in rows, tokens and images.
    """
    overrides = [
        messages(folder / "rows.jsonl"),
        *(
            "data.global_batch_size=8",
            "data.micro_batch_size=3",
            "data.image={min_pixels:784,max_pixels:3136}",
        ),
        *(
            f"train={{steps:{STEPS},epochs:null}}",
            "optim.warmup_steps=2",
            f"run.dir={folder / 'run'}",
        ),
        *(f"engine={engine}", f"model.dtype={dtype}"),
        *((f"model.path={model}", "model.size=null") if model else ()),
    ]
    return request("rows", *overrides, *more)


def traced(
    world: int, made: Mapping[str, RunRequest], *, digested: bool = True
) -> dict[str, list[Trace]]:
    """Each run's steps on so many ranks, as each rank has seen them. The same processes make one
    run after the other.

    Args:
        digested: digest all weights after each step, for which they are gathered.
    """
    everyone = run_ranks(_traces, world, made, digested)
    return {name: [rank[name] for rank in everyone] for name in made}


def _traces(ranks: Ranks, made: Mapping[str, RunRequest], digested: bool) -> dict[str, Trace]:
    return {name: trace(ranks, each, digested=digested) for name, each in made.items()}


def trace(ranks: Ranks, made: RunRequest, *, digested: bool = True) -> Trace:
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    engine = opened.engine
    seen: list[dict[str, torch.Tensor]] = []
    clip = engine.clip_gradient

    def look_and_clip(largest: float | None) -> torch.Tensor:
        if not seen:
            seen.append(engine.gradients())
        return clip(largest)

    engine.clip_gradient = look_and_clip  # type: ignore[method-assign]
    steps = range(1, opened.total_steps + 1)
    before, digests, metrics = weights(engine), [], []
    for step, batches in zip(
        steps, load_steps(opened.rows["train"], steps, opened.micro_batches, 0), strict=True
    ):
        metrics.append(train_step(opened, progress, step, batches, StopRequest())[0])
        progress.step = step
        digests += [digest(weights(engine))] if digested else []
    losses, norms = [line["loss"] for line in metrics], [line["grad_norm"] for line in metrics]
    return Trace(losses, norms, seen[0], before, weights(engine), digests)


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    """The whole model, as this rank sees it."""
    return {name: tensor.clone() for name, tensor in engine.iter_hf_weights()}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def largest_relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(ours, theirs, strict=True))


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


def changed(one: Trace) -> float:
    """The fraction of elements that are no longer what they were."""
    different = sum(int((one.before[name] != one.weights[name]).sum()) for name in one.weights)
    return different / sum(tensor.numel() for tensor in one.weights.values())
