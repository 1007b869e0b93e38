"""Any image-text-to-text model of transformers, by what its class says of itself.

transformers' classes share one contract (`get_encoder`, `get_decoder`, `get_image_features`). What
a family of vtool's own knows by name is asked of the model here, and held against its names.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vtool.families.family import Family
from vtool.families.tokens import TokenIds

_LANGUAGE = ("language_model", "text_model", "lm_head", "embed_tokens", "layers", "norm")
_VISION = (
    *("vision_tower", "vision_model", "vision_encoder", "visual"),
    *("image_tower", "video_tower"),
)
_WRAPPERS = ("model", "base_model", "module")
"""Parts of names that say nothing: of the class itself, of peft, and of DDP."""
_MERGERS = ("merger", "merger_list", "deepstack_merger_list")
"""Children of a tower that turn its features into embeddings, as Qwen's have them."""
_IMAGE_TOKEN = ("image_token_id", "image_token_index")
_VIDEO_TOKEN = ("video_token_id", "video_token_index")
NO_TOKEN = -1
"""The id of a token that a model has not."""


class AnyFamily(Family):
    """The code of a model type that has none of its own here."""

    def computes_as_known(self, module: nn.Module) -> bool:
        """Return False: a class may scale or cap the output of its head behind it."""
        return False

    def is_of_transformers(self, module: nn.Module) -> bool:
        """Return False: no tower index is known to such a tower."""
        return False

    def token_ids(self, config: Any, tokenizer: Any) -> TokenIds:
        """Return the ids that a folder's config and tokenizer name."""
        pad = tokenizer.pad_token_id
        return TokenIds(
            image=_first(config, _IMAGE_TOKEN),
            video=_first(config, _VIDEO_TOKEN),
            vision_start=NO_TOKEN,
            vision_end=NO_TOKEN,
            end=tokenizer.eos_token_id,
            pad=pad if pad is not None else tokenizer.eos_token_id,
        )

    def component(self, name: str) -> str:
        """Return the component (vision, projector or language) of a parameter or module name."""
        parts = [part for part in name.split(".") if part not in _WRAPPERS]
        if not parts or parts[0] in _LANGUAGE:
            return "language"
        if parts[0] not in _VISION:
            return "projector"
        return "projector" if len(parts) > 1 and parts[1] in _MERGERS else "vision"

    def unreached(self, model: nn.Module) -> frozenset[str]:
        """Return the parameters that no image reaches, as they were found for the folder."""
        found: frozenset[str] = model.unreached  # type: ignore[assignment]
        return found

    def tower(self, model: nn.Module) -> list[nn.Module]:
        """Return the tower's blocks, then the tower and what else runs on images alone."""
        inner: Any = model.model
        blocks = [one for name, one in _blocks(model) if self.component(name) == "vision"]
        whole = [
            child
            for name, child in inner.named_children()
            if self.component(f"model.{name}") != "language"
        ]
        return [*blocks, *whole]

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that an engine wraps, in order of computation, inner ones first."""
        layers = [one for name, one in _blocks(model) if self.component(name) == "language"]
        tower = [one for name, one in _blocks(model) if self.component(name) == "vision"]
        return [*tower, *layers]

    def recomputable(self, model: nn.Module) -> list[nn.Module]:
        """Return the blocks whose activations may be computed again, in order of computation."""
        return self.blocks(model)

    def features(self, output: Any) -> Iterator[Tensor]:
        """Yield the tensors that `get_image_features` hands to the language model."""
        yield from _tensors([output.pooler_output, getattr(output, "deepstack_features", None)])

    def smallest_image(self, model: nn.Module, device: torch.device) -> dict[str, Tensor]:
        """Return the inputs of the smallest image, as the folder's processor cut it."""
        given: Mapping[str, Tensor] = model.smallest_image  # type: ignore[assignment]
        inner: Any = model.model
        taken = inspect.signature(inner.get_image_features).parameters
        dtype = next(model.parameters()).dtype
        return {
            name: one.to(device, dtype) if one.is_floating_point() else one.to(device)
            for name, one in given.items()
            if name in taken
        }

    def serving_files(
        self, image_processor: Mapping[str, Any], video_processor: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return nothing: the processor has written all of its files itself."""
        return {}


def odd_components(family: Family, model: nn.Module) -> list[str]:
    """Return the parameters that are not of the component that the model itself says.

    Args:
        model: of transformers, with `get_encoder` and `get_decoder`.
    """
    own: Any = model
    of_language = {id(one) for one in own.get_decoder().parameters()}
    if (head := own.get_output_embeddings()) is not None:
        of_language |= {id(one) for one in head.parameters()}
    encoder = own.get_encoder(modality="image")
    of_vision = {id(one) for one in encoder.parameters()} if encoder is not own else set()
    odd = []
    for name, one in model.named_parameters():
        said = family.component(name)
        if (said == "language") != (id(one) in of_language) or (
            said == "projector" and id(one) in of_vision and ".merger" not in name
        ):
            odd.append(name)
    return odd


def _blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of towers and the layers of language models, in order, by name."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or not len(module):
            continue
        if any(name.startswith(f"{one}.") for one in found):
            continue
        kinds = {type(one) for one in module}
        if len(kinds) == 1 and any(True for _ in module[0].children()):
            found.append(name)
            for place, block in enumerate(module):
                yield f"{name}.{place}", block


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for one in value:
            yield from _tensors(one)


def _first(config: Any, names: tuple[str, ...]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((one for one in found if isinstance(one, int)), NO_TOKEN)
