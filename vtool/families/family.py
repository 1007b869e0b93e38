"""The code of a model family: what all families share, and how a family is loaded."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from vtool.families import family_facts
from vtool.families.facts import FamilyFacts
from vtool.families.frames import FrameRequest, sample_in_groups
from vtool.families.tokens import TokenIds, TokenNames
from vtool.model_folder import PROCESSOR_FILES, VIDEO_SETTINGS_FILE


class Family:
    """The code that all families share. The subclass of a family overrides what differs.

    In each, `model.visual` is the tower: `patch_embed`, `blocks` one after the other, `merger`.
    `model.language_model.layers` follow on embeddings into which the tower's features have been
    put.
    """

    reads_sizes_of_images = False
    """The tower reads the sizes of its images even where it is given their index."""

    def __init__(self, facts: FamilyFacts):
        self.facts = facts

    def model_class(self) -> Any:
        """Return transformers' model class."""
        return _from_transformers(self.facts.model_class_name)

    def computes_as_known(self, module: nn.Module) -> bool:
        """Return whether a model's forward is transformers'.

        What a forward of the user's own (model.modeling) does with its head's output is not known.
        """
        return bool(type(module).forward is self.model_class().forward)

    def is_of_transformers(self, module: nn.Module) -> bool:
        """Return whether a model, around which there is no engine yet, is of transformers' class.

        One that is derived from it may have a tower of the user's own.
        """
        return bool(type(module) is self.model_class())

    def image_processor_class(self, backend: str) -> Any:
        """Return transformers' image processor class of a backend, `torchvision` or `pil`."""
        suffix = "Pil" if backend == "pil" else ""
        return _from_transformers(f"{self.facts.image_processor}{suffix}")

    def video_processor_class(self) -> Any:
        """Return transformers' video processor class, which needs torchvision."""
        return _from_transformers(self.facts.video_processor)

    def random_config(self, size: str, vocab_size: int, ids: TokenIds) -> Any:
        """Return the transformers config of a model with random weights of this size."""
        table = self.facts.sizes[size]
        text = {
            "vocab_size": vocab_size,
            "hidden_size": table["hidden"],
            "intermediate_size": table["intermediate"],
            "num_hidden_layers": table["layers"],
            "num_attention_heads": table["heads"],
            "num_key_value_heads": table["kv_heads"],
            "max_position_embeddings": table["positions"],
            "tie_word_embeddings": True,
            "eos_token_id": ids.end,
            "pad_token_id": ids.pad,
            "bos_token_id": None,
        }
        return _from_transformers(f"{self.facts.class_prefix}Config")(
            text_config=text | self.text_config(table),
            vision_config=self.vision_config(table),
            tie_word_embeddings=True,
            **{
                field: token
                for name, field in self.facts.token_fields.items()
                if (token := getattr(ids, name)) is not None
            },
        )

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """Return the fields that a random model's text config has besides those of all families."""
        return {"rope_parameters": rope(table["hidden"] // table["heads"])}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """Return the vision config of a random model."""
        patches = self.facts.patches
        return {
            "depth": table["vision_depth"],
            "hidden_size": table["vision_hidden"],
            "intermediate_size": table["vision_intermediate"],
            "num_heads": table["vision_heads"],
            "out_hidden_size": table["hidden"],
            "patch_size": patches.patch_size,
            "spatial_merge_size": patches.merge_size,
            "temporal_patch_size": patches.temporal_patch_size,
        }

    def token_ids(self, config: Any, tokenizer: Any) -> TokenIds:
        """Return the ids that a folder's config and tokenizer name."""
        pad = tokenizer.pad_token_id
        return TokenIds(
            **{name: getattr(config, field) for name, field in self.facts.token_fields.items()},
            end=tokenizer.eos_token_id,
            pad=pad if pad is not None else tokenizer.eos_token_id,
        )

    def sample_frames(self, request: FrameRequest) -> list[int]:
        """Return the indices of the frames of a video file that the model is shown."""
        return sample_in_groups(request)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, frames_per_patch: int
    ) -> str:
        """Return the text that the processor puts in the place of a video of the chat template.

        It has one token for each run of the tower's features.

        Args:
            names: the special tokens.
            indices: of the frames that are shown, among all frames.
            rate: all frames per second.
            frames_per_patch: the frames in a patch.
        """
        return names.video

    def unreached(self, model: nn.Module) -> frozenset[str]:
        """Return the parameters that no image reaches, by name: they stay as they are."""
        return frozenset()

    def component(self, name: str) -> str:
        """Return the component (vision, projector or language) of a parameter or module name."""
        _, found, inside = name.partition("model.visual.")
        if not found:
            return "language"
        return "projector" if inside.partition(".")[0] in self.facts.projector_modules else "vision"

    def tower(self, model: nn.Module) -> list[nn.Module]:
        """Return the tower's blocks, and the tower itself: in order of computation, inner first."""
        visual: Any = model.model.visual  # type: ignore[union-attr]
        return [*visual.blocks, visual]

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that an engine wraps: the tower's blocks, the tower, and each layer.

        In order of computation, inner ones first.
        """
        inner: Any = model.model
        return [*self.tower(model), *inner.language_model.layers]

    def recomputable(self, model: nn.Module) -> list[nn.Module]:
        """Return the blocks whose activations may be computed again, in order of computation."""
        visual: Any = model.model.visual  # type: ignore[union-attr]
        return [block for block in self.blocks(model) if block is not visual]

    def smallest_image(self, model: nn.Module, device: torch.device) -> dict[str, Tensor]:
        """Return the inputs of an image of zeros that gives one image token, by the tower's config.

        Returns:
            pixel_values [P, W] and image_grid_thw [1, 3].
        """
        visual: Any = model.model.visual  # type: ignore[union-attr]
        config, side = visual.config, visual.config.spatial_merge_size
        width = config.in_channels * config.temporal_patch_size * config.patch_size**2
        dtype = next(visual.parameters()).dtype
        return {
            "pixel_values": torch.zeros(side * side, width, device=device, dtype=dtype),
            "image_grid_thw": torch.tensor([[1, side, side]], device=device),
        }

    def tower_index(self, vision: Any, grids: Tensor) -> dict[str, Tensor]:
        """Return the positions and lengths that the tower derives from the sizes of its images.

        Args:
            vision: the tower's config.
            grids: patches in time, height and width, int64 [I, 3].
        """
        from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids

        return {
            "position_ids": get_vision_position_ids(grids, vision.spatial_merge_size),
            "cu_seqlens": get_vision_cu_seqlens(grids),
        }

    def features(self, output: Any) -> Iterator[Tensor]:
        """Yield the tensors that `get_image_features` hands to the language model.

        They are unpacked as transformers' own forward pass does.
        """
        yield from output.pooler_output

    def split(self, output: Any, images: int) -> tuple[Any, Any]:
        """Split an output of `get_image_features` into that of images and that of videos.

        Args:
            output: of `images` images and, behind them, of videos.
            images: their number.
        """
        features, kind = output.pooler_output, type(output)
        return kind(pooler_output=features[:images]), kind(pooler_output=features[images:])

    def save_arguments(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments of `save_pretrained` with which files are as published ones are.

        Args:
            state: the whole weights by name, tied ones once.
        """
        return {"state_dict": dict(state)}

    def serving_files(
        self, image_processor: Mapping[str, Any], video_processor: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the processor's JSON files for a server, by file name.

        They are what the processor's `save_pretrained` would write; it cannot be built where
        torchvision is not installed.

        Args:
            image_processor: the settings of the image processor.
            video_processor: the settings of the video processor.
        """
        image = {
            **image_processor,
            "image_processor_type": self.facts.image_processor,
            "processor_class": self.facts.processor,
        }
        return {
            PROCESSOR_FILES[0]: image,
            VIDEO_SETTINGS_FILE: dict(video_processor),
        }


def load_family(name: str) -> Family:
    """Import the code of a family (a `model_type`)."""
    facts = family_facts(name)
    module, _, attribute = facts.implementation.partition(":")
    family: Family = getattr(import_module(module), attribute)(facts)
    return family


def interpolation(vision: Any, grids: Tensor) -> dict[str, Tensor]:
    """Return where images lie on the square of positions that a tower has learnt.

    Args:
        vision: the tower's config.
        grids: patches in time, height and width, int64 [I, 3].
    """
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    indices, weights = get_vision_interpolation_indices_and_weights(
        grids,
        num_grid_per_side=int(vision.num_position_embeddings**0.5),
        align_corners=True,
        spatial_merge_size=vision.spatial_merge_size,
    )
    return {"interp_indices": indices, "interp_weights": weights}


def rope(head_dim: int, rotated: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return the settings of multimodal rotary positions.

    The frequencies of a head's rotated share are divided among time, height and width.
    """
    half = int(head_dim * rotated) // 2
    side = half // 3
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [half - 2 * side, side, side],
        **more,
    }


def _from_transformers(name: str) -> Any:
    import transformers

    return getattr(transformers, name)
