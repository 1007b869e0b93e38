"""The processor: tokenizer, chat template, image and video processor, and their token ids."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vtool.config.schema import Image, Model, Video
from vtool.contents import stand_in_of_model
from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import load_family
from vtool.families.images import beyond_any_model
from vtool.families.tokens import TokenIds, TokenNames
from vtool.models.patches import resized_size
from vtool.models.pictures import PictureReader
from vtool.models.pixel_check import check_pixels
from vtool.models.tokenizer import train_tokenizer
from vtool.models.tokenizer_growth import MOST, text_growth
from vtool.models.video import VideoProcessor, video_processor, video_settings_in
from vtool.words import first_line


@dataclass(frozen=True, slots=True)
class Processor:
    """Everything that turns a chat with images and videos into a model's inputs."""

    tokenizer: Any
    image_processor: Any
    video: VideoProcessor
    ids: TokenIds
    pictures: PictureReader = field(default_factory=PictureReader)
    vocabulary: int | None = None
    """The rows of the model's embedding, by its config.json; None: as many as the tokenizer has."""

    named: bool = True
    """False where nobody has named a model: its weights are random, and have learnt nothing."""

    @property
    def coordinates(self) -> str | None:
        """The unit of boxes that the model has learnt; None where that is not known."""
        return self.video.family.facts.coordinates if self.named else None

    @property
    def names(self) -> TokenNames:
        """The text of the tokens that stand in place of images and videos, and around them."""
        ids = asdict(self.ids)
        names = [each.name for each in fields(TokenNames)]
        # most families have the same tokens around a video as around an image
        found = {
            name: ids[name] if ids[name] is not None else ids[name.replace("video", "vision")]
            for name in names
        }
        return TokenNames(
            **{name: self.tokenizer.convert_ids_to_tokens(token) for name, token in found.items()}
        )

    def resized(self, width: int, height: int) -> tuple[int, int] | None:
        """Return the size that a picture is shown in, as `resized_size`."""
        return resized_size(self.image_processor, width, height)

    def save(self, folder: Path) -> None:
        """Write tokenizer, chat template, image and video processor as transformers reads them."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)
        self.video.save(folder)


def new_processor(
    settings: Model, image: Image, texts: Iterable[str], video: Video | None = None
) -> Processor:
    """Return the processor of a run that starts: that of `model.path`, or one trained on texts.

    Args:
        settings: of the model.
        image: the sizes of images.
        texts: for a tokenizer that is trained here.
        video: the sizes and lengths of videos.

    Raises:
        Findings: `model-does-not-load`.
    """
    if settings.path:
        return load_processor(Path(settings.path), settings.family, image, video)
    known = load_family(settings.family)
    tokenizer = train_tokenizer(texts, known.facts.token_names)
    ids = {
        name: tokenizer.convert_tokens_to_ids(getattr(known.facts.token_names, name))
        for name in known.facts.token_fields
    }
    image_processor = known.image_processor_class()(**asdict(known.facts.patches))
    token_ids = TokenIds(**ids, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    videos = video_processor(
        known, {name: value for name, value in image_processor.to_dict().items() if name != "size"}
    )
    return with_sizes(
        Processor(tokenizer, image_processor, videos, token_ids, named=False),
        image,
        video or Video(),
    )


def load_processor(
    folder: Path,
    family_name: str,
    image: Image | None = None,
    video: Video | None = None,
    config_of: Path | None = None,
) -> Processor:
    """Load the processor of a folder: a model's, a run's, or an exported one.

    Its token ids are those of its config.json.

    Args:
        folder: has the tokenizer, the image and the video processor.
        family_name: a name of `FAMILIES`.
        image: the sizes of images; None: the folder's.
        video: the sizes and lengths of videos; None: the folder's.
        config_of: where config.json is, if elsewhere: an adapter's folder has none.

    Raises:
        Findings: `model-does-not-load`, where a part of it is missing or cannot be read;
            `pixels-destroyed`.
    """
    from transformers import AutoConfig, AutoTokenizer

    known = load_family(family_name)
    wanted = (
        ("tokenizer.json", "vocab.json", "tokenizer.model"),
        ("preprocessor_config.json", "processor_config.json"),
    )
    absent = [] if ((config_of or folder) / "config.json").exists() else ["config.json"]
    if absent := absent + [
        " or ".join(names)
        for names in wanted
        if not any((folder / name).exists() for name in names)
    ]:
        raise Findings(_unusable(folder, f"there is no {', and no '.join(absent)}"))
    if beyond := beyond_any_model(config_of or folder):
        raise Findings(_unusable(folder, beyond))
    try:
        config = AutoConfig.from_pretrained(
            config_of or folder, local_files_only=True, trust_remote_code=False
        )
        with _printed_as_errors():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        image_processor = known.image_processor_class().from_pretrained(
            folder, local_files_only=True
        )
        videos = video_processor(known, video_settings_in(folder))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # each reader raises what its file format raises; some panic
        what = "the tokenizer, the image processor or the video processor cannot be read"
        if found := stand_in_of_model(folder):
            raise Findings(_unusable(folder, found[0], found[1])) from error
        raise Findings(_unusable(folder, f"{what}: {first_line(error)}")) from error
    if (times := text_growth(tokenizer)) > MOST:
        raise Findings(
            _unusable(
                folder, f"tokenizer.json replaces texts by some that are {times:,} times longer"
            )
        )
    if why := _does_not_encode(tokenizer):
        raise Findings(_unusable(folder, f"the tokenizer fails at a text: {why}"))
    if not tokenizer.chat_template:
        raise Findings(
            _unusable(folder, "the tokenizer has no chat template (chat_template.jinja)")
        )
    own = known.image_processor_class()(**asdict(known.facts.patches))
    if destroyed := check_pixels(image_processor, own, folder):
        raise Findings(destroyed)
    ids = known.token_ids(config, tokenizer)
    if ids.end is None:
        what = "the tokenizer names no eos_token, which ends an answer (tokenizer_config.json)"
        raise Findings(_unusable(folder, what))
    if strange := [
        f"{name} {token}"
        for name, token in asdict(ids).items()
        if token is not None and not _is_token(tokenizer, token)
    ]:
        what = f"config.json names token ids that the tokenizer has not: {', '.join(strange)}"
        raise Findings(_unusable(folder, what))
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    return with_sizes(
        Processor(tokenizer, image_processor, videos, ids, vocabulary=vocabulary),
        image or Image(),
        video or Video(),
    )


@contextmanager
def _printed_as_errors() -> Iterator[None]:
    """Send standard output to standard error: `tokenizers` prints keys that it does not know.

    A command's JSON would be none.
    """
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _does_not_encode(tokenizer: Any) -> str | None:
    """Return why no text can be encoded, as by a setting of another kind; None where one can."""
    try:
        tokenizer("What is this?", add_special_tokens=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics
        return first_line(error)
    return None


def _is_token(tokenizer: Any, token: Any) -> bool:
    try:
        return tokenizer.convert_ids_to_tokens(token) is not None
    except (OverflowError, TypeError):
        return False


def with_sizes(processor: Processor, image: Image, video: Video) -> Processor:
    """Return the processor with these settings of images, and sizes and lengths of videos."""
    size = dict(processor.image_processor.size)
    for edge, pixels in (("shortest_edge", image.min_pixels), ("longest_edge", image.max_pixels)):
        if pixels is not None:
            size[edge] = pixels * processor.video.family.facts.frames_per_image
    processor.image_processor.size = size
    return replace(
        processor, video=processor.video.with_settings(video), pictures=PictureReader.of(image)
    )


def _unusable(folder: Path, what: str, help: str | None = None) -> Diagnostic:
    return Diagnostic("model-does-not-load", f"{folder}: {what}", help, parameter="model.path")
