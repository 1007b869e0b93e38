"""The processor: tokenizer, chat template, image processor and the token ids that belong together."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vtool.config.schema import Image, Model
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.families import Family, family
from vtool.models.tokens import TokenIds, train_tokenizer


@dataclass(frozen=True, slots=True)
class Processor:
    """What turns a chat with images into a model's inputs."""

    tokenizer: Any
    image_processor: Any
    ids: TokenIds

    def save(self, folder: Path) -> None:
        """Write tokenizer, chat template and image processor as transformers reads them."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)


def new_processor(settings: Model, image: Image, texts: Iterable[str]) -> Processor:
    """The processor of a run that starts: the one in `model.path`, or one trained on these texts."""
    if settings.path:
        return load_processor(Path(settings.path), settings.family, image)
    known = family(settings.family)
    tokenizer = train_tokenizer(texts, known.token_names)
    ids = {part: tokenizer.convert_tokens_to_ids(name) for part, name in asdict(known.token_names).items()}
    image_processor = known.image_processor_class()(**asdict(known.images))
    token_ids = TokenIds(**ids, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    return with_sizes(Processor(tokenizer, image_processor, token_ids), image, known)


def load_processor(folder: Path, family_name: str, image: Image | None = None, config_of: Path | None = None) -> Processor:
    """The processor that a folder holds: a model's, a run's, or an exported one. Its token ids are those of its config.json.

    Args:
        config_of: where that is, if elsewhere: an adapter's folder has none.

    Raises:
        Findings: `model-does-not-load`, where a part of it is missing or cannot be read.
    """
    from transformers import AutoConfig, AutoTokenizer

    known = family(family_name)
    wanted = (("tokenizer.json", "vocab.json", "tokenizer.model"), ("preprocessor_config.json", "processor_config.json"))
    absent = [] if ((config_of or folder) / "config.json").exists() else ["config.json"]
    if absent := absent + [" or ".join(names) for names in wanted if not any((folder / name).exists() for name in names)]:
        raise Findings(_unusable(folder, f"there is no {', and no '.join(absent)}"))
    try:
        config = AutoConfig.from_pretrained(config_of or folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        image_processor = known.image_processor_class().from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each reader raises what its file format raises
        raise Findings(_unusable(folder, f"the tokenizer or the image processor cannot be read: {first_line(error)}")) from error
    if not tokenizer.chat_template:
        raise Findings(_unusable(folder, "the tokenizer has no chat template (chat_template.jinja)"))
    ids = known.token_ids(config, tokenizer)
    return with_sizes(Processor(tokenizer, image_processor, ids), image or Image(), known)


def first_line(error: BaseException) -> str:
    """An exception's message, without the pages that some libraries write."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def with_sizes(processor: Processor, image: Image, known: Family) -> Processor:
    """The processor, told how large images are."""
    size = dict(processor.image_processor.size)
    for edge, pixels in (("shortest_edge", image.min_pixels), ("longest_edge", image.max_pixels)):
        if pixels is not None:
            size[edge] = pixels * known.frames_per_image
    processor.image_processor.size = size
    return processor


def _unusable(folder: Path, what: str) -> Diagnostic:
    return Diagnostic("model-does-not-load", f"{folder}: {what}", parameter="model.path")
