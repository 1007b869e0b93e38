"""Checks of engine=megatron before anything is read or built: packages, devices and sizes."""

from collections.abc import Iterable
from importlib.util import find_spec

import torch

from vtool.config.megatron import (
    Language,
    bad_sizes,
    settings_for_transformer_engine,
    settings_not_built,
)
from vtool.config.megatron_ddp import Problem
from vtool.config.schema.megatron import Megatron
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings


def check_start(
    settings: Megatron,
    ranks: Ranks,
    *,
    family: str,
    dtype: str,
    adapters: bool,
    language: Language | None = None,
    unbuilt: Iterable[Problem] = (),
) -> None:
    """Raise everything that cannot be, at once.

    Args:
        family: `model.family`.
        dtype: `model.dtype`.
        adapters: whether `lora` is set.
        language: the model's; None where there is none yet.
        unbuilt: what else is not built, of a model that there is.

    Raises:
        SharedFindings: `extra-not-installed`, `needs-transformer-engine`, `not-built-on-engine`,
            `parallel-sizes`.
    """
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        message, help = (
            "engine=megatron needs megatron-core, which is not installed",
            "pip install 'vtool[megatron]'",
        )
        raise SharedFindings(Diagnostic("extra-not-installed", message, help, "engine.kind"))
    device = ranks.device.type
    unbuilt = (
        *unbuilt,
        *settings_not_built(settings, family=family, dtype=dtype, device=device, adapters=adapters),
    )
    found = [("not-built-on-engine", one) for one in unbuilt]
    found += [
        ("needs-transformer-engine", one)
        for one in settings_for_transformer_engine(
            settings, device=device, installed=has_transformer_engine(ranks.device)
        )
    ]
    if settings.bridge == "mbridge" and find_spec("mbridge") is None:
        found.append(
            (
                "extra-not-installed",
                Problem(
                    "bridge",
                    "engine.bridge is mbridge, which is not installed",
                    "pip install 'vtool[megatron,mbridge]', or set engine.bridge=native",
                ),
            )
        )
    found += [
        ("parallel-sizes", one)
        for one in bad_sizes(settings.parallel, world=ranks.world, language=language)
    ]
    if found:
        raise SharedFindings(
            [Diagnostic(rule, one.message, one.help, one.setting) for rule, one in found]
        )


def has_transformer_engine(device: torch.device) -> bool:
    """Return true where Transformer Engine is installed and the run has a GPU."""
    if device.type == "cpu":
        return False
    from megatron.core.extensions import transformer_engine

    return bool(transformer_engine.HAVE_TE)
