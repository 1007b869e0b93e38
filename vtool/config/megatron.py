"""What the engine `megatron` does not do, and what its sizes must divide: pure checks, for the
rules and for the engine itself.

A rule sees the settings, on any machine; the engine sees the device, the processes and the model
that there are, and asks again.
"""

from dataclasses import dataclass

from vtool.config.megatron_ddp import Problem
from vtool.config.schema.megatron import Megatron, Parallel
from vtool.families import FAMILIES


@dataclass(frozen=True, slots=True)
class Language:
    """What of a language model is spread:

    its heads and its key and value heads by tensor parallelism, its layers by pipelines.
    """

    query: int
    key: int
    layers: int


INSTALL_TE = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
BUILT = tuple(name for name, facts in FAMILIES.items() if facts.on_megatron)
"""The families whose language part has been written for megatron-core."""


def not_built(
    engine: Megatron, *, family: str, dtype: str, device: str, adapters: bool
) -> list[Problem]:
    """Settings that ask for what is not there.

    Args:
        family: `model.family`.
        dtype: `model.dtype`.
        device: `device.kind`.
        adapters: whether `lora` is set.
    """
    found = []
    cpu = device == "cpu"
    if family not in BUILT:
        message = f"engine=megatron has the layers of {' and '.join(BUILT)}, not those of {family}"
        found.append(Problem("kind", message, "set engine=fsdp2 or engine=ddp"))
    if device == "npu":
        message = (
            "engine=megatron runs on NPUs through MindSpeed's changes of megatron-core, which vtool"
            " does not make"
        )
        found.append(Problem("kind", message, "set engine=fsdp2"))
    if engine.bridge == "mbridge" and adapters:
        message = (
            "engine.bridge is mbridge, whose layers join a norm with the matrix behind it, and so"
            " hide from an adapter what goes into it"
        )
        found.append(Problem("bridge", message, "set engine.bridge=native"))
    if engine.parallel.sequence and engine.parallel.tensor == 1:
        message = (
            "engine.parallel.sequence is true, but engine.parallel.tensor is 1: there are no"
            " processes to spread tokens over"
        )
        found.append(
            Problem(
                "parallel.sequence",
                message,
                "set engine.parallel.tensor, or engine.parallel.sequence=false",
            )
        )
    if dtype == "float64":
        message = (
            "model.dtype is float64, but megatron-core's optimizers take float32 and bfloat16 only"
        )
        found.append(Problem("model.dtype", message, "set model.dtype=float32, or engine=ddp"))
    for name, value in engine.transformer_config.model_dump().items():
        if value and cpu:
            message = f"engine.transformer_config.{name} is true, but its kernel needs CUDA"
            found.append(Problem(f"transformer_config.{name}", message, "leave it out"))
    return found


def needs_transformer_engine(
    engine: Megatron, *, device: str, installed: bool | None = None
) -> list[Problem]:
    """Settings that Transformer Engine carries out, where there is none: there is none for a CPU.

    Args:
        device: `device.kind`.
        installed: whether it is, on this machine; None where that is not known.
    """
    if device != "cpu" and installed is not False:
        return []
    there = "there is none for a CPU" if device == "cpu" else "it is not installed"
    install = "" if device == "cpu" else f"{INSTALL_TE}, or "
    found = []
    if engine.parallel.context > 1:
        message = (
            f"engine.parallel.context is {engine.parallel.context}, and attention over several"
            f" processes is Transformer Engine's: {there}"
        )
        help = f"{install}set engine.parallel.context=1; engine.parallel.sequence saves memory too"
        found.append(Problem("parallel.context", message, help))
    if engine.bridge == "mbridge":
        message = (
            f"engine.bridge is mbridge, which builds every layer of Transformer Engine's: {there}"
        )
        found.append(Problem("bridge", message, f"{install}set engine.bridge=native"))
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
        *others, last = [
            name for name in ("tensor", "pipeline", "context") if getattr(parallel, name) > 1
        ]
        together = f", with {' and '.join(others)} {sharing} processes for a row" if others else ""
        processes = f"the {world} process{'es' * (world > 1)} of the run"
        message = (
            f"engine.parallel.{last} is {getattr(parallel, last)}{together}, which does not divide"
            f" {processes}"
        )
        help = f"start a multiple of {sharing}: --nproc {-(-world // sharing) * sharing}"
        found.append(Problem(f"parallel.{last}", message, help))
    if language and language.layers % pipeline:
        message = (
            f"engine.parallel.pipeline is {pipeline}, which does not divide the model's"
            f" {language.layers} layers"
        )
        sizes = ", ".join(
            str(size) for size in range(1, language.layers + 1) if not language.layers % size
        )
        found.append(Problem("parallel.pipeline", message, f"take one of {sizes}"))
    for number, what in (
        ((language.query, "heads"), (language.key, "key and value heads")) if language else ()
    ):
        if number % tensor:
            message = (
                f"engine.parallel.tensor is {tensor}, which does not divide the model's {number}"
                f" {what}"
            )
            sizes = ", ".join(
                str(size)
                for size in range(1, number + 1)
                if language and not language.query % size and not language.key % size
            )
            found.append(Problem("parallel.tensor", message, f"take one of {sizes}"))
    return found
