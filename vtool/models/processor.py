"""The processor: tokenizer, chat template, image and video processor, and their token ids."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vtool.config.schema import Data, Image, Model, Video
from vtool.contents import LARGEST_SMALL_FILE
from vtool.diagnostics import Diagnostic, Findings
from vtool.families.any_family import NO_TOKEN
from vtool.families.family import Family, load_family
from vtool.families.images import beyond_any_model
from vtool.families.tokens import TokenIds, TokenNames
from vtool.model_folder import (
    GENERATION,
    MODEL_CONFIG,
    PROCESSOR_FILES,
    TEMPLATE_JSON,
    TOKENIZER,
    VIDEO_SETTINGS_FILE,
    ModelFolder,
)
from vtool.models.backends import choose_backend, record_backend
from vtool.models.chat_template import (
    TemplateForm,
    differing_marks,
    differing_templates,
    find_form,
    learnt_role,
    spelt_marks,
)
from vtool.models.chosen_template import choose_template
from vtool.models.patches import resized_size
from vtool.models.pictures import PictureReader
from vtool.models.pixel_check import check_pixels
from vtool.models.processor_files import processor_notes
from vtool.models.tokenizer import train_tokenizer
from vtool.models.tokenizer_growth import MOST, text_growth
from vtool.models.video import VideoProcessor, video_processor
from vtool.models.whole_processor import WholeProcessor, learn_processor, open_processor
from vtool.words import first_line

_MORE_FILES = ("vocab.json", "merges.txt", "tokenizer.model", TEMPLATE_JSON)
"""Files of published folders beside tokenizer.json: converters and older servers read them."""


@dataclass(frozen=True, slots=True)
class Processor:
    """Everything that turns a chat with images and videos into a model's inputs."""

    tokenizer: Any
    image_processor: Any
    family: Family
    ids: TokenIds
    video_processor: VideoProcessor | None = None
    """None: this family is not trained on videos."""
    whole: WholeProcessor | None = None
    """transformers' own processor, where it encodes images; None: the family's code does."""
    pictures: PictureReader = field(default_factory=PictureReader)
    form: TemplateForm = field(default_factory=TemplateForm)
    """The form of chats that the chat template takes."""
    stops: tuple[int, ...] = ()
    """The ids at which inference stops, `ids.end` first."""
    vocabulary: int | None = None
    """The rows of the model's embedding, by its config.json; None: as many as the tokenizer has."""

    notes: tuple[Diagnostic, ...] = ()
    """Findings about the folder, with which it can be used."""
    more_files: tuple[Path, ...] = ()
    """Files of the folder that only other readers need: they are copied where it is saved."""
    named: bool = True
    """False where nobody has named a model: its weights are random, and have learnt nothing."""

    @property
    def video(self) -> VideoProcessor:
        """The processor of videos, of a family that is trained on them."""
        assert self.video_processor is not None, "rows with videos are refused before"
        return self.video_processor

    @property
    def coordinates(self) -> str | None:
        """The unit of boxes that the model has learnt; None where that is not known."""
        return self.family.facts.coordinates if self.named else None

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
            **{
                name: self.tokenizer.convert_ids_to_tokens(token)
                for name, token in found.items()
                if token is not None and token >= 0
            }
        )

    @property
    def stop_texts(self) -> dict[str, int]:
        """The tokens at which inference stops, with their ids."""
        ids = self.stops or (self.ids.end,)
        return {self.tokenizer.convert_ids_to_tokens(token): token for token in ids}

    def resized(self, width: int, height: int) -> tuple[int, int] | None:
        """Return the size that a picture is shown in, as `resized_size`."""
        return None if self.whole else resized_size(self.image_processor, width, height)

    @property
    def backend(self) -> str:
        """The backend of the image processor; a class that has only one is of pil."""
        return str(getattr(self.image_processor, "backend", "pil"))

    def save(self, folder: Path) -> None:
        """Write tokenizer, chat template, image and video processor as transformers reads them."""
        if self.whole is not None:
            self.whole.save(folder)
        else:
            self.tokenizer.save_pretrained(folder)
            self.image_processor.save_pretrained(folder)
        if self.video_processor is not None:
            self.video.save(folder)
        for file in self.more_files:
            if file.name == TEMPLATE_JSON:  # as transformers had it before .jinja
                text = json.dumps({"chat_template": self.tokenizer.chat_template}, indent=2)
                (folder / file.name).write_text(text + "\n", encoding="utf-8")
            elif file.parent.resolve() != folder.resolve():
                shutil.copyfile(file, folder / file.name)


