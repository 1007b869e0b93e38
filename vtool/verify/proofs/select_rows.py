"""The few rows that proofs compute with:

those of data.train that come first, made short enough, and some made of these.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vtool.config.schema import Image, Run
from vtool.config.schema import Video as VideoBounds
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.data.row import Row, texts_of
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.processor import Processor, new_processor
from vtool.verify.proofs.proof import listed
from vtool.verify.proved import NotProvable

LOOKED_AT = 64  # rows of data.train, from the first
FURTHEST = 640  # of them, where none can be used and data.max_dropped_rows allows that
ENOUGH = 6  # of them, where each has a picture
ROWS = 3  # of them that proofs compute with
TOKENS = 256  # of a row; of two rows as one, twice as many
FRAMES = 8  # of a video
# What is left of a row that is too long: characters of each of its texts, and images and videos.
_LEFT = ((1024, 6), (512, 4), (256, 3), (128, 2), (64, 1), (16, 1))


@dataclass(frozen=True, slots=True)
class InMemoryRows:
    """Rows in memory, as a source of rows."""

    rows: tuple[Row, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.rows[index].id

    def row(self, index: int) -> Row:
        return self.rows[index]

    def describe(self) -> dict[str, Any]:
        return {"format": "picked", "rows": len(self.rows)}


def read(rows: Rows, index: int) -> Row | None:
    """Row `index`, a list of frames not longer than it is shown here;

    None where it cannot be understood, which the audit of rows tells.
    """
    try:
        row = rows.row(index)
    except Findings:
        return None
    cut = [
        video if isinstance(video.source, str) else replace(video, source=video.source[:FRAMES])
        for video in row.videos
    ]
    return replace(row, videos=cut) if row.videos else row


def select_rows(
    rows: Rows, processor: Processor, run: Run, asked: Run
) -> tuple[tuple[Row, ...], tuple[Sample, ...], tuple[str, ...]]:
    """Two rows with images or videos, if any have some, and one without; two of them as one chat.
    And what is different here, in words.

    Args:
        run: as it is here, with images of other sizes than are asked.

    Raises:
        Findings: `no-rows`, where none can be used of as many as the recipe has, or lets go.
        NotProvable: where the recipe may well have some.
    """
    encoder = _Encoder(processor, run, asked)
    usable = list(_usable(rows, encoder))
    if not usable:
        raise _none(rows, encoder, asked.data.max_dropped_rows)
    videos = [one for one in usable if one.row.videos][:1]
    images = [one for one in usable if one.sample.images and not one.row.videos]
    picked = (videos + images)[: ROWS - 1]
    picked += [one for one in usable if not one.sample.images][: ROWS - len(picked)]
    picked += [one for one in usable if not any(one is other for other in picked)][
        : ROWS - len(picked)
    ]
    for made in _made([one.row for one in picked]):
        if (
            isinstance(one := encoder.encode(made, made=True), _Usable)
            and len(one.sample.input_ids) <= 2 * TOKENS
        ):
            picked.append(one)
    changes = []
    if shortened := [one.row.id for one in picked if one.shortened]:
        changes.append(
            f"of {listed(shortened)}, longer than {TOKENS} tokens, the last turns, and the"
            " beginning of each text"
        )
    if over := [
        one for one in picked if len(one.sample.input_ids) > (asked.data.max_length or sys.maxsize)
    ]:
        longest = max(len(one.sample.input_ids) for one in over)
        changes.append(
            f"data.max_length {asked.data.max_length} → {longest} for"
            f" {listed([one.row.id for one in over])}: what is larger here"
        )
    samples = tuple(replace(one.sample, index=place) for place, one in enumerate(picked))
    return tuple(one.row for one in picked), samples, tuple(changes)


@dataclass(frozen=True, slots=True)
class _Usable:
    row: Row
    sample: Sample
    shortened: bool = False


def _usable(rows: Rows, encoder: "_Encoder") -> Iterator[_Usable]:
    """Those of the first rows that can be used, until there are enough;

    where there are few, of as many more as the recipe may drop.
    """
    found: list[bool] = []
    most = min(len(rows), LOOKED_AT + encoder.asked.data.max_dropped_rows, FURTHEST)
    for index in range(most):
        if index >= LOOKED_AT and len(found) >= ROWS:
            return
        encoder.looked_at += 1
        if (row := read(rows, index)) is None or (one := encoder.short_enough(row)) is None:
            continue
        yield one
        found.append(bool(one.sample.images))
        # Rows with pictures or films take their time: no more of them than are needed.
        if sum(found) >= ROWS - 1 and (not all(found) or len(found) >= ENOUGH):
            return


def _none(rows: Rows, encoder: "_Encoder", may_go: int) -> Exception:
    looked, refused, long = encoder.looked_at, encoder.refused, encoder.too_long
    if long:
        return NotProvable(
            f"{long[0]} has more than {TOKENS} tokens however it is shortened, and so have all rows"
            " looked at that can be used"
        )
    why = f"; the first: {refused[0].diagnostics[0].message}" if refused else ""
    message = f"none of the first {looked} rows of data.train can be used{why}"
    kinds = {one.diagnostics[0].rule for one in refused}
    never_goes = "overlong-row" in kinds and encoder.asked.data.on_overlong == "error"
    if looked <= may_go and looked < len(rows) and not never_goes:
        return NotProvable(f"{message}; data.max_dropped_rows={may_go} lets them go")
    return Findings(Diagnostic("no-rows", message, parameter="data.train"))


class _Encoder:
    """Encodes single rows, and remembers what could not be."""

    def __init__(self, processor: Processor, run: Run, asked: Run) -> None:
        self.processor, self.run, self.asked = processor, run, asked
        self.looked_at = 0
        self.refused: list[Findings] = []
        self.too_long: list[str] = []

    def short_enough(self, row: Row) -> _Usable | None:
        """The row, or what is left of it when it is made short; None where it cannot be used."""
        first = self.encode(row)
        if isinstance(first, Findings):
            self.refused.append(first)
            return None
        if len(first.sample.input_ids) <= TOKENS:
            return first
        for less in _shortened(row):
            one = self.encode(less)
            if isinstance(one, _Usable) and len(one.sample.input_ids) <= TOKENS:
                return replace(one, shortened=True)
        self.too_long.append(row.id)
        return None

    def encode(self, row: Row, *, made: bool = False) -> _Usable | Findings:
        """A row, with as much more room than data.max_length as its images are larger here.

        Args:
            made: it is no row of the recipe, so that where such rows are refused or dropped, its
                length does not count.
        """
        data = self.run.data
        if made and data.on_overlong != "truncate":
            data = data.model_copy(update={"max_length": None})
        try:
            found = _sample(row, self.processor, data)
            if not found.truncated or not found.images:
                return _Usable(row, found)
        except Findings as findings:
            # Of the rules that speak of a length, and where there is something that can be larger
            # than it is asked.
            if (
                data.max_length is None
                or findings.diagnostics[0].parameter != "data.max_length"
                or not (row.images or row.videos)
            ):
                return findings
            if not (room := self._room(row)):
                return findings
        else:
            if not (room := self._room(row)):
                return _Usable(row, found)
        assert data.max_length is not None
        try:
            return _Usable(
                row,
                _sample(
                    row,
                    self.processor,
                    data.model_copy(update={"max_length": data.max_length + room}),
                ),
            )
        except Findings as findings:
            return findings

    def _room(self, row: Row) -> int:
        """The tokens that a row has more here than as it is asked."""
        unlimited = self.run.data.model_copy(update={"max_length": None})
        here, there = (
            len(_sample(row, one, unlimited).input_ids) for one in (self.processor, self._as_asked)
        )
        return max(0, here - there)

    @cached_property
    def _as_asked(self) -> Processor:
        """With images and videos that are as small as is asked;

        not larger than here, for that costs time and changes nothing.
        """
        asked, here = self.asked.data, self.run.data
        image, video = (
            bounds.model_copy(update={"max_pixels": min(bounds.max_pixels or most, most)})
            for bounds, most in (
                (asked.image, here.image.max_pixels or 0),
                (asked.video, here.video.max_pixels or 0),
            )
        )
        assert isinstance(image, Image)
        assert isinstance(video, VideoBounds)
        video = video.model_copy(update={"max_frames": here.video.max_frames})
        return replace(
            new_processor(self.asked.model, image, (), video),
            tokenizer=self.processor.tokenizer,
            ids=self.processor.ids,
        )


def _sample(row: Row, processor: Processor, data: Any) -> Sample:
    return EncodedRows(Rows((), [InMemoryRows((row,))]), processor, data).sample(0)


def _shortened(row: Row) -> Iterator[Row]:
    """Less and less of a row:

    first its last turns alone, then the beginning of each text and the first images and videos of
    these.
    """
    last = _last_turns(row)
    if len(last.messages) < len(row.messages):
        yield last
    for characters, visuals in _LEFT:
        yield _cut(last, characters, visuals)


def _last_turns(row: Row) -> Row:
    """The system prompt, and from the last question on that has an answer to be learnt."""
    answers = [*row.supervised()]
    questions = [
        place
        for place, message in enumerate(row.messages)
        if message["role"] == "user" and answers and place < answers[-1]
    ]
    begin = questions[-1] if questions else 0
    kept = [
        place
        for place, message in enumerate(row.messages)
        if place >= begin or message["role"] == "system"
    ]
    return _with(row, {place: row.messages[place] for place in kept})


def _cut(row: Row, characters: int, visuals: int) -> Row:
    """A row with texts of at most so many characters, and so many images and videos."""
    left = visuals
    messages: dict[int, Mapping[str, Any]] = {}
    for place, message in enumerate(row.messages):
        content = message.get("content")
        if isinstance(content, str):
            content = _begin(content, characters)
        elif isinstance(content, list):
            parts = []
            for part in content:
                shows = part.get("type") in ("image", "video")
                if shows and not left:
                    continue
                left -= shows
                parts.append(
                    {**part, "text": _begin(part["text"], characters)}
                    if part.get("type") == "text"
                    else part
                )
            content = parts
        messages[place] = {**message, "content": content}
    return _with(row, messages)


def _begin(text: str, characters: int) -> str:
    return (
        text
        if len(text) <= characters
        else text[:characters]
        if text[:characters].strip()
        else text.strip()[:characters]
    )


def _with(row: Row, messages: Mapping[int, Mapping[str, Any]]) -> Row:
    """A row of these of its messages, by their places, and of the images and videos that they show
    still: of each message the first.
    """
    given = {"image": iter(row.images), "video": iter(row.videos)}
    kept: dict[str, list[Any]] = {"image": [], "video": []}
    for place, message in enumerate(row.messages):
        for kind, entries in given.items():
            shown = [next(entries, None) for _ in range(_shows(message, kind))]
            kept[kind] += shown[: _shows(messages[place], kind)] if place in messages else []
    return replace(row, messages=[*messages.values()], images=kept["image"], videos=kept["video"])


def _shows(message: Mapping[str, Any], kind: str) -> int:
    content = message.get("content")
    return sum(part.get("type") == kind for part in content) if isinstance(content, list) else 0


def _made(rows: Sequence[Row]) -> Iterator[Row]:
    """Two chats as one, so that lengths differ and a row has several images (a single one twice, so
    that there are two rows); and one without its images, if each has some.
    """
    second = rows[1 % len(rows)]
    if rows[0].tools == second.tools:
        later = [message for message in second.messages if message["role"] != "system"]
        yield replace(
            rows[0],
            id=f"{rows[0].id} with {second.id if len(rows) > 1 else 'itself'}",
            messages=[*rows[0].messages, *later],
            images=[*rows[0].images, *second.images],
            videos=[*rows[0].videos, *second.videos],
        )
    if all(row.images or row.videos for row in rows):
        plain = [
            {**message, "content": " ".join(texts_of(message))} for message in rows[0].messages
        ]
        yield replace(
            rows[0], id=f"{rows[0].id} without its images", messages=plain, images=[], videos=[]
        )
