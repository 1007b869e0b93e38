"""Every engine, by `engine.kind`. Adding one is a line here: see CONTRIBUTING, "An engine"."""

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from vtool.engines.contract import Engine, EngineInputs
from vtool.engines.ranks import Ranks


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """The functions of one engine, as `module:name`, imported when a run asks for it."""

    build: str
    """Given `EngineInputs`, the engine."""
    check: str | None = None
    """Checks settings against devices and processes, before rows are read: see `check_start`."""


ENGINES: Mapping[str, EngineEntry] = {
    "ddp": EngineEntry("vtool.engines.ddp:build_ddp"),
    "fsdp2": EngineEntry("vtool.engines.fsdp2:build_fsdp2"),
    "megatron": EngineEntry(
        "vtool.engines.megatron.engine:build_megatron", "vtool.engines.megatron.start:check_start"
    ),
}


def build(inputs: EngineInputs) -> Engine:
    """Build the engine that the settings name.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    engine: Engine = resolve_name(ENGINES[inputs.settings.kind].build)(inputs)
    return engine


def check(settings: Any, ranks: Ranks, **model: Any) -> None:
    """Run the check of the engine that the settings name, if it has one.

    Args:
        model: what is known of the model: see `vtool.engines.megatron.start.check_start`.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    if (name := ENGINES[settings.kind].check) is not None:
        resolve_name(name)(settings, ranks, **model)
