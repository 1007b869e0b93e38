"""The few rows that proofs compute with.

They are the first rows of data.train that can be used, shortened where they are long, and rows that
are made of these.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

from vtool.config.schema import Image, Run
from vtool.config.schema import Video as VideoBounds
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.data.row import Row, texts_of
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.processor import Processor, new_processor
from vtool.training.setup import read_texts
from vtool.verification.not_provable import NotProvable
from vtool.verification.proofs.proof import list_first

LOOKED_AT = 64
"""Rows of data.train that are tried, from the first."""
FURTHEST = 640
"""Rows that are tried where none can be used and data.max_dropped_rows allows that."""
ENOUGH = 6
"""Usable rows after which the search ends, where each has an image."""
_ROWS = 3
"""Rows that are selected."""
ROW_TOKENS = 256
"""Tokens of a row, at most; of two rows made one, twice as many."""
FRAMES = 8
"""Frames of a video, at most."""
# What is kept of a row that is too long: characters of each of its texts, and images and videos.
_SHORTER = ((1024, 6), (512, 4), (256, 3), (128, 2), (64, 1), (16, 1))


@dataclass(frozen=True, slots=True)
class InMemoryRows:
    """A source of rows that are in memory."""

    rows: tuple[Row, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.rows[index].id

    def row(self, index: int) -> Row:
        return self.rows[index]

    def describe(self) -> dict[str, Any]:
        return {"format": "picked", "rows": len(self.rows)}


def read_row(rows: Rows, index: int) -> Row | None:
    """Return a row, its lists of frames cut to `FRAMES`; None where it cannot be read.

    The audit of rows reports such a row.
    """
    try:
        row = rows.row(index)
    except Findings:
        return None
    videos = [
        video if isinstance(video.source, str) else replace(video, source=video.source[:FRAMES])
        for video in row.videos
    ]
    return replace(row, videos=videos) if videos else row


def select_rows(
    rows: Rows, processor: Processor, run: Run, recipe_run: Run
) -> tuple[tuple[Row, ...], tuple[Sample, ...], tuple[str, ...]]:
    """Select two rows with images or videos and one without, and make one chat of two of them.

    Args:
        run: the small run, whose images have other sizes than the recipe's.
        recipe_run: the recipe's run.

    Returns:
        The rows, their samples, and how they differ from the recipe's, in words.

    Raises:
        Findings: `no-rows`, where none can be used of as many as the recipe has, or may drop.
        NotProvable: where the recipe may well have usable rows.
    """
    encoder = _Encoder(processor, run, recipe_run)
    usable = list(_usable_rows(rows, encoder))
    if not usable:
        raise _no_usable_row(rows, encoder)
    videos = [one for one in usable if one.row.videos][:1]
    images = [one for one in usable if one.sample.images and not one.row.videos]
    selected = (videos + images)[: _ROWS - 1]
    selected += [one for one in usable if not one.sample.images][: _ROWS - len(selected)]
    others = [one for one in usable if not any(one is other for other in selected)]
    selected += others[: _ROWS - len(selected)]
    for row in _combine([one.row for one in selected]):
        one = encoder.encode(row, made=True)
        if isinstance(one, _Usable) and one.tokens <= 2 * ROW_TOKENS:
            selected.append(one)
    changes = []
    if shortened := [one.row.id for one in selected if one.shortened]:
        changes.append(
            f"of {list_first(shortened)}, longer than {ROW_TOKENS} tokens, the last turns, and the"
            " beginning of each text"
        )
    longest = recipe_run.data.max_length or sys.maxsize
    if longer := [one for one in selected if one.tokens > longest]:
        changes.append(
            f"data.max_length {recipe_run.data.max_length} → {max(one.tokens for one in longer)}"
            f" for {list_first([one.row.id for one in longer])}: what is larger here"
        )
    samples = tuple(replace(one.sample, index=place) for place, one in enumerate(selected))
    return tuple(one.row for one in selected), samples, tuple(changes)


@dataclass(frozen=True, slots=True)
class _Usable:
    """A row that can be used."""

    row: Row
    sample: Sample
    shortened: bool = False

    @property
    def tokens(self) -> int:
        return len(self.sample.input_ids)


def _usable_rows(rows: Rows, encoder: "_Encoder") -> Iterator[_Usable]:
    """Yield the first usable rows until there are enough.

    Where there are few, as many more are tried as the recipe may drop.
    """
    images: list[bool] = []
    for index in range(min(len(rows), LOOKED_AT + encoder.may_drop, FURTHEST)):
        if index >= LOOKED_AT and len(images) >= _ROWS:
            return
        encoder.looked_at += 1
        if (row := read_row(rows, index)) is None or (one := encoder.shorten(row)) is None:
            continue
        yield one
        images.append(bool(one.sample.images))
        # Images and videos take their time: no more of them are decoded than are needed.
        if sum(images) >= _ROWS - 1 and (not all(images) or len(images) >= ENOUGH):
            return


def _no_usable_row(rows: Rows, encoder: "_Encoder") -> Findings:
    tried, refused = encoder.looked_at, encoder.refused
    if encoder.too_long:
        message = (
            f"{encoder.too_long[0]} has more than {ROW_TOKENS} tokens however it is shortened, and"
            " so have all rows looked at that can be used"
        )
        return _not_provable(message, "put a shorter row among the first ones of data.train")
    why = f"; the first: {_first_problem(rows, encoder)}" if refused else ""
    message = f"none of the first {tried} rows of data.train can be used{why}"
    rules = {findings.diagnostics[0].rule for findings in refused}
    never_dropped = "overlong-row" in rules and encoder.recipe_run.data.on_overlong == "error"
    if tried <= encoder.may_drop and tried < len(rows) and not never_dropped:
        message = f"{message}; data.max_dropped_rows={encoder.may_drop} lets them go"
        return _not_provable(message, "put a row that can be used among the first of data.train")
    return Findings(Diagnostic("no-rows", message, parameter="data.train"))


def _first_problem(rows: Rows, encoder: "_Encoder") -> str:
    """Return why the first row cannot be used; its tokens are counted as the audit counts them."""
    first, run = encoder.refused[0].diagnostics[0], encoder.recipe_run
    if first.rule != "overlong-row":
        return first.message
    texts = () if run.model.path else read_texts(rows)
    processor = new_processor(run.model, run.data.image, texts, run.data.video, run.data)
    name = first.message.partition(" has ")[0]
    for index in range(encoder.looked_at):
        if rows.name(index) == name:
            try:
                EncodedRows(rows, processor, run.data).sample(index)
            except Findings as found:
                return found.diagnostics[0].message
    return first.message


def _not_provable(message: str, help: str) -> NotProvable:
    return NotProvable(Diagnostic("no-rows", message, help, "data.train"))


class _Encoder:
    """Encodes single rows, and keeps which of them could not be used."""

    def __init__(self, processor: Processor, run: Run, recipe_run: Run) -> None:
        self.processor, self.run, self.recipe_run = processor, run, recipe_run
        self.looked_at = 0
        self.refused: list[Findings] = []
        self.too_long: list[str] = []

    @property
    def may_drop(self) -> int:
        """The recipe's data.max_dropped_rows."""
        return self.recipe_run.data.max_dropped_rows

    def shorten(self, row: Row) -> _Usable | None:
        """Encode a row, or as much of it as is short enough; None where it cannot be used."""
        whole = self.encode(row)
        if isinstance(whole, Findings):
            self.refused.append(whole)
            return None
        if whole.tokens <= ROW_TOKENS:
            return whole
        for shorter in _shortened(row):
            one = self.encode(shorter)
            if isinstance(one, _Usable) and one.tokens <= ROW_TOKENS:
                return replace(one, shortened=True)
        self.too_long.append(row.id)
        return None

    def encode(self, row: Row, *, made: bool = False) -> _Usable | Findings:
        """Encode a row, with as much more room than data.max_length as its images are larger here.

        Args:
            made: it is no row of the recipe. Its length then does not count, unless the recipe
                truncates rows.
        """
        data = self.run.data
        if made and data.on_overlong != "truncate":
            data = data.model_copy(update={"max_length": None})
        outcome: _Usable | Findings
        try:
            sample = _encode_row(row, self.processor, data)
            outcome = _Usable(row, sample)
            may_be_larger = sample.truncated and bool(sample.images)
        except Findings as findings:
            outcome = findings
            of_length = findings.diagnostics[0].parameter == "data.max_length"
            may_be_larger = of_length and bool(row.images or row.videos)
        if data.max_length is None or not may_be_larger or not (room := self._room(row)):
            return outcome
        roomier = data.model_copy(update={"max_length": data.max_length + room})
        try:
            return _Usable(row, _encode_row(row, self.processor, roomier))
        except Findings as findings:
            return findings

    def _room(self, row: Row) -> int:
        """Return how many tokens more a row has here than with the recipe's sizes of images."""
        data = self.run.data.model_copy(update={"max_length": None})
        tokens_here, tokens_in_recipe = (
            len(_encode_row(row, processor, data).input_ids)
            for processor in (self.processor, self._processor_as_asked)
        )
        return max(0, tokens_here - tokens_in_recipe)

    @cached_property
    def _processor_as_asked(self) -> Processor:
        """The processor with the recipe's sizes of images and videos.

        They are no larger than here, for that costs time and changes nothing.
        """
        recipe_data, here = self.recipe_run.data, self.run.data
        image, video = (
            bounds.model_copy(update={"max_pixels": min(bounds.max_pixels or most, most)})
            for bounds, most in (
                (recipe_data.image, here.image.max_pixels or 0),
                (recipe_data.video, here.video.max_pixels or 0),
            )
        )
        assert isinstance(image, Image)
        assert isinstance(video, VideoBounds)
        video = video.model_copy(update={"max_frames": here.video.max_frames})
        return replace(
            new_processor(self.recipe_run.model, image, (), video, recipe_data),
            tokenizer=self.processor.tokenizer,
            ids=self.processor.ids,
            form=self.processor.form,
            stops=self.processor.stops,
        )


