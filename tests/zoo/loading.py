"""Classes that are given weights and keep, skip or mix them up.

What is replaced is how `tests.loading.models:Good` loads.
"""

import itertools
from typing import Any

import torch

from tests.zoo.defect import Defect
from tests.zoo.looks import Weights

LOAD, PUT = "tests.loading.models:Good.load_weights", "tests.loading.models:Good.put"


def keeps_all(real: Any) -> Any:
    return lambda self, weights: real(self, list(weights))


def stops_early(real: Any) -> Any:
    return lambda self, weights: real(self, itertools.islice(weights, 5))


def skips(name: str) -> Any:
    return lambda real: (
        lambda self, weights: real(self, ((one, tensor) for one, tensor in weights if one != name))
    )


def joins_in_a_call(real: Any) -> Any:
    def load(self: Any, weights: Any) -> None:
        parts: dict[str, torch.Tensor] = {}
        for name, tensor in weights:
            if name[0] in "qkv":
                parts[name[0]] = tensor.clone()
            else:
                real(self, [(name, tensor)])
        if len(parts) == 3:
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([parts["q"], parts["k"], parts["v"]]))

    return load


def adds(real: Any) -> Any:
    def put(self: Any, name: str, tensor: torch.Tensor) -> None:
        if name == "mean":
            self.mean += tensor
        else:
            real(self, name, tensor)

    return put


def is_the_tensor(real: Any) -> Any:
    def put(self: Any, name: str, tensor: torch.Tensor) -> None:
        if name == "o.weight":
            self.o.weight.data = tensor
        else:
            real(self, name, tensor)

    return put


def _weights(name: str, upstream: str, summary: str, rule: str, at: str, wrong: Any) -> Defect:
    return Defect(name, upstream, summary, rule, Weights(rule), at, wrong)


DEFECTS = (
    _weights(
        "tensors-kept",
        "vllm#42244",
        "All tensors are listed first: a loader that uses its buffer again has put other bytes"
        " there.",
        "stale-reference",
        LOAD,
        keeps_all,
    ),
    _weights(
        "tensors-aliased",
        "verl#5599",
        "What is kept is the receiver's own buffer, and the next bucket is written into it.",
        "aliased-parameter",
        PUT,
        is_the_tensor,
    ),
    _weights(
        "iterator-left",
        "sglang#25748",
        "Loading stops before the loader has given everything.",
        "iterator-not-exhausted",
        LOAD,
        stops_early,
    ),
    _weights(
        "skipped-by-name",
        "sglang#38616",
        "A renaming does not match, and most of a checkpoint is silently skipped.",
        "never-loaded",
        LOAD,
        skips("o.weight"),
    ),
    _weights(
        "never-written",
        "vllm#41086",
        "A parameter is never written, and computes with what was in the memory.",
        "never-loaded",
        LOAD,
        skips("o.bias"),
    ),
    _weights(
        "half-written",
        "vllm#37322",
        "Of a fused weight one part never comes.",
        "partly-written-parameter",
        LOAD,
        skips("v.weight"),
    ),
    _weights(
        "joined-in-a-call",
        "SkyRL#1680",
        "The parts of a fused weight are joined if they come in one call of load_weights.",
        "chunk-dependent",
        LOAD,
        joins_in_a_call,
    ),
    _weights(
        "added-on-reload",
        "vllm#44814",
        "A statistic is added to on every load.",
        "reload-dependent",
        PUT,
        adds,
    ),
)
