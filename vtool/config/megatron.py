"""Limits of the engine `megatron`: what it has not built, and what its sizes must divide.

Pure checks, for the rules and for the engine itself: a rule sees the settings, on any machine; the
engine sees the device, the processes and the model, and asks again.
"""

from dataclasses import dataclass
from pathlib import Path

from vtool.config.megatron_ddp import Problem
from vtool.config.schema.megatron import Megatron, Parallel
from vtool.config.schema.model import Model
from vtool.families import FAMILIES, family_facts
from vtool.model_folder import ModelFolder


@dataclass(frozen=True, slots=True)
class Language:
    """Sizes of a language model that parallelism divides."""

    query: int
    """Heads, divided by tensor parallelism."""
    key: int
    """Key and value heads, divided by tensor parallelism."""
    layers: int
    """Divided by pipeline stages."""
    width: int | None = None
    """Inner features of an MLP, divided by tensor parallelism; None where they are not known."""


INSTALL_TE = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
MEGATRON_FAMILIES = tuple(name for name, facts in FAMILIES.items() if facts.on_megatron)
"""The families whose language model has been written for megatron-core."""


def language_of(model: Model) -> Language | None:
    """Return the sizes of a run's language model: its folder's, or of its random weights.

    None where its config.json does not give them, which another rule finds.
    """
    if not model.path:
        size = family_facts(model.family).sizes.get(model.size or "")
        if size is None:
            return None
        return Language(size["heads"], size["kv_heads"], size["layers"], size["intermediate"])
    try:
        config = ModelFolder(Path(model.path)).config
        text = config.get("text_config", config)
        names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
        width = text.get("intermediate_size")
        query, key, layers = (int(text[name]) for name in names)
        return Language(query, key, layers, width and int(width))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def settings_not_built(
    engine: Megatron, *, family: str, dtype: str, device: str, adapters: bool
) -> list[Problem]:
    """Return the settings that ask for what the engine has not built.

    Args:
        family: `model.family`.
        dtype: `model.dtype`.
        device: `device.kind`.
        adapters: whether `lora` is set.
    """
    checks = [
        (
            family not in MEGATRON_FAMILIES,
            "kind",
            f"engine=megatron has the layers of {' and '.join(MEGATRON_FAMILIES)}, not those of"
            f" {family}",
            "set engine=fsdp2 or engine=ddp",
        ),
        (
            device == "npu",
            "kind",
            "engine=megatron runs on NPUs through MindSpeed's changes of megatron-core, which vtool"
            " does not make",
            "set engine=fsdp2",
        ),
        (
            engine.bridge == "mbridge" and adapters,
            "bridge",
            "engine.bridge is mbridge, whose layers join a norm with the matrix behind it, and so"
            " hide from an adapter what goes into it",
            "set engine.bridge=native",
        ),
        (
            engine.parallel.sequence and engine.parallel.tensor == 1,
            "parallel.sequence",
            "engine.parallel.sequence is true, but engine.parallel.tensor is 1: there are no"
            " processes to spread tokens over",
            "set engine.parallel.tensor, or engine.parallel.sequence=false",
        ),
        (
            dtype == "float64",
            "model.dtype",
            "model.dtype is float64, but megatron-core's optimizers take float32 and bfloat16 only",
            "set model.dtype=float32, or engine=ddp",
        ),
        *(
            (
                value and device == "cpu",
                f"transformer_config.{name}",
                f"engine.transformer_config.{name} is true, but its kernel needs CUDA",
                "leave it out",
            )
            for name, value in engine.transformer_config.model_dump().items()
        ),
    ]
    return [Problem(*problem) for wrong, *problem in checks if wrong]


def settings_for_transformer_engine(
    engine: Megatron, *, device: str, installed: bool | None = None
) -> list[Problem]:
    """Return the settings that need Transformer Engine, where it is missing.

    It has no build for a CPU.

    Args:
        device: `device.kind`.
        installed: whether it is on this machine; None where that is not known.
    """
    if device != "cpu" and installed is not False:
        return []
    there = "there is none for a CPU" if device == "cpu" else "it is not installed"
    install = "" if device == "cpu" else f"{INSTALL_TE}, or "
    found = []
    if engine.parallel.context > 1:
        found.append(
            Problem(
                "parallel.context",
                (
                    f"engine.parallel.context is {engine.parallel.context}, and attention over"
                    f" several processes is Transformer Engine's: {there}"
                ),
                f"{install}set engine.parallel.context=1; engine.parallel.sequence saves memory"
                " too",
            )
        )
    if engine.bridge == "mbridge":
        found.append(
            Problem(
                "bridge",
                f"engine.bridge is mbridge, which builds every layer of Transformer Engine's:"
                f" {there}",
                f"{install}set engine.bridge=native",
            )
        )
    return found


def bad_sizes(parallel: Parallel, *, world: int | None, language: Language | None) -> list[Problem]:
    """Return the parallel sizes that do not divide what they spread.

    Args:
        world: the processes of the run; None where they are not known.
        language: the model's; None where it is not known.
    """
    found = [] if world is None else _bad_world(parallel, world)
    if language is None:
        return found
    shared = [size for size in (language.query, language.key, language.width) if size]
    for name, whole, what, all_of in (
        ("pipeline", language.layers, "layers", (language.layers,)),
        ("tensor", language.query, "heads", shared),
        ("tensor", language.key, "key and value heads", shared),
        ("tensor", language.width, "inner features of an MLP", shared),
    ):
        size = getattr(parallel, name)
        if whole and whole % size:
            message = (
                f"engine.parallel.{name} is {size}, which does not divide the model's {whole}"
                f" {what}"
            )
            sizes = (
                str(each) for each in range(1, whole + 1) if not any(one % each for one in all_of)
            )
            found.append(Problem(f"parallel.{name}", message, f"take one of {', '.join(sizes)}"))
    return found


def _bad_world(parallel: Parallel, world: int) -> list[Problem]:
    """Return the problem of a number of processes that the parallel sizes do not divide."""
    if not world % parallel.sharing:
        return []
    names = ("tensor", "pipeline", "context")
    *others, last = [name for name in names if getattr(parallel, name) > 1]
    together = (
        f", with {' and '.join(others)} {parallel.sharing} processes for a row" if others else ""
    )
    message = (
        f"engine.parallel.{last} is {getattr(parallel, last)}{together}, which does not divide the"
        f" {world} process{'es' * (world > 1)} of the run"
    )
    least = -(-world // parallel.sharing) * parallel.sharing
    return [
        Problem(
            f"parallel.{last}", message, f"start a multiple of {parallel.sharing}: --nproc {least}"
        )
    ]
