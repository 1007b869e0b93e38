"""Traits of one row's text and turns, which are counted and reported for a whole split."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vtool.data.chat import Turn
from vtool.data.outside import has_files_outside
from vtool.data.row import Row, texts_of
from vtool.models.chat_template import THOUGHT_KEYS, thought_of, with_thought_as

# All ways begin with one character: a pattern is then searched for at these places alone.
_OF_OTHER_MODELS = re.compile(
    r"<(?:\|(?:im_start|im_end|endoftext|eot_id|eom_id|begin_of_text|end_of_text|start_header_id"
    r"|end_header_id|user|assistant|system|end)\|>|(?:start|end)_of_turn>|</?SYS>>|bos>|eos>"
    r"|｜(?:User|Assistant|begin▁of▁sentence|end▁of▁sentence)｜>|/s>\s*(?:USER|User|Human):)"
)
# With the marks that may be struck text too: most text with markup has none of all these.
_MAY_BE = re.compile(_OF_OTHER_MODELS.pattern[:-1] + "|/?s>)")
_CLOSES = re.compile(r"^\s*</think>\s*$", re.MULTILINE)
_MARKS_OF_A_THOUGHT = re.compile(r"</?think>")
# UTF-8 that was read as cp1252: `Ã©` for `é`, `â€™` for `’`.
_DOUBLY_ENCODED = re.compile("[ÂÃ][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[\x80-\xbf™œ“”˜¢¦]")

FRAMES_WITHOUT_RATE = "frames-without-rate"


def _late_system(row: Row, *_: object) -> bool:
    return any(message["role"] == "system" for message in row.messages[1:])


def _two_user_turns(row: Row, *_: object) -> bool:
    roles = [message["role"] for message in row.messages]
    return any(pair == ("user", "user") for pair in pairwise(roles))


def _has_marks_of_others(text: str) -> bool:
    """Check for control tokens of other models; `<s>` and `</s>` are struck text in HTML too."""
    if "INST]" in text and ("[INST]" in text or "[/INST]" in text):
        return True
    if "<" not in text or not _MAY_BE.search(text):
        return False
    if _OF_OTHER_MODELS.search(text):
        return True
    bare = text.strip()
    at_an_end = bare.startswith("<s>") or bare.endswith("</s>")
    return at_an_end and bare.count("<s>") != bare.count("</s>")


def _is_doubly_encoded(text: str) -> bool:
    """Check for several signs of it: one alone may be meant."""
    if text.isascii() or not ("Ã" in text or "Â" in text or "â€" in text):
        return False
    return len(_DOUBLY_ENCODED.findall(text)) > 1


@dataclass(frozen=True, slots=True)
class Trait:
    """A trait that a row's text may have, with the rule that reports it."""

    rule: str
    words: str
    has: Callable[[Row, Sequence[str], Sequence[Turn]], bool]
    """A check of a row, which is given its texts and its supervised turns too."""


def _teaches_more(row: Row, _: object, turns: Sequence[Turn]) -> bool:
    """Check for text of a supervised turn that is neither its answer or thought nor its end."""
    return any(map(_has_more, turns, (row.messages[turn.message] for turn in turns)))


def _has_more(turn: Turn, message: Mapping[str, Any]) -> bool:
    own = with_thought_as(message, THOUGHT_KEYS[0])
    said = "".join(texts_of(own)).strip()
    text = turn.text.removesuffix(turn.end)
    # calls are written in each template's own words, and labels are held against the answer's
    if message.get("tool_calls") or not said or said not in text:
        return False
    before, _, after = text.rpartition(said)
    thought = thought_of(message).strip()
    if thought in before:
        before = before.replace(thought, "", 1)
        before = _MARKS_OF_A_THOUGHT.sub("", before) if thought else before
    return bool((before + after).strip())


def _has_half_a_thought(row: Row, _: object, turns: Sequence[Turn]) -> bool:
    """Check for a thought that is never closed, or closed and never opened.

    Where the template writes thoughts, a row with the first is refused before.
    """
    for turn in turns:
        said = "".join(texts_of(row.messages[turn.message])).lstrip()
        opened = "<think>" in turn.opening + turn.text  # the template may write it
        if "</think>" not in said and said.startswith("<think>"):
            return True
        if not opened and _CLOSES.search(said):
            return True
    return False


TEXT_TRAITS = (
    Trait(
        "more-than-answer-supervised",
        "with answers around which the chat template writes more, which is learnt (an empty"
        " thought, as never to think, or a role)",
        _teaches_more,
    ),
    Trait(
        "damaged-text",
        "with U+FFFD, which stands for characters that were lost",
        lambda _, texts, __: any("\ufffd" in text for text in texts),
    ),
    Trait(
        "damaged-text",
        "with text that was encoded twice (such as Ã© for é)",
        lambda _, texts, __: any(map(_is_doubly_encoded, texts)),
    ),
    Trait(
        "tokens-of-other-models",
        "with control tokens of other models' templates, which are plain text here",
        lambda _, texts, __: any(map(_has_marks_of_others, texts)),
    ),
    Trait("unusual-turns", "with a system turn that is not the first", _late_system),
    Trait("unusual-turns", "with two user turns in a row", _two_user_turns),
    Trait(
        "files-outside-folder",
        "with images or videos outside of the folder of their rows file",
        lambda row, *_: has_files_outside(row),
    ),
    Trait(
        "half-a-thought",
        "with an answer that has one of <think> and </think>: its thought has no other end",
        _has_half_a_thought,
    ),
    Trait(
        FRAMES_WITHOUT_RATE,
        "with a list of frames and no `fps`",
        lambda row, *_: any(
            not isinstance(one.source, str) and one.fps is None for one in row.videos
        ),
    ),
)
"""Traits that are counted, each a bit by its place here."""


def traits_of(row: Row, turns: Sequence[Turn]) -> int:
    """Return the traits that a row has, as bits by their places in `TEXT_TRAITS`.

    Args:
        turns: its supervised turns, as the chat template writes them.
    """
    texts = [*row.texts()]
    return sum(
        1 << place for place, trait in enumerate(TEXT_TRAITS) if trait.has(row, texts, turns)
    )
