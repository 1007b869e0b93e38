"""The checks of a class: the measurement that each one needs, and whom it can be asked of.

Names only, for the probe and for vtool. The measurements are in `audit.MEASUREMENTS`, the grades in
`vtool.loading.grading.GRADERS`, the texts in `vtool.diagnostics.rules_loading`.
"""

from dataclasses import dataclass

WATCHED = "watched-load"
TWO_RANKS = "two-ranks"
RING = "reusable_buffer"
VLLM_ONLY = ("vllm",)
"""The host whose classes are loaded by ranks, processed, and quantized."""


@dataclass(frozen=True, slots=True)
class ClassCheck:
    """One check of a class."""

    rule: str
    measurement: str
    """The loads that its facts come from."""
    sources: tuple[str, ...] = ()
    """Sources of weights of which the settings must have one; any, where there is none."""
    stream_only: bool = False
    """Only a class that takes an iterator can be checked."""
    needs_all_names: bool = False
    """Only a checkpoint with every tensor that the class takes gives it a meaning."""
    quantized_twin: bool = False
    """True if the quantized twin is checked too."""
    hosts: tuple[str, ...] = ()
    """The frameworks whose classes can be asked; none: every subject can be."""


CHECKS = (
    ClassCheck(
        "stale-reference",
        "ring-of-buffers",
        (RING, "sglang_marked", "safetensors", "runai", "fastsafetensors", "runai_distributed"),
        stream_only=True,
        quantized_twin=True,
    ),
    ClassCheck("iterator-not-exhausted", WATCHED, stream_only=True),
    ClassCheck("unwritten-parameter", WATCHED, needs_all_names=True, quantized_twin=True),
    ClassCheck("partly-written-parameter", WATCHED, needs_all_names=True, quantized_twin=True),
    ClassCheck("unconsumed-tensor", WATCHED, needs_all_names=True, quantized_twin=True),
    ClassCheck("retained-memory", WATCHED, stream_only=True),
    ClassCheck("order-dependent", "another-order", ("shuffled",), stream_only=True),
    ClassCheck("chunk-dependent", "several-calls", ("bucketed",), stream_only=True),
    ClassCheck("reload-dependent", "second-load"),
    ClassCheck("aliased-parameter", WATCHED, quantized_twin=True),
    ClassCheck("lossy-cast", WATCHED),
    ClassCheck("nondeterministic", WATCHED, quantized_twin=True),
    ClassCheck("never-loaded", WATCHED, needs_all_names=True),
    ClassCheck("partly-loaded-tensor", WATCHED, stream_only=True, needs_all_names=True),
    ClassCheck("wrong-place", WATCHED, stream_only=True, needs_all_names=True),
    ClassCheck("shard-mismatch", TWO_RANKS, hosts=VLLM_ONLY),
    ClassCheck("stale-after-processing", "processing", hosts=VLLM_ONLY, quantized_twin=True),
    ClassCheck("quantised-load", "quantized-twin", hosts=VLLM_ONLY),
    ClassCheck("computes-differently", "outputs", hosts=("vllm", "sglang")),
    ClassCheck("stage-mismatch", TWO_RANKS, hosts=VLLM_ONLY),
    ClassCheck("expert-mismatch", TWO_RANKS, hosts=VLLM_ONLY),
)
BY_RULE = {check.rule: check for check in CHECKS}
NEED_ALL_NAMES = tuple(check.rule for check in CHECKS if check.needs_all_names)
CHECKS_ON_RANKS = tuple(check.rule for check in CHECKS if check.measurement == TWO_RANKS)
OF_QUANTIZED_TWIN = (
    *(check.rule for check in CHECKS if check.quantized_twin and check.needs_all_names),
    *(check.rule for check in CHECKS if check.quantized_twin and not check.needs_all_names),
)
