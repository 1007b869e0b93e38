"""Any model's images by transformers' own processor: its text, its inputs, and how rows join.

The families that vtool has cut images themselves. Of all others nothing is assumed: the processor
is called as a server calls it, once a row, and what vtool must know is learnt from two calls.
"""

import copy
import inspect
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import Family
from vtool.families.twin_config import with_fewer_layers
from vtool.models.on_meta import parameters_on_meta, stand_ins
from vtool.words import first_line

TOKEN_INPUTS = (
    "mm_token_type_ids",
    "token_type_ids",
    "moe_mm_token_type_ids",
)
"""A model's inputs with an entry for each token. All others, but ids and mask, are of images."""
_BORDERS = "\ue0b0\ue0b1\ue0b2\ue0b3"
"""Characters for private use, which mark where one text ends: one that no text has is taken."""
_ROOM = 48


class ProcessorFails(ValueError):
    """A processor that refuses a row, with what it says."""


class _Arrived(Exception):
    """A row's embeddings have arrived at the layers of language."""


def _arrive(*_: object) -> None:
    raise _Arrived


@dataclass(frozen=True, slots=True)
class WholeRow:
    """A row as transformers' processor encodes it."""

    ids: tuple[tuple[int, ...], ...]
    """The token ids of each text, images included."""
    tokens: Mapping[str, Tensor]
    """Inputs of `TOKEN_INPUTS`, int64 [L]."""
    inputs: Mapping[str, Tensor]
    """The model's inputs of the row's images."""


@dataclass(frozen=True, slots=True)
class JoinRule:
    """The way in which the processor joins an input of two rows."""

    axis: int = 0
    step: int = 0
    """Added to each index for each place of `pixel_values` before it; 0: it is no index."""


