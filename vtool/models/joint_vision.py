"""One forward pass of the vision tower for the images and the videos of a micro-batch.

Transformers runs the tower once for images and once for videos. FSDP2 gathers the tower's weights
on all ranks block by block: a rank whose micro-batch has both would wait for others whose
micro-batches have images alone, or the dummy.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vtool.families.family import Family
from vtool.models.tower_index import TowerIndex
from vtool.releases import pass_features, reset_features

_INPUTS = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw")


@contextmanager
def joint_vision_forward(family: Family, model: nn.Module) -> Iterator[None]:
    """Give the tower all patches at once in the model's forward passes, and split its features.

    The features are the same: no patch attends to one of another image, nor of another video.
    """

    def join(
        module: Any, arguments: tuple[Any, ...], inputs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = [inputs[name] for name in _INPUTS if inputs.get(name) is not None]
        if len(given) < len(_INPUTS):
            return None
        pixels, grids = torch.cat(given[:2]), torch.cat(given[2:])
        index: dict[str, TowerIndex] = {}
        if inputs.get("image_index") is not None:
            index["image_index"] = inputs["image_index"].joined(inputs["video_index"])
        output = module.get_image_features(pixels, grids, return_dict=True, **index)
        images, videos = family.split(output, len(given[2]))
        features = {"image": images, "video": videos}
        return arguments, pass_features(module, inputs, features, torch.cat)

    inner: Any = model.model
    hooks = (
        inner.register_forward_pre_hook(join, with_kwargs=True),
        inner.register_forward_hook(lambda module, *_: reset_features(module), always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