def new_processor(
    settings: Model,
    image: Image,
    texts: Iterable[str],
    video: Video | None = None,
    data: Data | None = None,
) -> Processor:
    """Return the processor of a run that starts: that of `model.path`, or one trained on texts.

    Args:
        settings: of the model.
        image: the sizes of images.
        texts: for a tokenizer that is trained here.
        video: the sizes and lengths of videos.
        data: has the chat template and its arguments; None: they are the folder's.

    Raises:
        Findings: as `load_processor`.
    """
    if settings.path:
        return load_processor(Path(settings.path), settings.family, image, video, data=data)
    known = load_family(settings.family)
    tokenizer = train_tokenizer(texts, known.facts.token_names)
    choose_template(tokenizer, Path(settings.family), data)
    ids = {
        name: tokenizer.convert_tokens_to_ids(getattr(known.facts.token_names, name))
        for name in known.facts.token_fields
    }
    assert not known.facts.is_learnt, "a rule demands a folder"
    backend = choose_backend(image.backend)
    image_processor = known.image_processor_class(backend)(**asdict(known.facts.patches))
    token_ids = TokenIds(**ids, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    videos = video_processor(
        known,
        {name: value for name, value in image_processor.to_dict().items() if name != "size"},
        backend,
    )
    return with_sizes(
        Processor(
            tokenizer,
            image_processor,
            known,
            token_ids,
            videos,
            form=find_form(tokenizer),
            stops=(token_ids.end,),
            named=False,
        ),
        image,
        video or Video(),
    )


def load_processor(
    folder: Path,
    family_name: str,
    image: Image | None = None,
    video: Video | None = None,
    config_of: Path | None = None,
    data: Data | None = None,
) -> Processor:
    """Load the processor of a folder: a model's, a run's, or an exported one.

    Its token ids are those of its config.json.

    Args:
        folder: has the tokenizer, the image and the video processor.
        family_name: a name of `FAMILIES`.
        image: the sizes of images; None: the folder's.
        video: the sizes and lengths of videos; None: the folder's.
        config_of: where config.json is, if elsewhere: an adapter's folder has none.
        data: has the chat template and its arguments; None: they are the folder's.

    Raises:
        Findings: `model-does-not-load`, where a part of it is missing or cannot be read;
            `pixels-destroyed`, `processor-backend-missing`, `template-argument-unread`.
    """
    known = load_family(family_name)
    opened = _opened(folder, known, image or Image(), config_of)
    config, tokenizer, whole = opened.config, opened.tokenizer, None
    if (times := text_growth(tokenizer)) > MOST:
        raise Findings(
            _unusable(
                folder, f"tokenizer.json replaces texts by some that are {times:,} times longer"
            )
        )
    if why := _does_not_encode(tokenizer):
        raise Findings(_unusable(folder, f"the tokenizer fails at a text: {why}"))
    choose_template(tokenizer, folder, data)
    if opened.whole is not None:
        whole = learn_processor(known, opened.whole, config, folder)
    elif destroyed := check_pixels(
        opened.images,
        known.image_processor_class(opened.backend)(**asdict(known.facts.patches)),
        folder,
    ):
        raise Findings(destroyed)
    ids, form = known.token_ids(config, tokenizer), find_form(tokenizer)
    if ids.end is None:
        what = "the tokenizer names no eos_token, which ends an answer (tokenizer_config.json)"
        raise Findings(_unusable(folder, what))
    listed = (ModelFolder(config_of or folder).settings(GENERATION) or {}).get("eos_token_id")
    stops = stop_ids(config, listed, tokenizer)
    named = [
        *(
            (name, token)
            for name, token in asdict(ids).items()
            if not (whole and token == NO_TOKEN)
        ),
        *(("eos_token_id", token) for token in stops),
    ]
    if strange := [
        f"{name} {token!r:.80}"
        for name, token in named
        if token is not None and not _is_token(tokenizer, token)
    ]:
        what = f"its configs name token ids that the tokenizer has not: {', '.join(strange)}"
        raise Findings(_unusable(folder, what))
    closing = tokenizer.convert_tokens_to_ids(form.closing) if form.closing else None
    if closing in stops:
        ids = replace(ids, end=closing)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    return with_sizes(
        Processor(
            tokenizer,
            opened.images,
            known,
            ids,
            opened.videos,
            whole,
            form=form,
            stops=tuple(dict.fromkeys((ids.end, *stops))),
            notes=(
                *_end_not_listed(config_of or folder, listed, tokenizer, ids.end),
                *spelt_marks(form, folder),
                *learnt_role(form, folder),
                *differing_marks(tokenizer, form, folder),
                *(() if data and data.chat_template else differing_templates(folder)),
                *(
                    ()
                    if whole
                    else processor_notes(
                        ModelFolder(folder),
                        known.facts,
                        known.image_processor_class(opened.backend),
                        lambda given: video_processor(known, given, opened.backend),
                    )
                ),
            ),
            more_files=tuple(filter(_is_small, (folder / name for name in _MORE_FILES))),
            vocabulary=vocabulary,
        ),
        image or Image(),
        video or Video(),
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """Files of a folder, as transformers opens them."""

    backend: str
    """The backend of images."""
    config: Any
    tokenizer: Any
    images: Any
    videos: VideoProcessor | None = None
    whole: Any = None
    """transformers' own processor, of a family whose images it encodes."""


def _opened(folder: Path, known: Family, image: Image, config_of: Path | None) -> _Opened:
    """Open a folder's files by transformers.

    Raises:
        Findings: `model-does-not-load`, `processor-backend-missing`.
    """
    from transformers import AutoConfig, AutoTokenizer

    wanted = (
        (TOKENIZER, "vocab.json", "tokenizer.model"),
        PROCESSOR_FILES,
    )
    absent = [] if ModelFolder(config_of or folder).has(MODEL_CONFIG) else [MODEL_CONFIG]
    if absent := absent + [
        " or ".join(names) for names in wanted if not ModelFolder(folder).has(*names)
    ]:
        raise Findings(_unusable(folder, f"there is no {', and no '.join(absent)}"))
    if wrong := (
        ModelFolder(folder).refused
        or ModelFolder(config_of or folder).unreadable(GENERATION)
        or ModelFolder(folder).unreadable(PROCESSOR_FILES[1], VIDEO_SETTINGS_FILE)
        or beyond_any_model(config_of or folder)
    ):
        raise Findings(_unusable(folder, *(ModelFolder(folder).stand_in() or (wrong,))))
    backend = choose_backend(image.backend, folder)
    try:
        config = AutoConfig.from_pretrained(
            config_of or folder, local_files_only=True, trust_remote_code=False
        )
        with _printed_as_errors():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        if known.facts.is_learnt:
            whole = open_processor(folder, tokenizer, backend)
            return _Opened(backend, config, tokenizer, whole.image_processor, whole=whole)
        images = known.image_processor_class(backend).from_pretrained(folder, local_files_only=True)
        videos = video_processor(known, ModelFolder(folder).video_processor, backend)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # each reader raises what its file format raises; some panic
        what = "the tokenizer, the image processor or the video processor cannot be read"
        if found := ModelFolder(folder).stand_in():
            raise Findings(_unusable(folder, found[0], found[1])) from error
        help = None
        if isinstance(error, ImportError):  # of a processor that needs a package
            help = "install the package that it names, and try again"
        raise Findings(_unusable(folder, f"{what}: {first_line(error)}", help)) from error
    return _Opened(backend, config, tokenizer, images, videos)


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


def stop_ids(config: Any, listed: Any, tokenizer: Any) -> list[int]:
    """Return the ids at which inference stops.

    Args:
        config: of the model, as transformers reads it.
        listed: the eos_token_id of generation_config.json; None for none.
        tokenizer: the model's.
    """
    found = listed if isinstance(listed, list) else [listed]
    if listed is None:
        # transformers and vLLM then take the config's, which may be its class's own default
        texts = (config, config.get_text_config())
        ends = (getattr(one, "eos_token_id", None) for one in texts)
        found = [end for end in ends if isinstance(end, int) and _is_token(tokenizer, end)]
    return [token for token in (tokenizer.eos_token_id, *found) if token is not None]


def _end_not_listed(folder: Path, listed: Any, tokenizer: Any, end: int) -> tuple[Diagnostic, ...]:
    """Return a warning where an answer's end is no end by generation_config.json."""
    if listed is None or end in (listed if isinstance(listed, list) else [listed]):
        return ()
    message = (
        f"{folder}: answers end with {tokenizer.convert_ids_to_tokens(end)} ({end}), and"
        f" {GENERATION} has eos_token_id {listed}: transformers' generate, and servers that go by"
        " it, write on behind an answer"
    )
    help = f"add {end} to eos_token_id in {GENERATION}, which the export takes over"
    return (Diagnostic("end-not-listed", message, help, parameter="model.path"),)


def _is_small(file: Path) -> bool:
    return file.is_file() and file.stat().st_size <= LARGEST_SMALL_FILE


def _is_token(tokenizer: Any, token: Any) -> bool:
    try:
        return type(token) is int and tokenizer.convert_ids_to_tokens(token) is not None
    except (OverflowError, TypeError):
        return False


def with_sizes(processor: Processor, image: Image, video: Video) -> Processor:
    """Return the processor with these settings of images, and sizes and lengths of videos."""
    if processor.whole is not None:
        return replace(processor, pictures=PictureReader.of(image))
    size = dict(processor.image_processor.size)
    for edge, pixels in (("shortest_edge", image.min_pixels), ("longest_edge", image.max_pixels)):
        if pixels is not None:
            size[edge] = pixels * processor.family.facts.frames_per_image
    processor.image_processor.size = size
    record_backend(processor.image_processor)
    return replace(
        processor,
        video_processor=processor.video.with_settings(video),
        pictures=PictureReader.of(image),
    )


def _unusable(folder: Path, what: str, help: str | None = None) -> Diagnostic:
    return Diagnostic("model-does-not-load", f"{folder}: {what}", help, parameter="model.path")
