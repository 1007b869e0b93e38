"""An index of what a vision tower reads off the sizes of its images, made on the CPU.

Left to itself, a tower asks the device for the lengths of its images and windows in every block,
and the process waits each time for all that the device has still to do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vtool.families.family import Family
from vtool.models.spans import Spans
from vtool.releases import takes_tower_index

_GIVEN = "index"
"""The argument of the tower that has it; `image_index` and `video_index` of the model."""


@dataclass(frozen=True, slots=True, eq=False)
class TowerIndex:
    """The places of some images' patches, and the lengths by which a tower attends to them.

    For engines it is one argument, and not tensors: FSDP2 would round the weights of an
    interpolation to bfloat16.
    """

    places: Mapping[str, Tensor]
    """By the names of transformers' arguments."""
    spans: Mapping[str, Spans]
    """Images and windows, by the names of the arguments that have their ends (cu_seqlens)."""

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> "TowerIndex":
        """Return the index of what `Family.tower_index` names, which is on the CPU."""
        ends = {name: tensor for name, tensor in named.items() if name.startswith("cu_")}
        places = {name: tensor for name, tensor in named.items() if name not in ends}
        return cls(places, {name: Spans.ending_at(tensor) for name, tensor in ends.items()})

    def arguments(self) -> dict[str, Any]:
        """Return the tower's own arguments, and `spans`, which reach its attention."""
        longest = {
            name.replace("cu_", "max_").removesuffix("s"): one.longest
            for name, one in self.spans.items()
        }
        ends = {name: one.ends for name, one in self.spans.items()}
        return {**self.places, **ends, **longest, "spans": tuple(self.spans.values())}

    def map(self, change: Callable[[Tensor], Tensor]) -> "TowerIndex":
        """Return the index with every tensor changed, such as moved to a device."""
        places = {name: change(tensor) for name, tensor in self.places.items()}
        return TowerIndex(places, {name: one.map(change) for name, one in self.spans.items()})

    def joined(self, other: "TowerIndex") -> "TowerIndex":
        """Return the index of all images of both, those of `other` behind."""
        places = dict(self.places)
        for name, tensor in other.places.items():
            # the one kind of places that counts on from image to image
            offset = len(places[name]) if name == "window_index" else 0
            places[name] = torch.cat([places[name], tensor + offset if offset else tensor])
        spans = {}
        for name, one in self.spans.items():
            more = other.spans[name]
            spans[name] = Spans.of(one.lengths + more.lengths)
        return TowerIndex(places, spans)


@dataclass(frozen=True, slots=True)
class TowerIndexer:
    """Makes the index of a model's images; a data worker has a copy."""

    family: Family
    vision: Any
    """The tower's config."""

    def index(self, grids: Tensor) -> TowerIndex:
        """Return the index of images, or of videos.

        Args:
            grids: patches in time, height and width, int64 [I, 3], on the CPU.
        """
        return TowerIndex.of(self.family.tower_index(self.vision, grids))


def tower_indexer(family: Family, model: nn.Module) -> TowerIndexer | None:
    """Return the maker of a model's indices; None where its tower takes none.

    An older transformers has none, and a class of the user's own may compute anything.
    """
    if not takes_tower_index() or not family.is_of_transformers(model):
        return None
    config: Any = model.config
    return TowerIndexer(family, config.vision_config)


def use_tower_index(model: nn.Module) -> None:
    """Let a model's tower take its index in the place of what it would read off the device."""

    def unfold(
        _tower: nn.Module, given: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        index = more.pop(_GIVEN, None)
        return None if index is None else (given, more | index.arguments())

    # behind what an engine does with the tower's arguments: FSDP2 puts its hooks first
    model.model.visual.register_forward_pre_hook(unfold, with_kwargs=True)  # type: ignore[union-attr]
