"""A JSON parser that reports keys which an object has twice."""

import json
from typing import Any

MOST_VALUES = 1_000_000
"""Objects, lists and entries that one file may have.

A header of 100,000 tensors has nine tenths of them. Parsed, they take up to 300 MiB.
"""


def parse(text: bytes) -> tuple[Any, list[str]]:
    """Return the value, and the keys that an object has twice.

    Of these the last value counts, as with every reader.

    Raises:
        ValueError: it is not JSON in UTF-8, nested too deeply, or of more values than any
            checkpoint has.
    """
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > MOST_VALUES:
        raise ValueError(f"{values:,} values, which no checkpoint has in one file")
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            repeated.extend(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return found

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=pairs), list(
            dict.fromkeys(repeated)
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
