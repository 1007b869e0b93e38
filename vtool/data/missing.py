"""Values that stand for a missing one, as people's tools write them."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from vtool.diagnostics import Findings

_NONE = {
    "None": "Python",
    "nan": "pandas",
    "NaN": "pandas",
    "NaT": "pandas",
    "<NA>": "pandas",
    "null": "JSON",
    "NULL": "a database",
    "undefined": "JavaScript",
}
_NO_NAMES = frozenset({"none", "null", "nan", "nil", "na", "n/a", "#n/a", "-", "--", "undefined"})
"""Words for no file, in small letters; some may be a text, and none is a picture's name."""
_EMPTY_JSON = ("[]", "{}", "null")
"""Texts that are JSON of nothing: what has tools may be JSON as text."""
_LISTS = ("image", "images", "video", "videos")
_OPTIONAL = frozenset({*_LISTS, "tools", "history", "enable_thinking", "objects"})
"""Keys of a row that need not be there, and that have no text that could be the word None."""
_MAY_BE_NONE = ("input", "system")
"""Keys of texts that need not be there."""
WRITE_NULL = "write null, or leave the key out"


def is_nan(value: object) -> bool:
    """Return whether a value is NaN, of Python's or numpy's."""
    return isinstance(value, float) and math.isnan(value)


def is_empty(value: Any) -> bool:
    """Return whether a value says nothing: null, an empty text, list or object, or one of nulls."""
    if value is None or value in ("", [], {}):
        return True
    return isinstance(value, dict) and all(each is None for each in value.values())


def is_empty_pair(value: Any) -> bool:
    """Return whether an earlier question and its answer are both missing, or not there."""
    both = value if isinstance(value, list | tuple) else [value]
    return all(is_empty(each) or is_nan(each) for each in both)


def is_nothing(value: Any) -> bool:
    """Return whether a value that is no text says nothing, be it written as JSON in a text."""
    return is_empty(value) or (isinstance(value, str) and value.strip() in ("", *_EMPTY_JSON))


def missing_in_words(value: object) -> str | None:
    """Return words for a value that stands for a missing one; None for any other value."""
    if is_nan(value):
        return "NaN, which pandas writes for a missing value"
    if not isinstance(value, str) or len(value) > 40:
        return None
    bare = value.strip()
    writer = _NONE.get(bare)
    return f'the text "{bare}", which {writer} writes for a missing value' if writer else None


def no_name_in_words(value: object) -> str | None:
    """Return words for a name of a picture or a video that stands for none."""
    if words := missing_in_words(value):
        return words
    bare = value.strip() if isinstance(value, str) else ""
    return f'the text "{bare}", which is no file\'s name' if bare.casefold() in _NO_NAMES else None


def is_missing_text(role: str, content: str, *, first: bool) -> bool:
    """Return whether the whole text of a message is a word for a missing value, and nobody's.

    An answer may well be `None`, and what a user says to a question.
    """
    bare = content.strip()
    if role == "assistant":
        return bare in ("nan", "NaT", "<NA>")
    written_by = _NONE.get(bare)
    return written_by == "pandas" or (written_by is not None and (first or role == "system"))


def _is_no_entry(value: Any) -> bool:
    """Return whether an entry of a list says nothing; one of no frames is a finding of videos."""
    return is_empty(value) and not isinstance(value, list)


def present(
    record: Mapping[str, Any], read: Collection[str], malformed: Callable[..., Findings]
) -> Mapping[str, Any]:
    """Return a row without the keys that say nothing, where leaving them out is safe.

    Raises:
        Findings: `malformed-messages`, for a key that is read and whose value stands for a missing
            one.
    """
    if not any(value.__class__ is float or key in _OPTIONAL for key, value in record.items()):
        return record
    kept = {}
    for key, value in record.items():
        optional, of_list = key in _OPTIONAL, key in _LISTS and isinstance(value, list)
        if optional and (is_nothing(value) or (of_list and all(map(_is_no_entry, value)))):
            continue
        if key not in read:
            if not is_nan(value):
                kept[key] = value
            continue
        in_words = no_name_in_words if key in _LISTS else missing_in_words
        if (optional or is_nan(value)) and (words := in_words(value)):
            instead = (
                WRITE_NULL if optional or key in _MAY_BE_NONE else "write it, or remove the row"
            )
            raise malformed(f'"{key}" is {words}: {instead}')
        for number, each in enumerate(value if of_list else (), 1):
            if words := "empty" if _is_no_entry(each) else no_name_in_words(each):
                raise malformed(f'entry {number} of "{key}" is {words}: leave it out')
        kept[key] = value
    return kept
