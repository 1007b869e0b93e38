"""Frozen linear layers in NF4 (QLoRA, arXiv 2305.14314): four bits a weight, by bitsandbytes.

Packing is done on the CPU, whichever device computes: bitsandbytes has a kernel of its own for each
kind, and where they round differently, a merge on another machine would be into another base.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import Family

WEIGHTS_PER_SCALE = 64
"""The weights that share one scale."""
QUANTIZED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of weights that bitsandbytes quantizes."""
NF4_RECORD = "base_quantization.json"
"""The file of an adapter's folder that says its base was in NF4, and how to make that."""
_KIND, _PACKAGE = "nf4", "bitsandbytes"
_NOT_OF_THE_BASE = (".lora_", ".modules_to_save.", ".original_module")


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weight is kept in NF4, and its bias as it was.

    A product is computed with the weight unpacked, in the dtype of the pass; it is unpacked again
    in the backward pass. Where a file's weight follows, `weight` is on the meta device, and whole.
    """

    absmax: Tensor | None
    """The scale of each block, in float32; None on the meta device."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("absmax", None, persistent=False)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        if not self.weight.is_meta:
            self.pack(self.weight.detach(), self.weight.device)

    @property
    def packed(self) -> bool:
        """True once it has its weight."""
        return self.absmax is not None

    def pack(self, weight: Tensor, device: torch.device) -> None:
        """Take a whole weight, in any dtype, and keep it on a device."""
        packed, absmax = quantize(weight)
        self.weight = nn.Parameter(packed.to(device), requires_grad=False)
        self.absmax = absmax.to(device)

    def unpacked(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weight [out, in] that is computed with."""
        assert self.absmax is not None, "its weight is there"
        return dequantize(self.weight, self.absmax, (self.out_features, self.in_features), dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the weight, in autocast's dtype where it is on."""
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        bias = None if self.bias is None else self.bias.to(input.dtype)
        product: Tensor = _Product.apply(input, self, bias)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """The product with an unpacked weight, which the backward pass unpacks again."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: Nf4Linear, bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        return functional.linear(input, layer.unpacked(input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.unpacked(gradient.dtype), None, None


def import_bitsandbytes() -> Any:
    """Import bitsandbytes, which asks no hub for a kernel.

    On some CPUs its import does, through the package `kernels`, for a product that is not used
    here.

    Raises:
        Findings: `extra-not-installed`, fatal.
    """
    if _PACKAGE not in sys.modules:
        if lacking := missing_bitsandbytes():
            raise Findings(lacking, fatal=True)
        # it warns that there is no such kernel
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
        there = sys.modules.get("kernels")
        sys.modules["kernels"] = None  # type: ignore[assignment]
        try:
            import bitsandbytes  # noqa: F401
        finally:
            del sys.modules["kernels"]
            if there is not None:
                sys.modules["kernels"] = there
    return sys.modules[_PACKAGE]


def missing_bitsandbytes() -> Diagnostic | None:
    """Return the finding that bitsandbytes is not installed, if it is not."""
    if find_spec(_PACKAGE) is not None:
        return None
    return Diagnostic(
        "extra-not-installed",
        "a base in NF4 needs the extra `qlora`: bitsandbytes is not installed",
        "pip install 'vtool[qlora]', or set lora.base_dtype=float32",
        "lora.base_dtype",
    )


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight packed, uint8 [numbers / 2, 1], and the scales of its blocks."""
    import_bitsandbytes()
    whole = weight.detach().cpu().float().reshape(1, -1)
    packed, absmax = torch.ops.bitsandbytes.quantize_4bit(
        whole, WEIGHTS_PER_SCALE, _KIND, torch.uint8
    )
    return packed, absmax


def dequantize(
    packed: Tensor, absmax: Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Return the weight that a packed one stands for."""
    out, into = shape
    unpack = torch.ops.bitsandbytes.dequantize_4bit
    if into % 2 == 0:
        whole: Tensor = unpack(packed, absmax, WEIGHTS_PER_SCALE, _KIND, [out, into], dtype)
        return whole
    # its kernels want even rows: one row of all numbers, and one more where these are odd
    row: Tensor = unpack(packed, absmax, WEIGHTS_PER_SCALE, _KIND, [1, 2 * packed.numel()], dtype)
    return row[0, : out * into].reshape(shape)


def language_linears(model: nn.Module, family: Family) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers that `lora.base_dtype=nf4` is of, by their names in the model.

    They are those of the language model, but for the head and what is trained.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Linear)
            and module is not head
            and not any(part in f".{name}." for part in _NOT_OF_THE_BASE)
            and family.component(name) == "language"
        ):
            yield name, module


def keep_in_nf4(model: nn.Module, family: Family) -> None:
    """Keep the language model's linear layers in NF4, in place, below their adapters."""
    for name, linear in list(language_linears(model, family)):
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Nf4Linear(linear))


def round_to_nf4(model: nn.Module, family: Family) -> None:
    """Give the language model's linear layers the weights that they would have in NF4, in place."""
    with torch.no_grad():
        for _, linear in language_linears(model, family):
            packed, absmax = quantize(linear.weight)
            shape = (linear.out_features, linear.in_features)
            linear.weight.copy_(dequantize(packed, absmax, shape, torch.float32))


def unquantizable(
    model: nn.Module, family: Family, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the weights whose dtype bitsandbytes does not quantize.

    Args:
        weights: by the model's names, of parameters on the meta device, in the dtypes of files.
    """
    for name, linear in language_linears(model, family):
        weight = weights.get(f"{name}.weight", linear.weight)
        if weight.dtype not in QUANTIZED_DTYPES:
            yield f"{name}.weight", weight.dtype


def numbers_of(model: nn.Module) -> dict[Tensor, int]:
    """Return how many numbers each parameter stands for: a packed one for two a byte."""
    found: dict[Tensor, int] = {parameter: parameter.numel() for parameter in model.parameters()}
    for layer in model.modules():
        if isinstance(layer, Nf4Linear):
            found[layer.weight] = layer.in_features * layer.out_features
    return found


def packed_bytes(model: nn.Module) -> dict[Tensor, int]:
    """Return the bytes that each parameter will take, once packed where it is to be."""
    found: dict[Tensor, int] = {one: one.numel() * one.element_size() for one in model.parameters()}
    for layer in model.modules():
        if isinstance(layer, Nf4Linear):
            numbers = layer.in_features * layer.out_features
            found[layer.weight] = -(-numbers // 2) + 4 * -(-numbers // WEIGHTS_PER_SCALE)
    return found


def record(whole: Sequence[str]) -> str:
    """Return the config with which transformers makes the same NF4 base, for an adapter's folder.

    Args:
        whole: the modules that are trained whole.
    """
    config = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": _KIND,
        "bnb_4bit_use_double_quant": False,
        "llm_int8_skip_modules": ["lm_head", "model.visual", *whole],
    }
    return json.dumps(config, indent=2) + "\n"
