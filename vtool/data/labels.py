"""Checks of labels against the row's own words, and of image tokens against patches."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from vtool.data.chat import IGNORED, Turn
from vtool.data.encode import Sample
from vtool.data.row import Row, shown_value, texts_of
from vtool.data.tokens import texts_of_tokens
from vtool.data.visuals import PIXELS
from vtool.diagnostics import Diagnostic
from vtool.models.processor import Processor

RULE = "labels-differ-from-answers"
# templates put lines between these and what is next to them: <think>
_TAG = re.compile(r" ?(<[^<> ]+>) ?")


def decode_labels(samples: Sequence[Sample], processor: Processor) -> list[str]:
    """Return the text of each row's labels, as the tokenizer decodes them."""
    supervised = [one.labels.numpy()[one.labels.numpy() != IGNORED].tolist() for one in samples]
    return texts_of_tokens(processor.tokenizer, supervised)


def check_labels(
    sample: Sample, processor: Processor, row: Row, decoded: str | None = None
) -> Diagnostic | None:
    """Check the labels in two independent ways.

    They are decoded and compared with the supervised turns, and these with the row's own words:
    the template wrote the turns that the labels were made from, so what it leaves out is missing
    in both.

    Args:
        decoded: the text of the labels, where it is there already.
    """
    if decoded is None:
        (decoded,) = decode_labels([sample], processor)
    wanted = "".join(turn.text for turn in sample.turns)
    if not same_text(decoded, wanted, truncated=sample.truncated):
        message = f"{row.id}: the labels are not the answers"
        return Diagnostic(
            RULE, message, origin=row.origin, expected=repr(wanted), seen=repr(decoded)
        )
    places = [turn.message for turn in sample.turns]
    assert places == list(row.supervised()), "each supervised turn has its labels"
    for turn in sample.turns:
        texts = texts_of(row.messages[turn.message])
        if not _contains(turn, texts):
            expected, seen = "".join(texts), turn.text
            message = (
                f"{row.id}: turn {turn.message + 1} says {shown_value(expected)}, but its labels"
                f" are {shown_value(seen)}"
            )
            help = (
                "the chat template does not write all that the turn says: use a template that does"
            )
            return Diagnostic(
                RULE,
                message,
                help=help,
                origin=row.origin,
                expected=repr(expected),
                seen=repr(seen),
            )
    return None


def same_text(decoded: str, expected: str, *, truncated: bool) -> bool:
    """Return whether decoded tokens are the expected text, or its beginning if they are truncated.

    Tokenizers may normalize (Qwen's to NFC): that is not a difference in what was said. Letters and
    marks are compared one by one (NFD), for a cut may fall between them; where it falls inside a
    character's bytes, these are decoded as U+FFFD.
    """
    if decoded == expected:
        return True
    decoded, expected = (unicodedata.normalize("NFD", text) for text in (decoded, expected))
    return decoded == expected or (truncated and expected.startswith(decoded.rstrip("\ufffd")))


def check_features(sample: Sample, processor: Processor, row: Row) -> Diagnostic | None:
    """Check the image and video tokens against the patches that the vision tower is given."""
    if processor.whole is not None:  # it has written both, and the model's forward counts them
        return None
    ids, visuals = processor.ids, sample.visuals
    given = sample.input_ids.numpy()  # many times faster than torch on a row
    tokens = int(np.count_nonzero((given == ids.image) | (given == ids.video)))
    patches = sum(len(pixels) for name, pixels in visuals.inputs.items() if name in PIXELS)
    features = patches / processor.image_processor.merge_size**2
    if tokens == features:
        return None
    message = (
        f"{row.id}: there are {tokens} image and video tokens, and the vision tower makes"
        f" {features:g} features of what the row shows"
    )
    return Diagnostic(
        "image-token-mismatch",
        message,
        origin=row.origin,
        expected=f"{features:g}",
        seen=str(tokens),
    )


def _contains(turn: Turn, texts: Sequence[str]) -> bool:
    """Return whether a turn contains the texts, in order.

    Space may differ, as templates strip it; `<think>` may be in the generation prompt.
    """
    if len(texts) == 1 and texts[0] in turn.text:  # most rows: word for word
        return True
    rest, opening = _plain(turn.text), _plain(turn.opening)
    for number, text in enumerate(map(_plain, texts)):
        found, part = rest.find(text), text
        if found < 0 and number == 0:
            ends = (end for end in range(len(text) - 1, 0, -1) if opening.endswith(text[:end]))
            part = text[next(ends, 0) :].strip()
            found = rest.find(part)
        if found < 0:
            return False
        rest = rest[found + len(part) :]
    return True


def _plain(text: str) -> str:
    return _TAG.sub(r"\1", " ".join(unicodedata.normalize("NFC", text).split()))
