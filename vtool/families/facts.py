"""Facts about model families, without importing torch or transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vtool.families.tokens import TokenNames

# Widths are numbers of features. The text's head_dim (hidden / heads) is 32: the smallest that
# vLLM's CPU attention serves.
TINY: Mapping[str, int] = {
    "hidden": 128,
    "intermediate": 256,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "positions": 2048,
    "vision_depth": 4,
    "vision_hidden": 128,
    "vision_intermediate": 256,
    "vision_heads": 4,
}
"""The tiny size of a family, before what it changes or adds."""
ATTENTION = tuple(f"self_attn.{letter}_proj" for letter in "qkvo")
GATED_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@dataclass(frozen=True, slots=True)
class PatchSizes:
    """The cutting of an image: patches of `patch_size` × `patch_size` pixels.

    `merge_size` × `merge_size` of these become one image token.
    """

    patch_size: int
    merge_size: int = 2
    temporal_patch_size: int = 2
    """The frames in a patch. A still image is repeated to fill them."""

    @property
    def pixels_per_token(self) -> int:
        """The pixels of one image token, which is the smallest image."""
        return (self.patch_size * self.merge_size) ** 2


@dataclass(frozen=True, slots=True)
class VideoDefaults:
    """The defaults of a family's video processor, where a model's folder does not say.

    They are those of transformers' class.
    """

    min_pixels: int
    max_pixels: int
    bounds_are_total: bool = False
    """True where the pixel bounds are of all frames of a video together, not of each frame."""
    mean_and_std: float | None = None
    """The mean, and the deviation, of each color channel. None: those of CLIP."""
    capped_tokens: int | None = None
    """The tokens that `cap_pixels_per_frame` allows: of all frames, or of each.

    None where the class has no such setting.
    """
    max_frames: int | None = 768
    max_seconds: float | None = None
    """A longer video is thinned out to as many frames as this many seconds have."""
    min_frames: int = 4
    fps: float = 2.0
    """Frames per second.

    Qwen2-VL's and Qwen2.5-VL's class has none: theirs is that of qwen-vl-utils, with which they
    were trained.
    """


@dataclass(frozen=True, slots=True)
class WindowDefaults:
    """The defaults of transformers' config class for a sliding window in the language model."""

    tokens: int
    layers: int
    first: int
    """The first layer that has the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """A model family as settings, rules and file readers know it."""

    name: str
    """`model.family`, and `model_type` in config.json."""
    implementation: str
    """The subclass of `vtool.families.family.Family`, as module:class."""
    class_prefix: str
    """The beginning of the names of transformers' classes of the family."""
    processor: str
    """The name of transformers' processor class, which a server needs."""
    image_processor: str = "Qwen2VLImageProcessor"
    """The name of transformers' image processor class.

    With `Pil` appended, the one that needs no torchvision.
    """
    video_processor: str = "Qwen2VLVideoProcessor"
    patches: PatchSizes
    """The sizes of patches, where no folder gives them."""
    video: VideoDefaults
    linear_layers: Mapping[str, tuple[str, ...]]
    """The linear layers of each component, as transformers names them, without the head.

    N stands for the number of a layer.
    """
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"tiny": TINY})
    """The sizes of models with random weights."""
    sliding_window: WindowDefaults | None = None
    """Set where layers of the language model can have a sliding window."""
    token_names: TokenNames = field(default_factory=TokenNames)
    token_fields: Mapping[str, str] = field(
        default_factory=lambda: {
            "image": "image_token_id",
            "video": "video_token_id",
            "vision_start": "vision_start_token_id",
            "vision_end": "vision_end_token_id",
        }
    )
    """The fields of config.json that hold the token ids, by the names of `TokenIds`."""
    projector_modules: tuple[str, ...] = ("merger",)
    """The children of `model.visual` that turn its features into embeddings."""
    frames_per_image: int = 1
    """The frames that an image counts for when the image processor applies pixel bounds."""
    separate_frames: bool = False
    """True where each patch of frames has its own run of tokens, with its time as text.

    Otherwise a video is one run of tokens.
    """
    videos_are_images: bool = False
    """True where frames are passed to the model as images.

    The model replaces the same token for both, and so cannot take both.
    """
    seconds_per_grid: bool = False
    """True where the model takes `second_per_grid_ts`, for its positions in time."""
    text_positions_without_token_types: bool = False
    """True where transformers' forward pass, without `mm_token_type_ids`, silently computes the
    positions of text. That of the other families raises.
    """
    coordinates: str | None = None
    """The unit of boxes that published models of the family have learnt, as `data.coordinates` has
    it; None: not known.
    """
    recurrent: bool = False
    """True where layers carry a state from token to token: documents cannot share a row."""
    is_learnt: bool = False
    """True for a type without code of its own here: transformers' processor encodes its images, and
    no fact about patches or videos is one.
    """
    own_class: str | None = None
    """The name of transformers' model class, where `class_prefix` does not give it."""
    on_megatron: bool = False
    """True where the language model has been written for megatron-core."""

    @property
    def shows_times(self) -> bool:
        """True where the model is shown the times of frames, as text or by their positions."""
        return self.separate_frames or self.seconds_per_grid

    @property
    def model_class_name(self) -> str:
        """The name of transformers' model class, and of vLLM's."""
        return self.own_class or f"{self.class_prefix}ForConditionalGeneration"


def linear_layers(
    tower: tuple[str, ...], projector: tuple[str, ...], language: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return the full names of linear layers by component, from those within a block or layer."""
    blocks = ("attn.qkv", "attn.proj", *tower)
    return {
        "vision": tuple(f"model.visual.blocks.N.{name}" for name in blocks),
        "projector": tuple(f"model.visual.{name}" for name in projector),
        "language": tuple(f"model.language_model.layers.N.{name}" for name in language),
    }
