"""The engine that settings of DeepSpeed and FSDP mean here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json

_STAGES = {f"zero{stage}": stage for stage in range(4)}
"""The files of DeepSpeed that ms-swift has by name, `_offload` left out."""


def sharding_engine(word: str, value: Any) -> dict[str, Any] | None:
    """Return the settings `engine` for the value of `deepspeed` or `fsdp`; None: it is off."""
    return _of_deepspeed(value) if word == "deepspeed" else _of_fsdp(value)


def _of_fsdp(value: Any) -> dict[str, Any] | None:
    words = str(" ".join(map(str, value)) if isinstance(value, list) else value).lower().split()
    if not words or words[0] in ("false", "no_shard", "none"):
        return None
    made: dict[str, Any] = {"kind": "fsdp2"}
    if {"shard_grad_op", "hybrid_shard_zero2"} & set(words):
        made["reshard_after_forward"] = False
    return made | ({"cpu_offload": True} if "offload" in words else {})


def _of_deepspeed(value: Any) -> dict[str, Any] | None:
    stage, offloads = _zero(value)
    if stage == 0:
        return None
    made: dict[str, Any] = {"kind": "fsdp2"}
    if stage in (1, 2):
        made["reshard_after_forward"] = False  # weights stay whole from forward to backward
    return made | ({"cpu_offload": True} if offloads else {})


def _zero(value: Any) -> tuple[int | None, bool]:
    """Return the stage, None where it is not known, and whether anything lies on the CPU."""
    name, _, rest = str(value).partition("_")
    if name in _STAGES and rest in ("", "offload"):
        return _STAGES[name], bool(rest)
    try:
        given = value if isinstance(value, Mapping) else read_small_json(Path(str(value)))
        zero = given["zero_optimization"]
        stage = zero.get("stage")
        devices = [
            zero.get(what, {}).get("device", "none")
            for what in ("offload_param", "offload_optimizer")
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, False
    return (stage if isinstance(stage, int) else None), set(devices) - {"none"} != set()
