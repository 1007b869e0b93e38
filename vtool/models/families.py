"""The model families: which class of transformers, and what our code must know about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import nn

from vtool.models.tokens import TokenIds

FAMILIES = {"qwen2_vl": "vtool.models.qwen2_vl:Qwen2VL", "qwen2_5_vl": "vtool.models.qwen2_5_vl:Qwen25VL"}


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """How a family's image processor cuts an image when no folder says so."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int


class Family(Protocol):
    """What differs from family to family."""

    model_type: str
    images: ImageDefaults

    def model_class(self) -> Any:
        """The transformers class."""

    def image_processor_class(self) -> Any:
        """The transformers image processor that needs no torchvision."""

    def random_config(self, size: str, vocab_size: int, ids: TokenIds) -> Any:
        """The transformers config of a model of this size."""

    def part(self, name: str) -> str:
        """The part, by the names of `model.freeze`, that a parameter or module of this name belongs to."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The parts that are computed one after the other, inner ones first: each layer, each block of the tower, and the tower."""

    def dummy_visual(self, model: nn.Module, device: torch.device) -> torch.Tensor:
        """A scalar 0 that hangs on every trainable parameter of the vision tower, computed on `device`."""

    def serving_files(self, image_processor: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The processor's JSON files for a server, by name, from the image processor's settings."""


def family(name: str) -> Family:
    """The family of this name (a name of `FAMILIES`)."""
    module, _, attribute = FAMILIES[name].partition(":")
    instance: Family = getattr(import_module(module), attribute)()
    return instance
