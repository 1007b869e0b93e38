"""A JSON parser that reports keys which an object has twice."""

import json
import math
import re
from typing import Any

_MOST_VALUES = 1_000_000
"""Objects, lists and entries that one file may have.

A header of 100,000 tensors has nine tenths of them. Parsed, they take up to 300 MiB.
"""


JSON_DEEPEST = 127
"""Levels of lists and objects that safetensors' own parser follows."""
_ODD_INTEGERS = re.compile(rb"-0|\d{300}")
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_strict_json(text: bytes, *, as_safetensors: bool = False) -> tuple[Any, list[str]]:
    """Return the value, and the keys that an object has twice.

    Of these the last value counts, as with every reader.

    Args:
        as_safetensors: refuse what Python's parser takes, and that of safetensors (serde_json)
            does not.

    Raises:
        ValueError: it is not JSON in UTF-8, nested too deeply, or of more values than any
            checkpoint has.
    """
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > _MOST_VALUES:
        raise ValueError(f"{values:,} values, which no checkpoint has in one file")
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            repeated.extend(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return found

    hooks: dict[str, Any] = {}
    if as_safetensors:
        hooks = {"parse_float": _number, "parse_constant": _constant}
        if _ODD_INTEGERS.search(text):
            hooks["parse_int"] = _integer
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, **hooks)
        if as_safetensors and _HALVES.search(text):
            json.dumps([value, repeated], ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half of a character (a lone surrogate) is escaped in it") from error
    return value, list(dict.fromkeys(repeated))


def depth(value: Any, most: int = JSON_DEEPEST) -> int:
    """Return how many levels of lists and objects a value has, at most one more than `most`."""
    level, levels = [value], 0
    while levels <= most and (level := [each for each in level if isinstance(each, dict | list)]):
        levels += 1
        level = [
            below for each in level for below in (each.values() if isinstance(each, dict) else each)
        ]
    return levels


def _number(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value


def _integer(text: str) -> float:
    # as safetensors has them: -0 and what 64 bits do not hold are no integers
    return _number(text) if text == "-0" or len(text) > 20 else int(text)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
