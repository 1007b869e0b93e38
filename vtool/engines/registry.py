"""Every engine, by `engine.kind`. Adding one is a line here: see CONTRIBUTING, "An engine"."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from vtool.engines.contract import Engine, EngineInputs
from vtool.engines.ranks import Ranks

ENGINES: Mapping[str, str] = {
    "ddp": "vtool.engines.ddp:DdpEngine",
    "fsdp2": "vtool.engines.fsdp2:Fsdp2Engine",
    "megatron": "vtool.engines.megatron.engine:build_megatron",
}
"""The class, or function, that makes the engine of `EngineInputs`, imported when a run asks for it.
"""
CHECKS: Mapping[str, str] = {"megatron": "vtool.engines.megatron.start:check_start"}
"""Checks of settings against devices and processes, before rows are read, for engines with one."""


def build(inputs: EngineInputs) -> Engine:
    """Build the engine that the settings name.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    engine: Engine = resolve_name(ENGINES[inputs.settings.kind])(inputs)
    return engine


def run_engine_check(settings: Any, ranks: Ranks, **model: Any) -> None:
    """Run the check of the engine that the settings name, if it has one.

    Args:
        model: what is known of the model: see `vtool.engines.megatron.start.check_start`.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    if settings.kind in CHECKS:
        resolve_name(CHECKS[settings.kind])(settings, ranks, **model)
