"""Checks of `model.attention` against the device that is there, and the model that is built."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from vtool.config.attention import ATTENTION_KEY, NOT_ON_CPU, attention_conflict
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.models.by_lengths import varlen_arguments

_PACKAGES = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
_ARGUMENTS = {"scale", "window_size"}
"""The arguments that `varlen_attn` is given; torch 2.11 has them, older ones may not."""
_OLDEST_GPU, _WIDEST_HEAD = (8, 0), 256
"""The bounds of flash attention's kernels, in torch and in its own packages."""


def check_attention(run: Run, ranks: Ranks) -> None:
    """Check the chosen attention before rows are read.

    Raises:
        SharedFindings: `not-built-on-engine`, or `extra-not-installed`, where it is not there.
            Another one in its place would not be what was asked for; and of a package that is
            missing, transformers would ask a hub.
    """
    if found := attention_conflict(run.model, ranks.device.type):
        raise SharedFindings(Diagnostic("not-built-on-engine", *found, ATTENTION_KEY))
    chosen = run.model.attention
    if ranks.device.type != "cuda" or chosen not in NOT_ON_CPU:
        return
    if (has := torch.cuda.get_device_capability(ranks.device)) < _OLDEST_GPU:
        seen = ".".join(map(str, has))
        no_kernel = f"which has no kernel for a GPU of compute capability {seen}"
        message = f"{ATTENTION_KEY} is {chosen}, {no_kernel}"
        raise SharedFindings(
            Diagnostic("not-built-on-engine", message, f"set {ATTENTION_KEY}=sdpa", ATTENTION_KEY)
        )
    if (package := missing_kernel_package(chosen)) is not None:
        message = f"{ATTENTION_KEY}={chosen} needs {package}, which is not installed, or too old"
        other = "sdpa" if chosen == "varlen" else "varlen"
        help = f"install {package}, or set {ATTENTION_KEY}={other}"
        raise SharedFindings(Diagnostic("extra-not-installed", message, help, ATTENTION_KEY))


def missing_kernel_package(chosen: str) -> str | None:
    """Return the package that a kernel needs and that is not there."""
    if chosen == "varlen":
        has = varlen_arguments() >= _ARGUMENTS
        return None if has else "a torch with varlen_attn and its windows (2.11)"
    from transformers import utils

    version = chosen.rpartition("_")[2]
    there = getattr(utils, f"is_flash_attn_{version}_available", None)
    return None if there is not None and there() else _PACKAGES[chosen]


def check_heads(run: Run, model: nn.Module, kind: str) -> None:
    """Check the chosen attention against a model that is built.

    Args:
        run: the settings.
        model: of transformers.
        kind: of the device that it is to compute on.

    Raises:
        SharedFindings: `not-built-on-engine`.
    """
    chosen = run.model.attention
    if kind != "cuda" or chosen not in NOT_ON_CPU:
        return
    for what, wanted in _not_in_kernels(chosen, model.config):
        message = f"{ATTENTION_KEY} is {chosen}, and the model's {what}: its kernel has {wanted}"
        raise SharedFindings(
            Diagnostic("not-built-on-engine", message, f"set {ATTENTION_KEY}=sdpa", ATTENTION_KEY)
        )


def _not_in_kernels(chosen: str, config: Any) -> Iterator[tuple[str, str]]:
    """Yield each feature of a model that a kernel lacks, and the values that it supports."""
    text, vision = config.get_text_config(), config.vision_config
    rate = getattr(text, "attention_dropout", 0.0)
    if rate and chosen != "flash_attention_2":
        yield f"attention_dropout is {rate}", "none"
    hidden = getattr(vision, "embed_dim", vision.hidden_size)
    text_width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    for part, width in (
        ("language model", text_width),
        ("vision tower", hidden // vision.num_heads),
    ):
        if width > _WIDEST_HEAD or width % 8:
            yield (
                f"{part} has heads of {width} features",
                f"multiples of 8 up to {_WIDEST_HEAD}",
            )
