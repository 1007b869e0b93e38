"""The model families: which classes of transformers, and what our code must know about them."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vtool.config.images import CLIPS, CUTS, Cut
from vtool.models.frames import evenly_in_pairs
from vtool.models.sizes import SIZES
from vtool.models.tokens import TokenIds, TokenNames

FAMILIES = {
    "qwen2_vl": "vtool.models.qwen2_vl:Qwen2VL",
    "qwen2_5_vl": "vtool.models.qwen2_5_vl:Qwen25VL",
    "qwen3_vl": "vtool.models.qwen3_vl:Qwen3VL",
    "qwen3_5": "vtool.models.qwen3_5:Qwen35",
    "glm4v": "vtool.models.glm4v:Glm4v",
}


class Family:
    """What is the same in all families, written once. A family's own file overrides what differs,
    and says no more.

    In each, `model.visual` is the tower: `patch_embed`, `blocks` one after the other, `merger`.
    `model.language_model.layers` follow on embeddings into which the tower's features have been
    put.
    """

    model_type: ClassVar[str]
    """In config.json, and `model.family`."""
    classes: ClassVar[str]
    """What the names of transformers' classes of the family begin with."""
    processor: ClassVar[str]
    """Transformers' processor class; a server is told its name."""
    image_processor: ClassVar[str] = "Qwen2VLImageProcessor"
    """Transformers' image processor class.

    With `Pil` behind it, the one that needs no torchvision.
    """
    video_processor: ClassVar[str] = "Qwen2VLVideoProcessor"
    frames_apart: ClassVar[bool] = False
    """Whether the frames of each patch stand by themselves in the text, with their time;

    else a video is one run of tokens.
    """
    videos_are_images: ClassVar[bool] = False
    """Whether frames are handed to the model as images:

    where the model puts both in the place of one token, and so cannot take both.
    """
    seconds_per_grid: ClassVar[bool] = False
    """Whether the model is told how many seconds the frames of a patch last, for its positions in
    time.
    """
    projector: ClassVar[tuple[str, ...]] = ("merger",)
    """The children of `model.visual` that turn its features into embeddings."""
    token_names: ClassVar[TokenNames] = TokenNames()
    token_fields: ClassVar[Mapping[str, str]] = {
        "image": "image_token_id",
        "video": "video_token_id",
        "vision_start": "vision_start_token_id",
        "vision_end": "vision_end_token_id",
    }
    """By the names of `TokenIds`, where config.json has these ids."""
    frames_per_image: ClassVar[int] = 1
    """As how many frames the image processor counts a picture when it holds pixels against its
    bounds.
    """

    @property
    def frames_are_sized(self) -> bool:
        """Whether the video processor's `size` bounds a frame, as the image processor's bounds an
        image; else a video.
        """
        return not CLIPS[self.model_type].whole

    @property
    def images(self) -> Cut:
        """How images are cut when no folder says so."""
        return CUTS[self.model_type]

    def model_class(self) -> Any:
        """The transformers class."""
        return _of_transformers(f"{self.classes}ForConditionalGeneration")

    def image_processor_class(self) -> Any:
        """The transformers image processor that needs no torchvision."""
        return _of_transformers(f"{self.image_processor}Pil")

    def random_config(self, size: str, vocab_size: int, ids: TokenIds) -> Any:
        """The transformers config of a model of this size."""
        table = SIZES[self.model_type][size]
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
        return _of_transformers(f"{self.classes}Config")(
            text_config=text | self.text_config(table),
            vision_config=self.vision_config(table),
            tie_word_embeddings=True,
            **{
                field: token
                for part, field in self.token_fields.items()
                if (token := getattr(ids, part)) is not None
            },
        )

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """What a random model's language part has beside, or instead of, what all have."""
        return {"rope_parameters": rope(table["hidden"] // table["heads"])}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """The tower of a random model."""
        return {
            "depth": table["vision_depth"],
            "hidden_size": table["vision_hidden"],
            "intermediate_size": table["vision_intermediate"],
            "num_heads": table["vision_heads"],
            "out_hidden_size": table["hidden"],
            "patch_size": self.images.patch_size,
            "spatial_merge_size": self.images.merge_size,
            "temporal_patch_size": self.images.temporal_patch_size,
        }

    def token_ids(self, config: Any, tokenizer: Any) -> TokenIds:
        """The ids that a folder's config and tokenizer name."""
        pad = tokenizer.pad_token_id
        return TokenIds(
            **{part: getattr(config, field) for part, field in self.token_fields.items()},
            end=tokenizer.eos_token_id,
            pad=pad if pad is not None else tokenizer.eos_token_id,
        )

    def sample(
        self,
        total: int,
        rate: float,
        fps: float,
        least: int,
        most: int,
        seconds: float,
        together: int,
    ) -> list[int]:
        """The numbers of the frames that are shown of a video file.

        Args:
            total: all of its frames.
            rate: frames a second.
            fps: those wanted of each second.
            least, most: the fewest and the most frames.
            seconds: a longer video is thinned out to `most` frames, in a family that goes by time.
            together: frames of a patch.
        """
        return evenly_in_pairs(total, rate, fps, least, most, together)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, together: int
    ) -> str:
        """What the processor writes where the chat template has put a video: a token for each run
        of the tower's features.

        Args:
            indices: of the frames that are shown.
            rate: frames a second, of all frames.
            together: frames of a patch.
        """
        return names.video

    def part(self, name: str) -> str:
        """The part, by the names of `model.freeze`, that a parameter or module of this name belongs
        to.
        """
        _, found, inside = name.partition("model.visual.")
        if not found:
            return "language"
        return "projector" if inside.partition(".")[0] in self.projector else "vision"

    def tower(self, model: nn.Module) -> list[nn.Module]:
        """The tower's blocks, and the tower itself:

        what is computed one after the other, inner ones first.
        """
        visual: Any = model.model.visual  # type: ignore[union-attr]
        return [*visual.blocks, visual]

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The parts that are computed one after the other, inner ones first:

        each block of the tower, the tower, each layer.
        """
        inner: Any = model.model
        return [*self.tower(model), *inner.language_model.layers]

    def smallest_image(self, model: nn.Module, device: torch.device) -> tuple[Tensor, Tensor]:
        """An image of zeros that gives one image token:

        pixel_values [P, W] and image_grid_thw [1, 3], by the tower's own config.
        """
        visual: Any = model.model.visual  # type: ignore[union-attr]
        config, side = visual.config, visual.config.spatial_merge_size
        width = config.in_channels * config.temporal_patch_size * config.patch_size**2
        dtype = next(visual.parameters()).dtype
        return torch.zeros(side * side, width, device=device, dtype=dtype), torch.tensor(
            [[1, side, side]], device=device
        )

    def features(self, output: Any) -> Iterator[Tensor]:
        """All that `get_image_features` hands to the language model, as transformers' own forward
        pass unpacks it.
        """
        yield from output.pooler_output

    def split(self, output: Any, images: int) -> tuple[Any, Any]:
        """Such an output of images and, behind them, videos, as one of `images` images and one of
        the videos.
        """
        features, kind = output.pooler_output, type(output)
        return kind(pooler_output=features[:images]), kind(pooler_output=features[images:])

    def serving_files(
        self, image_processor: Mapping[str, Any], video_processor: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """The processor's JSON files for a server, by name, from the settings of the image and of
        the video processor.

        What the processor's `save_pretrained` would write; it cannot be built where torchvision is
        not.
        """
        image = {
            **image_processor,
            "image_processor_type": self.image_processor,
            "processor_class": self.processor,
        }
        return {
            "preprocessor_config.json": image,
            "video_preprocessor_config.json": dict(video_processor),
        }


def family(name: str) -> Family:
    """The family of this name (a name of `FAMILIES`)."""
    module, _, attribute = FAMILIES[name].partition(":")
    instance: Family = getattr(import_module(module), attribute)()
    return instance


def rope(head_dim: int, rotated: float = 1.0, **more: Any) -> dict[str, Any]:
    """Multimodal rotary positions:

    the frequencies of a head's rotated part are shared out over time, height and width.
    """
    half = int(head_dim * rotated) // 2
    side = half // 3
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [half - 2 * side, side, side],
        **more,
    }


def _of_transformers(name: str) -> Any:
    import transformers

    return getattr(transformers, name)
