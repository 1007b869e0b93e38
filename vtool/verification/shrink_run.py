"""A run made small enough to be built here: on the CPU, in two processes at most."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.schema import Lora, Megatron, Run
from vtool.families import FAMILIES, family_facts
from vtool.families.windows import window_of_folder

# The number of a layer or block in a linear layer's name: `layers.20.self_attn.q_proj`, and not the
# 2 of `merger.mlp.2`.
_NUMBERED = re.compile(r"((?:^|\.))(\d+)(\.(?:self_attn|attn|mlp)\b)")
# The tower of the smallest size has more blocks than the language model has layers.
_LAYERS = min(facts.sizes["tiny"]["layers"] for facts in FAMILIES.values())
_CUDA = "its kernel needs CUDA, and this is a CPU"
_TE = "it needs Transformer Engine, and there is none for a CPU"
_NCCL = "there is no NCCL on a CPU"


@dataclass(frozen=True, slots=True)
class SmallRun:
    """A run of tiny size, and how it differs from the recipe's."""

    run: Run
    processes: int
    changes: tuple[str, ...] = ()
    """The differences, in words."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Settings that cannot be checked on it, with the reason."""


def shrink_run(run: Run) -> SmallRun:
    """Return the smallest run that has the same objects as a recipe's.

    It has the model at its tiny size, and one process, or two where the recipe has several.
    """
    changes: list[str] = []
    not_asked: dict[str, str] = {}
    processes, engine = _shrink_engine(run, changes, not_asked)
    update: dict[str, Any] = {
        "engine": engine,
        "device": run.device.model_copy(update={"kind": "cpu"}),
    }
    if run.launch.nproc is not None:
        update["launch"] = run.launch.model_copy(update={"nproc": processes})
        if run.launch.nproc != processes:
            changes.append(f"launch.nproc {run.launch.nproc} → {processes}")
    if run.data.micro_batch_size == "auto":
        update["data"] = run.data.model_copy(update={"micro_batch_size": 2})
        changes.append("data.micro_batch_size auto → 2")
    update |= _shrink_model(run, changes)
    if run.train.source is not None:
        changes.append(f"train.from {run.train.source} → random weights")
    if run.device.kind in ("cuda", "npu"):
        not_asked["device.kind"] = (
            f"it is {run.device.kind}, and --live is on the CPU; vtool train asks before its first"
            " step"
        )
        if getattr(engine, "cpu_offload", False):
            not_asked["engine.cpu_offload"] = (
                "on the CPU, where --live is, there is nowhere to offload to"
            )
    return SmallRun(run.model_copy(update=update), processes, tuple(changes), not_asked)


def _shrink_model(run: Run, changes: list[str]) -> dict[str, Any]:
    """Return the settings of a small model, and of adapters on it."""
    update: dict[str, Any] = {}
    learnt = family_facts(run.model.family).is_learnt
    if run.model.path is not None and learnt:
        changes.append(f"{run.model.path} → its config.json with fewer layers, random weights")
        update["model"] = run.model.model_copy(update={"init": "random"})
    elif run.model.path is not None:
        changes.append(f"{run.model.path} → its config.json at size tiny, with random weights")
        if window := window_of_folder(Path(run.model.path), run.model.family):
            changes.append(
                f"{window.sliding} of {window.layers} layers with a sliding_window of"
                f" {window.tokens} tokens → none has a window"
            )
        update["model"] = run.model.model_copy(update={"path": None, "init": None, "size": "tiny"})
        if run.lora is not None:
            update["lora"] = _move_adapters(run.lora, changes)
    asked = run.model.gradient_checkpointing
    if learnt and asked != "none":
        update["model"] = update["model"].model_copy(update={"gradient_checkpointing": "full"})
    elif isinstance(asked, int) or asked == "auto":
        # one block is left that keeps its activations, so that both are seen
        size = family_facts(run.model.family).sizes["tiny"]
        most = size["vision_depth"] + size["layers"] - 1
        if (here := most if asked == "auto" else min(asked, most)) != asked:
            changes.append(f"model.gradient_checkpointing {asked} → {here}")
            model = update.get("model", run.model)
            update["model"] = model.model_copy(update={"gradient_checkpointing": here})
    return update


def _move_adapters(lora: Lora, changes: list[str]) -> Lora:
    """Put adapters of layers that a small model does not have on layers that it has."""
    update = {}
    for name in ("targets", "exclude"):
        asked: tuple[str, ...] = getattr(lora, name) or ()
        moved = (
            _NUMBERED.sub(lambda found: f"{found[1]}{int(found[2]) % _LAYERS}{found[3]}", layer)
            for layer in asked
        )
        if (here := tuple(dict.fromkeys(moved))) != asked:
            changes.append(f"lora.{name} {', '.join(asked)} → {', '.join(here)}")
            update[name] = here
    return lora.model_copy(update=update)


def _shrink_engine(run: Run, changes: list[str], not_asked: dict[str, str]) -> tuple[int, Any]:
    """Return the number of processes, and the engine's settings for them."""
    several = (run.launch.nproc or 1) > 1
    if not isinstance(run.engine, Megatron):
        return (2 if several else 1), run.engine
    engine, parallel = run.engine, run.engine.parallel
    tensor = min(parallel.tensor, 2)
    sizes = {
        "tensor": tensor,
        "pipeline": 1 if tensor == 2 else min(parallel.pipeline, 2),
        "context": 1,
    }
    for name, size in sizes.items():
        if (asked := getattr(parallel, name)) != size:
            changes.append(f"engine.parallel.{name} {asked} → {size}")
    if parallel.context > 1:
        not_asked["engine.parallel.context"] = _TE
    if engine.bridge != "native":
        changes.append(f"engine.bridge {engine.bridge} → native")
        not_asked["engine.bridge"] = _TE
    if parallel.pipeline > 1 and sizes["pipeline"] == 1:
        not_asked["engine.parallel.pipeline"] = (
            "two processes are not enough for tensor parallel ranks and for stages"
        )
    fusions = {name: False for name, on in engine.transformer_config.model_dump().items() if on}
    registered = {
        name: None
        for name in ("nccl_ub", "disable_symmetric_registration")
        if getattr(engine.ddp_config, name)
    }
    not_asked |= {f"engine.transformer_config.{name}": _CUDA for name in fusions}
    not_asked |= {f"engine.ddp_config.{name}": _NCCL for name in registered}
    update = {
        "parallel": parallel.model_copy(update=sizes),
        "bridge": "native",
        "transformer_config": engine.transformer_config.model_copy(update=fusions),
        "ddp_config": engine.ddp_config.model_copy(update=registered),
    }
    processes = 2 if several or tensor * sizes["pipeline"] > 1 else 1
    return processes, engine.model_copy(update=update)
