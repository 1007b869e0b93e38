"""Variables that Ascend's software reads, the values of each, and the effect of any other value.

Sources: CANN 8.5's and 9.0's "Environment Variables" and HCCL guide, torch_npu's guide of
environment variables, and the messages in the library of torch_npu 2.13.0, which are what a run
would end with.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near

Fits = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Variable:
    """One row: a variable with a value of its own."""

    name: str
    takes: str
    default: str
    fits: Fits
    otherwise: str
    """The effect of another value."""
    severity: Literal["error", "warning"]
    """A warning where the value is silently replaced, and the run continues with another."""


def _integer(low: int, high: int) -> Fits:
    return lambda text: re.fullmatch(r"\d{1,12}", text) is not None and low <= int(text) <= high


def _among(*words: str) -> Fits:
    return words.__contains__


def _fraction(open: bool) -> Fits:
    def fits(text: str) -> bool:
        return re.fullmatch(r"\d*\.?\d+", text) is not None and (
            0 < float(text) < 1 if open else 0 <= float(text) <= 1
        )

    return fits


_RANGE = re.compile(r"npu(\d+):(\d+)-(\d+)")
_REPLACED = "CANN refuses it, or silently takes its default"


def _affinity(text: str) -> bool:
    mode, *parts = [part.strip() for part in text.split(",")]
    ranges = [_RANGE.fullmatch(part) for part in parts]
    flags = [re.fullmatch(r"(npu_affine|lazy_bind|bind_irq|force):[01]", part) for part in parts]
    return (
        mode in ("0", "1", "2")
        and all(int(found[2]) <= int(found[3]) for found in ranges if found)
        and all(one or other for one, other in zip(ranges, flags, strict=True))
    )


VARIABLES = (
    Variable(
        "TASK_QUEUE_ENABLE", "0, 1 or 2", "1", _among("0", "1", "2"), "torch_npu raises", "error"
    ),
    Variable(
        "ASCEND_LAUNCH_BLOCKING", "0 or 1", "0", _among("0", "1"), "torch_npu raises", "error"
    ),
    Variable(
        "NPU_FA2_SPARSE_MODE",
        "2 or 3",
        "3",
        _among("2", "3"),
        "transformers raises when it is imported",
        "error",
    ),
    Variable(
        "HCCL_CONNECT_TIMEOUT",
        "seconds from 120 to 7200",
        "120",
        _integer(120, 7200),
        _REPLACED,
        "warning",
    ),
    Variable(
        "HCCL_EXEC_TIMEOUT",
        "seconds from 0, for ever, to 2147483647",
        "1836",
        _integer(0, 2147483647),
        _REPLACED,
        "warning",
    ),
    Variable(
        "HCCL_OP_EXPANSION_MODE",
        "AI_CPU, AIV, HOST, HOST_TS, CCU_MS or CCU_SCHED",
        "that of the product",
        _among("AI_CPU", "AIV", "HOST", "HOST_TS", "CCU_MS", "CCU_SCHED"),
        _REPLACED,
        "warning",
    ),
    Variable(
        "CPU_AFFINITY_CONF",
        "0, 1 or 2, and then npuN:FIRST-LAST, npu_affine:1 and the like",
        "0",
        _affinity,
        "cores are then bound as if it were not set",
        "warning",
    ),
)

_TRUTH = _among("True", "False")
# The allocator's own keys: torch_npu 2.13.0 (NPUAllocatorConfig) and torch 2.13's
# (AcceleratorAllocatorConfig), of which it is made.
_ALLOCATOR: dict[str, tuple[str, Fits]] = {
    "expandable_segments": ("True or False", _TRUTH),
    "max_split_size_mb": ("an integer of at least 20", _integer(20, 10**9)),
    "garbage_collection_threshold": ("a number between 0 and 1", _fraction(open=True)),
    "base_addr_aligned_kb": ("an integer from 0 to 16", _integer(0, 16)),
    "page_size": ("1g", _among("1g")),
    "segment_size_mb": ("an integer from 20 to 512", _integer(20, 512)),
    "per_process_memory_fraction": ("a number from 0 to 1", _fraction(open=False)),
    **dict.fromkeys(
        (
            "release_lock_on_npumalloc",
            "pin_memory_expandable_segments",
            "pinned_mem_register",
            "multi_stream_lazy_reclaim",
            "throw_on_npumalloc_oom",
            "pinned_use_background_threads",
        ),
        ("True or False", _TRUTH),
    ),
    **dict.fromkeys(
        (
            "large_segment_size_mb",
            "max_non_split_rounding_mb",
            "roundup_power2_divisions",
            "pinned_reserve_segment_size_mb",
            "pinned_max_round_threshold_mb",
            "pinned_max_cached_size_mb",
        ),
        ("a value", bool),
    ),
}
# Keys that have no effect with a value of another one.
_IGNORED_BESIDE = {
    "segment_size_mb": ("page_size", "1g"),
    "large_segment_size_mb": ("page_size", "1g"),
    "pinned_max_round_threshold_mb": ("pin_memory_expandable_segments", "True"),
    "pinned_max_cached_size_mb": ("pin_memory_expandable_segments", "True"),
}
ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


def check_variables(
    environment: Mapping[str, str], *, npus: int = 0, cores: int | None = None
) -> Iterator[Diagnostic]:
    """Check every variable that is set.

    Args:
        npus: those of this machine; 0 where that is not known.
        cores: those of this machine, where they are known.
    """
    for row in VARIABLES:
        if (given := environment.get(row.name)) is not None and not row.fits(given):
            yield Diagnostic(
                "environment-value",
                f"{row.name} is `{given}`, and takes {row.takes}: {row.otherwise}",
                f"set it to one of these, or unset it: its default is {row.default}",
                row.name,
                expected=row.takes,
                seen=given,
                severity=row.severity,
            )
    yield from _visible_devices(environment, npus)
    yield from _allocator(environment)
    yield from _without_effect(environment, cores)


def visible_devices(given: str) -> list[int]:
    """Return the devices that CANN reads from a list.

    It reads up to the first character that is neither a digit nor a comma. After torch_npu 2.13's
    `_parse_visible_devices` (torch_npu/npu/__init__.py).
    """
    head = re.match(r"[\d,]*", given)
    assert head is not None
    return list(map(int, itertools.takewhile(bool, head[0].split(","))))


def _visible_devices(environment: Mapping[str, str], npus: int) -> Iterator[Diagnostic]:
    if (given := environment.get(VISIBLE)) is None:
        return
    found = visible_devices(given)
    meant = [int(number) for number in re.findall(r"\d+", given)]
    cut_off = partial(Diagnostic, "device-list-cut-off", parameter=VISIBLE, seen=given)
    if found != meant:
        rest = given[len(",".join(map(str, found))) :] if found else given
        yield cut_off(
            f"{VISIBLE} is `{given}`, which is silently cut off before `{rest}`: the NPUs that are"
            f" left are {', '.join(map(str, found)) or 'none'}",
            "write ids, commas and nothing else:"
            f" {VISIBLE}={','.join(map(str, sorted(set(meant))))}",
        )
    elif found != sorted(set(found)):
        yield cut_off(
            f"{VISIBLE} is `{given}`: ids must ascend, and CANN finds no device otherwise",
            f"{VISIBLE}={','.join(map(str, sorted(set(found))))}",
        )
    elif npus and (above := [number for number in found if number >= npus]):
        left = ", ".join(str(number) for number in found if number < npus) or "none"
        yield cut_off(
            f"{VISIBLE} is `{given}`, but this machine's NPUs are 0 to {npus - 1}: it is silently"
            f" cut off at {above[0]}, and left {left}",
            "name devices that are there; `npu-smi info` lists them",
        )


def _allocator(environment: Mapping[str, str]) -> Iterator[Diagnostic]:
    if not (given := environment.get(ALLOCATOR)):
        return
    values: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", given.replace(" ", "")):
        key, colon, value = part.partition(":")
        values[key] = value
        if not colon or key not in _ALLOCATOR:
            yield Diagnostic(
                "environment-value",
                (
                    f"{ALLOCATOR} has `{part}`, which is not"
                    f" {'KEY:VALUE' if not colon else 'a key that it knows'}: torch_npu raises"
                ),
                did_you_mean(near(key, _ALLOCATOR)),
                ALLOCATOR,
                seen=part,
            )
        elif not _ALLOCATOR[key][1](value):
            yield Diagnostic(
                "environment-value",
                (
                    f"{ALLOCATOR} has {key}:{value}, and it takes {_ALLOCATOR[key][0]}: torch_npu"
                    " raises, or takes its default"
                ),
                None,
                ALLOCATOR,
                expected=_ALLOCATOR[key][0],
                seen=value,
            )
    if values.get("expandable_segments") == "True":
        for key in ("max_split_size_mb", "garbage_collection_threshold"):
            if key in values:
                yield Diagnostic(
                    "allocator-conflict",
                    (
                        f"{ALLOCATOR} has expandable_segments:True with {key}, which cannot be"
                        " enabled together: torch_npu raises"
                    ),
                    f"leave {key} out, or set expandable_segments:False",
                    ALLOCATOR,
                    seen=given,
                )
    for key, (other, value) in _IGNORED_BESIDE.items():
        if key in values and values.get(other) == value:
            yield _ignored(
                ALLOCATOR,
                f"{ALLOCATOR}: {key} has no effect with {other}:{value}",
                f"leave {key} out",
            )


def _without_effect(environment: Mapping[str, str], cores: int | None) -> Iterator[Diagnostic]:
    if environment.get("ASCEND_LAUNCH_BLOCKING") == "1" and environment.get(
        "TASK_QUEUE_ENABLE"
    ) in ("1", "2"):
        yield _ignored(
            "TASK_QUEUE_ENABLE",
            (
                f"TASK_QUEUE_ENABLE={environment['TASK_QUEUE_ENABLE']} has no effect under"
                " ASCEND_LAUNCH_BLOCKING=1, which is for debugging"
            ),
            "unset ASCEND_LAUNCH_BLOCKING: operations then run as they are queued, and faster",
        )
    patience = environment.get("HCCL_EXEC_TIMEOUT", "")
    if (
        environment.get("HCCL_OP_EXPANSION_MODE") == "AIV"
        and patience.isdigit()
        and not 0 < int(patience) <= 1091
    ):
        yield _ignored(
            "HCCL_EXEC_TIMEOUT",
            (
                f"HCCL_EXEC_TIMEOUT={patience} is taken as 1091 seconds, the most that"
                " HCCL_OP_EXPANSION_MODE=AIV allows"
            ),
            "set it to 1091 or less, or use another mode",
        )
    affinity = environment.get("CPU_AFFINITY_CONF", "")
    if not _affinity(affinity):
        return
    ranges = [(found[0], int(found[3])) for found in _RANGE.finditer(affinity)]
    if affinity.startswith("0") and "," in affinity:
        yield _ignored(
            "CPU_AFFINITY_CONF",
            (
                f"CPU_AFFINITY_CONF={affinity}: its mode is 0, so that nothing is bound, and the"
                " rest has no effect"
            ),
            "set the mode to 1 or 2, or leave the rest out",
        )
    elif cores is not None and (above := [text for text, last in ranges if last >= cores]):
        yield _ignored(
            "CPU_AFFINITY_CONF",
            (
                f"CPU_AFFINITY_CONF has {', '.join(above)}, and this machine's cores are 0 to"
                f" {cores - 1}: the others are ignored"
            ),
            "name cores that are there; `lscpu` lists them",
        )


def _ignored(variable: str, message: str, help: str) -> Diagnostic:
    return Diagnostic("ignored-variable", message, help, variable)
