"""Conflicts of `model.attention` with a device, found without torch."""

from vtool.config.schema import Model

FLASH = ("flash_attention_2", "flash_attention_3")
"""The kernels of FlashAttention's packages."""
NOT_ON_CPU = ("varlen", *FLASH)
"""The kernels in whose place torch's SDPA computes on a CPU, by the same lengths."""
ATTENTION_KEY = "model.attention"


def attention_conflict(model: Model, kind: str) -> tuple[str, str] | None:
    """Return why attention cannot compute on a kind of device, and what to do instead.

    Args:
        model: the settings.
        kind: `device.kind`; of `auto`, what no kind of device could do.
    """
    chosen = model.attention
    if chosen in FLASH and kind in ("cpu", "npu"):
        device = "a CPU" if kind == "cpu" else "an NPU"
        return (
            f"{ATTENTION_KEY} is {chosen}, which computes on CUDA alone, and the device is"
            f" {device}",
            f"set {ATTENTION_KEY}=varlen, which has its own way on each kind of device",
        )
    narrow = chosen in FLASH or (chosen == "varlen" and kind == "cuda")
    if narrow and model.dtype != "bfloat16":
        return (
            f"{ATTENTION_KEY} is {chosen}, which computes on CUDA in bfloat16 alone, and"
            f" model.dtype is {model.dtype}",
            f"set model.dtype=bfloat16, or {ATTENTION_KEY}=sdpa",
        )
    return None
