"""What the engine `megatron` does not do, and what its sizes must divide: pure checks, for the rules and for the engine itself.

A rule sees the settings, on any machine; the engine sees the device, the processes and the model that there are, and asks again.
"""

from dataclasses import dataclass

from vtool.config.megatron_ddp import Problem
from vtool.config.schema.megatron import Megatron, Parallel


@dataclass(frozen=True, slots=True)
class Language:
    """What of a language model is spread: its heads and its key and value heads by tensor parallelism, its layers by pipelines."""

    query: int
    key: int
    layers: int


BUILT = ("qwen2_vl", "qwen2_5_vl")
"""The families whose language part has been written for megatron-core."""


def not_built(engine: Megatron, *, family: str, dtype: str, device: str) -> list[Problem]:
    """Settings that ask for what is not there.

    Args:
        family: `model.family`.
        dtype: `model.dtype`.
        device: `device.kind`.
    """
    found = []
    cpu = device == "cpu"
    if family not in BUILT:
        message = f"engine=megatron has the layers of {' and '.join(BUILT)}, not those of {family}"
        found.append(Problem("kind", message, "set engine=fsdp2 or engine=ddp"))
    if device == "npu":
        message = "engine=megatron runs on NPUs through MindSpeed's changes of megatron-core, which vtool does not make"
        found.append(Problem("kind", message, "set engine=fsdp2"))
    if engine.parallel.context > 1:
        why = "megatron-core's own attention, which is what a CPU has, asserts that it is 1" if cpu else "tokens are not shared out yet"
        message = f"engine.parallel.context is {engine.parallel.context}, but context parallelism is not built: {why}"
        found.append(Problem("parallel.context", message, "set engine.parallel.context=1; engine.parallel.sequence saves memory too"))
    if engine.parallel.sequence and engine.parallel.tensor == 1:
        message = "engine.parallel.sequence is true, but engine.parallel.tensor is 1: there are no processes to spread tokens over"
        found.append(Problem("parallel.sequence", message, "set engine.parallel.tensor, or engine.parallel.sequence=false"))
    if dtype == "float64":
        message = "model.dtype is float64, but megatron-core's optimisers take float32 and bfloat16 only"
        found.append(Problem("model.dtype", message, "set model.dtype=float32, or engine=ddp"))
    for name, value in engine.transformer_config.model_dump().items():
        if value and cpu:
            message = f"engine.transformer_config.{name} is true, but its kernel needs CUDA"
            found.append(Problem(f"transformer_config.{name}", message, "leave it out"))
    return found


def bad_sizes(parallel: Parallel, *, world: int | None, language: Language | None) -> list[Problem]:
    """Sizes that do not divide what they spread.

    Args:
        world: the processes of the run; None where they are not known.
        language: the model's; None where it is not known.
    """
    found = []
    tensor, pipeline, sharing = parallel.tensor, parallel.pipeline, parallel.sharing
    if world is not None and world % sharing:
        processes = f"the {world} process{'es' * (world > 1)} of the run"
        message = f"engine.parallel.tensor is {tensor}, which does not divide {processes}"
        if pipeline > 1:
            message = (
                f"engine.parallel.pipeline is {pipeline}, with tensor {sharing} processes for a row, which does not divide {processes}"
            )
        help = f"start a multiple of {sharing}: --nproc {-(-world // sharing) * sharing}"
        found.append(Problem("parallel.pipeline" if pipeline > 1 else "parallel.tensor", message, help))
    if language and language.layers % pipeline:
        message = f"engine.parallel.pipeline is {pipeline}, which does not divide the model's {language.layers} layers"
        sizes = ", ".join(str(size) for size in range(1, language.layers + 1) if not language.layers % size)
        found.append(Problem("parallel.pipeline", message, f"take one of {sizes}"))
    for number, what in ((language.query, "heads"), (language.key, "key and value heads")) if language else ():
        if number % tensor:
            message = f"engine.parallel.tensor is {tensor}, which does not divide the model's {number} {what}"
            sizes = ", ".join(
                str(size) for size in range(1, number + 1) if language and not language.query % size and not language.key % size
            )
            found.append(Problem("parallel.tensor", message, f"take one of {sizes}"))
    return found
