"""A row as the model reads it: its tokens as text, in pieces that are supervised or not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.models.processor import Processor


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, end) that follow each other and are all supervised, or all not."""

    start: int
    end: int
    supervised: bool
    text: str
    rest: str = ""
    """The end of the text, where its middle is left out."""
    left_out: int = 0
    """Tokens of that middle."""
    visual: bool = False
    """If these are an image's or a video's: `text` is their token's name."""


def pieces(sample: Sample, processor: Processor, most: int | None = None) -> Iterator[Piece]:
    """Yield the pieces of a sample, of which one of an image or a video has no text inside.

    Args:
        most: the most tokens of a piece that become text, two thirds of them at its beginning.
    """
    ids, labels = sample.input_ids.tolist(), sample.labels.tolist()
    visual, tokenizer = (processor.ids.image, processor.ids.video), processor.tokenizer

    def kind(place: int) -> tuple[bool, int | None]:
        return labels[place] != IGNORED, ids[place] if ids[place] in visual else None

    def decoded(run: list[int]) -> str:
        return str(tokenizer.decode(run, clean_up_tokenization_spaces=False))

    start = 0
    for (supervised, token), places in groupby(range(len(ids)), key=kind):
        end = start + sum(1 for _ in places)
        run = ids[start:end]
        if token is not None:
            name = str(tokenizer.convert_ids_to_tokens(token))
            yield Piece(start, end, supervised, name, visual=True)
        elif most is None or len(run) <= most:
            yield Piece(start, end, supervised, decoded(run))
        else:
            tail = most // 3
            head = most - tail
            rest = decoded(run[len(run) - tail :])
            left_out = len(run) - most
            yield Piece(start, end, supervised, decoded(run[:head]), rest, left_out)
        start = end


def render_example(sample: Sample, processor: Processor) -> str:
    """Return a sample's tokens as text, with what is supervised between ⟦ and ⟧.

    A run of image or video tokens is written once, with its length.
    """
    return "".join(_marked(sample, processor))


def _marked(sample: Sample, processor: Processor) -> Iterator[str]:
    before = False
    for piece in pieces(sample, processor):
        if piece.supervised != before:
            yield "⟦" if piece.supervised else "⟧"
        yield f"{piece.text}×{piece.end - piece.start}" if piece.visual else piece.text
        before = piece.supervised
    if before:
        yield "⟧"
