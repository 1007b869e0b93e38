"""Settings `data`: the rows, how they are cut, and how they are batched."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, create_model

from vtool.config.schema.base import ActsLater, ReadBack, Settings
from vtool.config.schema.formats import Source

_BY_RUN = ReadBack("vtool.training.observe_run:observe_run")

MOST_DECODED_PIXELS = 178_956_970
"""Pixels above which Pillow, and vLLM with it, takes an image for a bomb."""
MOST_TEXT_BYTES = 16 * 2**20

ModelInput = Literal[
    "attention_mask",
    "mm_token_type_ids",
    "pixel_values",
    "image_grid_thw",
    "pixel_values_videos",
    "video_grid_thw",
    "second_per_grid_ts",
]


Value = Annotated[float, Field(allow_inf_nan=False)]


class Image(Settings):
    """The sizes of images, in pixels, and what is done with more than 8 bits of grey."""

    arrival: ClassVar = _BY_RUN
    backend: Literal["auto", "torchvision", "pil"] = "auto"
    """The implementation of transformers' processors for images and videos. Their resized pixels
    differ slightly; which one was used is written into the run's folder and the export.

    `auto`: the one that the model's folder names, else torchvision where it is installed, as
    transformers and vLLM choose. `pil`: Pillow; videos by functions of vtool.
    """
    min_pixels: int | None = Field(default=None, gt=0)
    """Smaller images are enlarged to this many pixels. Default: what the image processor says."""
    max_pixels: int | None = Field(default=None, gt=0)
    """Larger images are shrunk to this many pixels. Default: what the image processor says."""
    max_decoded_pixels: int = Field(default=MOST_DECODED_PIXELS, gt=0, le=MOST_DECODED_PIXELS)
    """The most pixels of a file that is decoded; one with more is a finding. Pillow decodes no more
    than the default, which is above any photo.
    """
    sixteen_bit: Literal["refuse", "scale"] = "refuse"
    """The treatment of greyscale in 16 or 32 bits or in floating point, which RGB does not hold.

    `scale`: `sixteen_bit_range` becomes the 8 bits from black to white.
    """
    sixteen_bit_range: tuple[Value, Value] | None = None
    """With `scale`, the values that become black and white: [0, 4095] for 12 bits in a 16-bit file.
    """


class Video(Settings):
    """The frames of a video that are shown, and their sizes, in pixels.

    A list of frames is shown as it is.
    """

    arrival: ClassVar = _BY_RUN
    fps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Frames shown of each second of a file, and frames a second that a list is taken to have; a
    row's own `fps` goes before it. Default: what the video processor says, or 2.
    """
    max_frames: int | None = Field(default=None, ge=2)
    """The most frames of a video:

    more of a file are thinned out evenly, and a longer list is refused. Default: what the processor
    says.
    """
    min_pixels: int | None = Field(default=None, gt=0)
    """Smaller videos are enlarged to this many pixels: of a frame in Qwen2-VL and Qwen2.5-VL, of
    all frames together in the other families, as their video processors count. Default: what the
    processor says.
    """
    max_pixels: int | None = Field(default=None, gt=0)
    """Larger videos are shrunk to this many pixels, counted in the same way.

    Default: what the video processor says.
    """


class Split(Settings):
    """The rows of `data.train` that are held back, decided by a hash of what each row is about.

    That is its group: rows about the same first picture are on one side, and stay there when rows
    are added.
    """

    arrival: ClassVar = ActsLater()
    validation: float | None = Field(default=None, gt=0, lt=1)
    """The part of the groups to evaluate on while training, of those that `test` leaves."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """The part of the groups to evaluate on at the end, once."""
    group: str | None = Field(default=None, min_length=1)
    """A key of every row whose value is its group.

    Default: the content of its first picture or video; of a row without, its first question.
    """

    @property
    def shares(self) -> dict[str, float]:
        """The part of each split that is held back, in the order in which they are decided."""
        shares = {"test": self.test, "validation": self.validation}
        return {split: share for split, share in shares.items() if share is not None}


BoxUnit = Literal["absolute", "resized", "thousand", "hundred", "unit"]


class CoordinatesBase(Settings):
    """The unit of the boxes and points in the rows, and the one that they are rescaled to.

    `absolute`: pixels of the image. `resized`: pixels of the image as the model is shown it.
    `thousand`: 0 to 1000. `hundred`: 0 to 100. `unit`: 0 to 1.
    """

    arrival: ClassVar = ActsLater()
    to: BoxUnit
    """The unit that the model is to learn, of both edges of the image."""

    @property
    def source(self) -> BoxUnit:
        """The setting `data.coordinates.from`, whose name is a word of Python's."""
        given: BoxUnit = getattr(self, "from")
        return given


_FROM = Field(description="The unit of the boxes in the files.")
if TYPE_CHECKING:
    Coordinates = CoordinatesBase
