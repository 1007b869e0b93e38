"""Small classes with `load_weights`, one right and one wrong for each rule.

A file for `vtool load-check python:…` too.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn

Weights = Iterable[tuple[str, Tensor]]


def checkpoint() -> dict[str, Tensor]:
    """A fused qkv in three parts, a projection, a statistic in a buffer."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "q.weight": (8, 8),
        "k.weight": (8, 8),
        "v.weight": (8, 8),
        "o.weight": (8, 8),
        "o.bias": (8,),
        "mean": (4,),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class Good(nn.Module):
    """Copies each tensor into its place before it asks for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.o = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(4))

    def load_weights(self, weights: Weights) -> None:
        for name, tensor in weights:
            self.put(name, tensor)

    def put(self, name: str, tensor: Tensor) -> None:
        with torch.no_grad():
            self.place(name).copy_(tensor)

    def place(self, name: str) -> Tensor:
        part, _, _ = name.partition(".")
        if part in ("q", "k", "v"):
            start = 8 * "qkv".index(part)
            return self.qkv.weight[start : start + 8]
        return dict(itertools.chain(self.named_parameters(), self.named_buffers()))[name]


class LooksOneAhead(Good):
    """Needs two tensors at a time, which is harmless where two stay valid."""

    def load_weights(self, weights: Weights) -> None:
        for before, _ in itertools.pairwise(_ended(weights)):
            self.put(*before)


def _ended(weights: Weights) -> Weights:
    yield from weights
    yield "", torch.empty(0)


class KeepsAll(Good):
    def load_weights(self, weights: Weights) -> None:
        kept = []
        for name, tensor in weights:
            kept.append((name, tensor))  # the line that keeps them
        super().load_weights(kept)


class KeepsViews(Good):
    """Lets go of the tensors, and keeps views of their memory."""

    def load_weights(self, weights: Weights) -> None:
        super().load_weights([(name, tensor.view(tensor.shape)) for name, tensor in weights])


class KeepsClones(Good):
    """Holds copies: safe, however the loader uses its buffer."""

    def load_weights(self, weights: Weights) -> None:
        super().load_weights([(name, tensor.clone()) for name, tensor in weights])


class Layers(nn.Module):
    """Two layers, each with two norms of one size and a fused weight of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm1": nn.LayerNorm(6), "norm2": nn.LayerNorm(6)}) for _ in range(2)
        )
        self.fused = nn.ModuleList(nn.Linear(6, 12, bias=False) for _ in range(2))

    def load_weights(self, weights: Weights) -> None:
        parameters = dict(self.named_parameters())
        for given, tensor in weights:
            name = self.renamed(given)
            path, _, part = name.rpartition(".")
            with torch.no_grad():
                if part in ("gate", "up"):
                    start = 6 * (part == "up")
                    parameters[f"{path}.weight"][start : start + 6].copy_(tensor)
                else:
                    parameters[name].copy_(tensor)

    def renamed(self, name: str) -> str:
        return name

    @staticmethod
    def checkpoint() -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(0)
        names = {
            f"layers.{layer}.{norm}.{kind}": (6,)
            for layer in range(2)
            for norm in ("norm1", "norm2")
            for kind in ("weight", "bias")
        }
        shapes = names | {
            f"fused.{layer}.{part}": (6, 6) for layer in range(2) for part in ("gate", "up")
        }
        return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


class ExchangesNorms(Layers):
    def renamed(self, name: str) -> str:
        exchanged = {"norm1": "norm2", "norm2": "norm1"}
        return ".".join(exchanged.get(part, part) for part in name.split("."))


class StopsEarly(Good):
    def load_weights(self, weights: Weights) -> None:
        super().load_weights(itertools.islice(weights, 5))


class SkipsBias(Good):
    def load_weights(self, weights: Weights) -> None:
        super().load_weights((name, tensor) for name, tensor in weights if name != "o.bias")