class WholeProcessor:
    """transformers' processor of a folder, called as a server calls it."""

    def __init__(self, processor: Any, accepted: Iterable[str], text: str):
        """Learn how the processor joins rows.

        Args:
            processor: of transformers, with a fast tokenizer.
            accepted: the inputs that the model's forward pass takes, by name.
            text: a chat of one image, rendered.

        Raises:
            ValueError: where two equal rows are not joined by one rule.
        """
        self.processor = processor
        self.accepted = frozenset(accepted) - {"labels", "self", "kwargs", "input_ids"}
        self._call = _Tokenizer(processor.tokenizer)
        processor.tokenizer = self._call
        self._more: dict[str, Any] = {"return_tensors": "pt"}
        if "mm_token_type_ids" in self.accepted:
            self._more["return_mm_token_type_ids"] = True  # not every one returns them unasked
        self.text = text
        one = self.encode([self.text], [_picture()])
        self.smallest = self.encode([self.text], [_picture(32, 32)]).inputs
        """The inputs of the smallest image, as the processor cuts it."""
        self.token_inputs = tuple(one.tokens)
        self.unreached: frozenset[str] = frozenset()
        """Parameters of the tower and the projector that no image reaches: they are not trained."""
        self.rules = self._learn(one)

    def encode(self, texts: Sequence[str], images: Sequence[Any]) -> WholeRow:
        """Encode the texts of a row, each tokenized by itself, and its images.

        Args:
            texts: the row's, one behind the other. Each image's mark is in one of them.
            images: of PIL, in the order in which they are shown.

        Raises:
            ProcessorFails: as the processor says.
        """
        if not images:
            return WholeRow(tuple(map(tuple, self._call.of(texts))), {}, {})
        border = next(one for one in _BORDERS if not any(one in text for text in texts))
        try:
            with self._call.splitting_at(border) as seen:
                text = border.join((*texts, ""))  # one border at least, by which it is known
                made = self.processor(text=[text], images=[list(images)], **self._more)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:  # each processor raises what it likes
            raise ProcessorFails(f"{type(error).__name__}: {first_line(error)}") from error
        if len(seen.ids) != len(texts) + 1:
            raise ProcessorFails("the processor has not tokenized the row's text in one call")
        given = {name: one for name, one in made.items() if name in self.accepted}
        if wrong := [name for name, one in given.items() if not isinstance(one, Tensor)]:
            raise ProcessorFails(f"{', '.join(wrong)}: no tensor")
        return WholeRow(
            (*map(tuple, seen.ids[:-2]), (*seen.ids[-2], *seen.ids[-1])),
            {name: one[0].long() for name, one in given.items() if name in TOKEN_INPUTS},
            {
                name: one
                for name, one in given.items()
                if name not in TOKEN_INPUTS and name != "attention_mask"
            },
        )

    def as_served(self, text: str, images: Sequence[Any]) -> list[int]:
        """Return the token ids that a server makes of a text, which is tokenized in one call."""
        more = {"images": [list(images)]} if images else {}
        with self._as_opened() as processor:
            made = processor(text=[text], add_special_tokens=False, return_tensors="pt", **more)
        ids: list[int] = made["input_ids"][0].tolist()
        return ids

    def save(self, folder: Path) -> None:
        """Write all files of the processor, as transformers has them."""
        with self._as_opened() as processor:
            processor.save_pretrained(folder)

    @contextmanager
    def _as_opened(self) -> Iterator[Any]:
        """Give the processor its own tokenizer back, while the context lasts."""
        self.processor.tokenizer = self._call.tokenizer
        try:
            yield self.processor
        finally:
            self.processor.tokenizer = self._call

    def try_on(self, model: nn.Module) -> None:
        """Compute a row with an image, with parameters of no bytes.

        Args:
            model: its parameters are on the meta device.

        Raises:
            Exception: what the class raises.
        """
        row = self.encode([self.text], [_picture()])
        ids = torch.tensor(row.ids)
        types = {name: one[None] for name, one in row.tokens.items()}
        with stand_ins(model), torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **types, **row.inputs)

    def try_embedding(self, config: Any) -> None:
        """Compute a row with an image as far as its first layer of language.

        Args:
            config: of a class that holds the features against the places of an image.

        Raises:
            Exception: what the class raises, as of a processor that writes other places.
        """
        from transformers import AutoModelForImageTextToText

        with parameters_on_meta():
            model = AutoModelForImageTextToText.from_config(config)
        if (decoder := model.get_decoder()) not in (None, model):
            decoder.register_forward_pre_hook(_arrive)
            with suppress(_Arrived):
                self.try_on(model)

    def join(self, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Join the image inputs of rows, as the processor's own batch has them.

        Each is padded to the largest, and concatenated on the axis on which the processor does it.
        """
        joined = {}
        rows = [row for row in rows if row]
        for name in dict.fromkeys(name for row in rows for name in row):
            rule, before, own = self.rules[name], 0, []
            for row in rows:
                value = row[name]
                own.append(torch.where(value >= 0, value + before, value) if rule.step else value)
                if rule.step:
                    pixels = _pixels(row)
                    before += rule.step * row[pixels].shape[self.rules[pixels].axis]
            joined[name] = _padded_cat(own, rule.axis)
        return joined

    def _learn(self, one: WholeRow) -> dict[str, JoinRule]:
        both = self.processor(
            text=[self.text, self.text],
            images=[[_picture()], [_picture()]],
            padding=True,
            **self._more,
        )
        rules = {}
        for name, value in one.inputs.items():
            wide = both[name]
            axes = [
                axis
                for axis in range(value.ndim)
                if wide.ndim == value.ndim and wide.shape[axis] == 2 * value.shape[axis]
            ]
            if not axes:
                raise ValueError(
                    f"{name} is {list(value.shape)} of one row, and {list(wide.shape)} of two"
                )
            axis, size = axes[0], value.shape[axes[0]]
            behind, step = wide.narrow(axis, size, size), 0
            if not torch.equal(behind, value):
                steps = (behind - value)[value >= 0].unique()
                if len(steps) != 1 or value.is_floating_point():
                    raise ValueError(f"{name} of a second row is not that of the first")
                step = int(steps)
            rules[name] = JoinRule(axis, step)
        pixels = _pixels(one.inputs)
        size = one.inputs[pixels].shape[rules[pixels].axis]
        return {name: JoinRule(rule.axis, rule.step // size) for name, rule in rules.items()}


def open_processor(folder: Path, tokenizer: Any, backend: str) -> Any:
    """Open a folder's processor, by the class that transformers has for its type.

    Raises:
        Exception: what its reader raises, as of a package that is not installed.
    """
    from transformers import AutoProcessor

    made = AutoProcessor.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, backend=backend
    )
    if not hasattr(made, "image_processor"):
        raise ValueError(f"its processor, a {type(made).__name__}, has no image processor")
    made.tokenizer = tokenizer
    return made


def on_meta(config: Any) -> Any:
    """Return a model of which nothing, buffers included, has memory."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def find_unreached(family: Family, model: Any, image: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the parameters of the tower and the projector that no image reaches, by name.

    As a head of pooling that the class never calls. The forward pass of the smallest image is
    computed on the meta device, or, where the class looks at numbers, with parameters of no bytes;
    and its graph is followed back.

    Args:
        family: of the model.
        model: as `on_meta` returns it.
        image: the inputs of its smallest image.
    """
    from transformers import AutoModelForImageTextToText

    model.smallest_image = dict(image)
    try:
        reached = _reached(family, model, torch.device("meta"))
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        with parameters_on_meta():
            model = AutoModelForImageTextToText.from_config(model.config)
        model.smallest_image = dict(image)
        with stand_ins(model):
            reached = _reached(family, model, torch.device("cpu"))
    names = [name for name, _ in model.named_parameters()]
    of_images = {name for name in names if family.component(name) != "language"}
    for part in ("vision", "projector"):  # one that is called elsewhere is reached all the same
        own = {name for name in of_images if family.component(name) == part}
        if own and own.isdisjoint(reached):
            of_images -= own
    return frozenset(of_images - reached)


def _reached(family: Family, model: Any, device: torch.device) -> set[str]:
    names = {id(one): name for name, one in model.named_parameters()}
    given = family.smallest_image(model, device)
    output = model.model.get_image_features(**given, return_dict=True)
    ahead = [one.grad_fn for one in family.features(output) if one.grad_fn is not None]
    seen: set[Any] = set()
    reached = set()
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.add(names[id(node.variable)])
        ahead += [one for one, _ in node.next_functions if one is not None]
    return reached


def learn_processor(family: Family, processor: Any, config: Any, folder: Path) -> WholeProcessor:
    """Learn how a folder's processor joins rows, and which inputs its model takes.

    Raises:
        Findings: `processor-not-understood`.
    """
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    if "suffix" in inspect.signature(type(processor).__call__).parameters:
        raise Findings(
            _not_understood(
                folder, processor, "its model reads prompts both ways, which is not built here"
            )
        )
    try:
        model = on_meta(config)
        inner = getattr(model, "model", model)
        accepted = {
            name
            for module in (model, inner)
            for name in inspect.signature(type(module).forward).parameters
        }
        text = processor.tokenizer.apply_chat_template(chat, tokenize=False)
        if getattr(config, "is_encoder_decoder", False) or not hasattr(inner, "get_image_features"):
            why = f"{type(model).__name__} does not read them among its tokens, as trained here"
            raise Findings(_not_understood(folder, processor, why))
        made = WholeProcessor(processor, accepted, str(text))
        made.unreached = find_unreached(family, model, made.smallest)
        try:
            made.try_embedding(with_fewer_layers(copy.deepcopy(config)))
        except Exception:  # of the class, or of what names a layer that is left out
            made.try_embedding(config)
        return made
    except (KeyboardInterrupt, SystemExit, Findings):
        raise
    except Exception as error:  # of classes that are not known here
        raise Findings(_not_understood(folder, processor, first_line(error))) from error


def _not_understood(folder: Path, processor: Any, why: str) -> Diagnostic:
    message = f"{folder}: images cannot be encoded by its {type(processor).__name__}: {why}"
    return Diagnostic("processor-not-understood", message, parameter="model.path")


class _Split:
    """The token ids of the texts between borders, once the processor has tokenized them."""

    def __init__(self, border: str) -> None:
        self.border = border
        self.ids: list[list[int]] = []


class _Tokenizer:
    """A tokenizer that tokenizes the texts between borders each by itself.

    So the ids before an answer are those of inference's prompt, and what a processor writes in the
    place of an image is tokenized with the text around it, as a server does.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._split: _Split | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return len(self.tokenizer)

    @contextmanager
    def splitting_at(self, border: str) -> Iterator[_Split]:
        """Split the first text with this border, while the context lasts."""
        self._split = _Split(border)
        try:
            yield self._split
        finally:
            self._split = None

    def of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def __call__(self, text: Any = None, **more: Any) -> Any:
        split, one = self._split, text[0] if isinstance(text, list | tuple) and text else text
        if split is None or split.ids or not isinstance(one, str) or split.border not in one:
            return self.tokenizer(text, **more)
        pieces = one.split(split.border)
        made = self.tokenizer(pieces, add_special_tokens=False, return_offsets_mapping=True)
        split.ids = made["input_ids"]
        ends: list[int] = []
        before = 0
        for piece, offsets in zip(pieces, made["offset_mapping"], strict=True):
            ends += [before + end for _, end in offsets]
            before += len(piece) + 1
        return _encoding(split.ids, ends, isinstance(text, list | tuple), more)


def _encoding(
    pieces: Sequence[Sequence[int]], ends: Sequence[int], batched: bool, more: Mapping[str, Any]
) -> Any:
    """Return the encoding of texts that were tokenized each by itself, as a tokenizer returns it.

    Args:
        pieces: their token ids.
        ends: the place in the whole text at which each token ends.
        batched: of a list of one text.
        more: the arguments of the call.
    """
    from transformers import BatchEncoding

    class Encoding(BatchEncoding):  # type: ignore[misc]
        """An encoding that knows which token has a character, as Idefics3's processor asks."""

        def char_to_token(self, _row: int, place: int) -> int:
            return bisect_right(ends, place)

    whole = [token for piece in pieces for token in piece]
    made: dict[str, Any] = {"input_ids": whole, "attention_mask": [1] * len(whole)}
    if batched:
        made = {name: [value] for name, value in made.items()}
    return Encoding(made, tensor_type=more.get("return_tensors"))


def _pixels(inputs: Mapping[str, Tensor]) -> str:
    return next(name for name in inputs if name.startswith("pixel_values"))


def _padded_cat(values: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors on an axis; the others are padded to the largest."""
    largest = [max(sizes) for sizes in zip(*(one.shape for one in values), strict=True)]
    filled = []
    for one in values:
        shape = [one.shape[axis] if place == axis else size for place, size in enumerate(largest)]
        whole = one
        if list(one.shape) != shape:
            whole = one.new_zeros(shape)
            whole[tuple(slice(0, size) for size in one.shape)] = one
        filled.append(whole)
    return torch.cat(filled, axis) if len(filled) > 1 else filled[0]


def _picture(width: int = _ROOM, height: int = 32) -> Any:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