else:  # no class body can name a field `from`
    Coordinates = create_model(
        "Coordinates",
        __base__=CoordinatesBase,
        __doc__=CoordinatesBase.__doc__,
        __module__=__name__,
        **{"from": (BoxUnit, _FROM)},
    )


class Data(Settings):
    """The rows, how they are cut, and how they are batched."""

    arrival: ClassVar = ActsLater()
    train: tuple[Source, ...] = Field(min_length=1)
    """The rows to train on: a file or a folder of rows, or a list of these and of sources.

    The layout of a file is detected: `my.jsonl` means `[{format: auto, path: my.jsonl}]`.
    """
    validation: tuple[Source, ...] = ()
    """The rows to evaluate on while training, and at the end."""
    test: tuple[Source, ...] = ()
    """The rows to evaluate on at the end, once."""
    split: Split = Split()
    """Rows of `train` that are held back, in the place of `validation` or `test`."""
    max_length: int | None = Field(default=None, ge=2)
    """The longest row, in tokens, those of images and videos included. Default: no limit."""
    on_overlong: Literal["error", "drop", "truncate"] = "error"
    """The treatment of a row longer than `max_length`.

    `error`: nothing is trained, and each such row is reported. `drop`: the row is left out, and
    counts in `max_dropped_rows`. `truncate`: its end is cut off; a row that loses an image or all
    of its answer by that is an error.
    """
    max_dropped_rows: int = Field(default=0, ge=0)
    """The most rows of a split that may be left out, for any reason; else the run is refused."""
    allow_urls: tuple[str, ...] = ()
    """Hosts that images are fetched from, where a row names one by its address: once each, and then
    they are kept. Such a row is refused for any other host.
    """
    chat_template: str | None = Field(default=None, min_length=1)
    """The chat template: a file, or the name of one of the model's own. Default: the model's.

    It is written into the run's folder and the export, with `template_arguments`.
    """
    template_arguments: dict[str, JsonValue] = Field(default={})
    """The arguments of the chat template, as `{enable_thinking: false}`. They hold in training,
    and for whoever renders the exported template and gives no others.
    """
    turns: Literal["all", "last", "each"] | None = None
    """The answers that are learnt of a row of several: `all` in one sample, the `last`, or `each`
    in a sample in which it is the last, as templates need that write earlier turns in another way.
    The loss is of answers alone: its mask is what `vtool verify` shows as supervised.

    Default: `each` of the rows whose earlier answers the template would write in another way, else
    `all`.
    """
    coordinates: Coordinates | None = None
    """The unit of the boxes and points in the rows' text, and the unit that they are rescaled to
    when rows are read. Default: they are left as they are.
    """
    root: str | None = None
    """The folder in which all images and videos have to be; a row with another one is a finding.
    Links are followed. Default: any folder, and a note on those outside of the rows' own.
    """
    max_overlap_rows: int = Field(default=0, ge=0)
    """The most rows of `test` that may also be rows of `train`; else the run is refused."""
    max_text_bytes: int = Field(default=MOST_TEXT_BYTES, gt=0)
    """The most bytes of a row's text in UTF-8, with its tools; one with more is a finding."""
    global_batch_size: Annotated[int, _BY_RUN] = Field(ge=1)
    """Rows of one optimizer step, over all ranks and micro-batches."""
    micro_batch_size: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], _BY_RUN] = 1
    """Rows of one forward pass of one rank.

    `auto`: as many as an estimate of the memory has room for, a power of two; it is printed at
    the start.
    """
    packing: Annotated[Literal["none", "token_budget"], _BY_RUN] = "none"
    """`token_budget`:

    a forward pass is one row of several, without padding, each with attention to itself alone.
    """
    micro_batch_tokens: int | None = Field(default=None, ge=2)
    """With `token_budget`, in the place of `micro_batch_size`:

    the most tokens of one forward pass of one rank.
    """
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
    """Processes of each rank that read and encode rows ahead of time.

    0: the training process does it. `auto`: as many as the first steps show to be enough, of the
    cores that each rank has to spare; rows are audited on all cores. Default: `auto` on CUDA, else
    0.
    """
    audit_cache: Literal["use", "renew", "off"] = "use"
    """Rows whose audit is kept in the user's cache folder, and which have not changed since, are
    not audited again. `renew` audits all of them, as `--fresh` does; `off` keeps nothing either.
    """
    image: Image = Image()
    video: Video = Video()
    drop_model_inputs: tuple[ModelInput, ...] = ()
    """Inputs that are not handed to the model. Nothing is left out that is not named here."""

    @property
    def splits(self) -> dict[str, tuple[Source, ...]]:
        """The sources of each split, by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def has(self, split: str) -> bool:
        """Return whether a split has rows: of its own, or some that are held back for it."""
        return bool(self.splits[split]) or split in self.split.shares