class HasMore(Good):
    """Has a parameter that no checkpoint knows."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.empty(3))


class SkipsV(Good):
    def load_weights(self, weights: Weights) -> None:
        super().load_weights((name, tensor) for name, tensor in weights if name != "v.weight")


class SkipsBuffer(Good):
    def load_weights(self, weights: Weights) -> None:
        super().load_weights((name, tensor) for name, tensor in weights if name != "mean")


class ByOrder(Good):
    """Takes the fourth tensor for the projection, whatever its name."""

    def load_weights(self, weights: Weights) -> None:
        for number, (name, tensor) in enumerate(weights):
            self.put("o.weight" if number == 3 and tensor.shape == (8, 8) else name, tensor)


class CachesInCall(Good):
    """Joins the parts of qkv that come in one call."""

    def load_weights(self, weights: Weights) -> None:
        parts = {}
        for name, tensor in weights:
            if name[0] in "qkv":
                parts[name[0]] = tensor.clone()
            else:
                self.put(name, tensor)
        if len(parts) == 3:
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([parts["q"], parts["k"], parts["v"]]))


class Adds(Good):
    """Adds to a statistic on every load."""

    def put(self, name: str, tensor: Tensor) -> None:
        if name == "mean":
            self.mean += tensor
        else:
            super().put(name, tensor)


class ChangesGiven(Good):
    """Adds one to what it is given, in the loader's memory."""

    def put(self, name: str, tensor: Tensor) -> None:
        if name == "o.bias":
            tensor += 1.0
        super().put(name, tensor)


class TurnsGiven(Good):
    """Changes the shape of what it is given, and no value."""

    def put(self, name: str, tensor: Tensor) -> None:
        if name == "o.weight":
            tensor.t_()
            tensor = tensor.t()
        super().put(name, tensor)


class Aliases(Good):
    def put(self, name: str, tensor: Tensor) -> None:
        if name == "o.weight":
            self.o.weight.data = tensor
        else:
            super().put(name, tensor)


class Narrow(Good):
    def __init__(self) -> None:
        super().__init__()
        self.o.to(torch.bfloat16)


class NarrowClone(Narrow):
    """Copies first, and narrows the copy."""

    def put(self, name: str, tensor: Tensor) -> None:
        super().put(name, tensor.clone())


class HalfRange(Good):
    """A dtype of its own, with a longer mantissa than bfloat16, which ends at 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.half()


class HalfBuffer(Good):
    """Writes one half of the statistic."""

    def put(self, name: str, tensor: Tensor) -> None:
        if name == "mean":
            self.mean[:2].copy_(tensor[:2])
        else:
            super().put(name, tensor)


class ChanceBuffer(Good):
    """Has a buffer that nothing is loaded into, of whatever values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "scratch",
            torch.randn(4, generator=torch.Generator().manual_seed(time.time_ns() % 2**31)),
        )


class EmptyBuffer(Good):
    """Has a buffer that nothing is written into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.empty(4, dtype=torch.int32))


class MindsTheMark(Good):
    """Keeps tensors, and copies those that carry SGLang's mark."""

    def load_weights(self, weights: Weights) -> None:
        super().load_weights(
            [
                (
                    name,
                    tensor.clone() if hasattr(tensor, "_sglang_runai_streamer_tensor") else tensor,
                )
                for name, tensor in weights
            ]
        )


class InnerStopsEarly(Good):
    """Hands the tensors of each part to a loader of that part, one of which stops at its first."""

    def load_weights(self, weights: Weights) -> None:
        for part, inner in itertools.groupby(weights, lambda pair: pair[0].partition(".")[0]):
            super().load_weights(itertools.islice(inner, 1 if part == "o" else None))


class OneRowForAll(Good):
    """Fills the projection with its first row."""

    def put(self, name: str, tensor: Tensor) -> None:
        super().put(name, tensor[:1].expand(8, 8) if name == "o.weight" else tensor)


class Random(Good):
    """Adds noise that no seed governs."""

    def put(self, name: str, tensor: Tensor) -> None:
        noise = torch.randn(
            tensor.shape, generator=torch.Generator().manual_seed(time.time_ns() % 2**31)
        )
        super().put(name, tensor + noise)


class LacksAPackage(Good):
    """Imports one where a call does not bring everything."""

    def load_weights(self, weights: Weights) -> None:
        kept = [(name, tensor.clone()) for name, tensor in weights]
        if len(kept) < 6:
            raise ImportError("no package joins the parts")
        super().load_weights(kept)


_made: list[Good] = []


def only_twice() -> Good:
    _made.append(Good())
    if len(_made) > 2:
        raise RuntimeError("no more of them")
    return _made[-1]


def raises() -> Good:
    raise RuntimeError("no such luck")


def exits() -> Good:
    print("no licence was found", flush=True)
    os._exit(3)


def leaves() -> Good:
    sys.exit(4)


def hangs() -> Good:
    time.sleep(1000)
    return Good()


def computes_for_ever() -> Good:
    while True:
        pass


def not_a_model() -> object:
    return object()