def _encode_row(row: Row, processor: Processor, data: Any) -> Sample:
    return EncodedRows(Rows((), [InMemoryRows((row,))]), processor, data).sample(0)


def _shortened(row: Row) -> Iterator[Row]:
    """Yield less and less of a row: its last turns, then these with less in each message."""
    last = _last_turns(row)
    if len(last.messages) < len(row.messages):
        yield last
    for characters, visuals in _SHORTER:
        yield _cut(last, characters, visuals)


def _last_turns(row: Row) -> Row:
    """Return the system prompt, and all from the last question on that has a supervised answer."""
    answers = [*row.supervised()]
    questions = [
        place
        for place, message in enumerate(row.messages)
        if message["role"] == "user" and answers and place < answers[-1]
    ]
    begin = questions[-1] if questions else 0
    return _keep_messages(
        row,
        {
            place: message
            for place, message in enumerate(row.messages)
            if place >= begin or message["role"] == "system"
        },
    )


def _cut(row: Row, characters: int, visuals: int) -> Row:
    """Return a row with at most so many characters in each text, and images and videos in all."""
    places_left = repeat(True, visuals)

    def cut(content: Any) -> Any:
        if isinstance(content, str):
            return _beginning(content, characters)
        if not isinstance(content, list):
            return content
        return [
            {**part, "text": _beginning(part["text"], characters)}
            if part.get("type") == "text"
            else part
            for part in content
            if part.get("type") not in ("image", "video") or next(places_left, False)
        ]

    return _keep_messages(
        row,
        {
            place: {**message, "content": cut(message.get("content"))}
            for place, message in enumerate(row.messages)
        },
    )


