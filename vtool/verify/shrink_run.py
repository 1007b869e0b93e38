"""A run as it can be built here, on a CPU and in two processes at most:

what is made smaller for that, and what cannot be asked then.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.schema import Lora, Megatron, Run
from vtool.families import FAMILIES
from vtool.families.windows import window_of_folder

# Of a linear layer's name, the number of its layer or block: `layers.20.self_attn.q_proj`, not the
# 2 of `merger.mlp.2`.
_NUMBERED = re.compile(r"((?:^|\.))(\d+)(\.(?:self_attn|attn|mlp)\b)")
# The tower of the smallest size has more blocks than the language model has layers.
LAYERS = min(facts.sizes["tiny"]["layers"] for facts in FAMILIES.values())
_CUDA = "its kernel needs CUDA, and this is a CPU"
_TE = "it needs Transformer Engine, and there is none for a CPU"
_NCCL = "there is no NCCL on a CPU"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A run, smaller."""

    run: Run
    processes: int
    changes: tuple[str, ...] = ()
    """What is smaller, in words."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Settings that cannot be told here, and why."""


def shrink_run(run: Run) -> StandIn:
    """The smallest run that has the same objects:

    one process, or two where there would be more than one; the model at its tiny size.
    """
    changes: list[str] = []
    not_asked: dict[str, str] = {}
    update: dict[str, Any] = {}
    processes, engine = _engine(run, changes, not_asked)
    if run.launch.nproc is not None and run.launch.nproc != processes:
        changes.append(f"launch.nproc {run.launch.nproc} → {processes}")
    if run.launch.nproc is not None:
        update["launch"] = run.launch.model_copy(update={"nproc": processes})
    if run.model.path is not None:
        changes.append(f"{run.model.path} → its config.json at size tiny, with random weights")
        if window := window_of_folder(Path(run.model.path), run.model.family):
            changes.append(
                f"{window.sliding} of {window.layers} layers with a sliding_window of"
                f" {window.tokens} tokens → none has a window"
            )
        update["model"] = run.model.model_copy(update={"path": None, "init": None, "size": "tiny"})
        if run.lora is not None:
            update["lora"] = _lora(run.lora, changes)
    if run.device.kind in ("cuda", "npu"):
        not_asked["device.kind"] = (
            f"it is {run.device.kind}, and --live is on the CPU; vtool train asks before its first"
            " step"
        )
        if getattr(engine, "cpu_offload", False):
            not_asked["engine.cpu_offload"] = (
                "on the CPU, where --live is, there is nowhere to offload to"
            )
    update |= {"engine": engine, "device": run.device.model_copy(update={"kind": "cpu"})}
    return StandIn(run.model_copy(update=update), processes, tuple(changes), not_asked)


def _lora(lora: Lora, changes: list[str]) -> Lora:
    """Adapters of layers that a small model has not are those of the ones that it has."""
    update = {}
    for name in ("targets", "exclude"):
        given: tuple[str, ...] = getattr(lora, name) or ()
        here = tuple(
            dict.fromkeys(
                _NUMBERED.sub(lambda found: f"{found[1]}{int(found[2]) % LAYERS}{found[3]}", end)
                for end in given
            )
        )
        if here != given:
            changes.append(f"lora.{name} {', '.join(given)} → {', '.join(here)}")
            update[name] = here
    return lora.model_copy(update=update)


def _engine(run: Run, changes: list[str], not_asked: dict[str, str]) -> tuple[int, Any]:
    several = (run.launch.nproc or 1) > 1
    if not isinstance(run.engine, Megatron):
        return (2 if several else 1), run.engine
    engine, parallel = run.engine, run.engine.parallel
    tensor = min(parallel.tensor, 2)
    pipeline = 1 if tensor == 2 else min(parallel.pipeline, 2)
    for name, before, after in (
        ("tensor", parallel.tensor, tensor),
        ("pipeline", parallel.pipeline, pipeline),
    ):
        if before != after:
            changes.append(f"engine.parallel.{name} {before} → {after}")
    if parallel.context > 1:
        changes.append(f"engine.parallel.context {parallel.context} → 1")
        not_asked["engine.parallel.context"] = _TE
    if engine.bridge != "native":
        changes.append(f"engine.bridge {engine.bridge} → native")
        not_asked["engine.bridge"] = _TE
    if parallel.pipeline > 1 and pipeline == 1:
        not_asked["engine.parallel.pipeline"] = (
            "two processes are not enough for tensor parallel ranks and for stages"
        )
    fusions = {name: False for name, on in engine.transformer_config.model_dump().items() if on}
    not_asked |= {f"engine.transformer_config.{name}": _CUDA for name in fusions}
    registered = {
        name: None
        for name in ("nccl_ub", "disable_symmetric_registration")
        if getattr(engine.ddp_config, name)
    }
    not_asked |= {f"engine.ddp_config.{name}": _NCCL for name in registered}
    update = {
        "parallel": parallel.model_copy(
            update={"tensor": tensor, "pipeline": pipeline, "context": 1}
        ),
        "bridge": "native",
        "transformer_config": engine.transformer_config.model_copy(update=fusions),
        "ddp_config": engine.ddp_config.model_copy(update=registered),
    }
    return (2 if several or tensor * pipeline > 1 else 1), engine.model_copy(update=update)