def _beginning(text: str, characters: int) -> str:
    """Return the first characters of a text, which are not all blank."""
    if len(text) <= characters or text[:characters].strip():
        return text[:characters]
    return text.strip()[:characters]


def _keep_messages(row: Row, messages: Mapping[int, Mapping[str, Any]]) -> Row:
    """Return a row of these messages, by their places, and of the images and videos in them.

    A message that has lost some of its images has kept the first ones.
    """
    given = {"image": iter(row.images), "video": iter(row.videos)}
    kept: dict[str, list[Any]] = {"image": [], "video": []}
    for place, message in enumerate(row.messages):
        for kind, entries in given.items():
            own = [next(entries, None) for _ in range(_count_parts(message, kind))]
            kept[kind] += own[: _count_parts(messages[place], kind)] if place in messages else []
    return replace(row, messages=[*messages.values()], images=kept["image"], videos=kept["video"])


def _count_parts(message: Mapping[str, Any], kind: str) -> int:
    content = message.get("content")
    return sum(part.get("type") == kind for part in content) if isinstance(content, list) else 0


def _combine(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield one chat made of two rows, and a row without images if each has some.

    With the first, lengths differ and a row has several images; of a single row it is that row
    twice, so that there are two rows.
    """
    first, second = rows[0], rows[1 % len(rows)]
    if first.tools == second.tools:
        later = [message for message in second.messages if message["role"] != "system"]
        yield replace(
            first,
            id=f"{first.id} with {second.id if len(rows) > 1 else 'itself'}",
            messages=[*first.messages, *later],
            images=[*first.images, *second.images],
            videos=[*first.videos, *second.videos],
        )
    if all(row.images or row.videos for row in rows):
        plain = [{**message, "content": " ".join(texts_of(message))} for message in first.messages]
        yield replace(
            first, id=f"{first.id} without its images", messages=plain, images=[], videos=[]
        )
