"""JSON in which a key that is there twice is not lost."""

import json
from typing import Any


def parse(text: bytes) -> tuple[Any, list[str]]:
    """The value, and the keys that an object has twice (of which the last value counts, as with every reader).

    Raises:
        ValueError: it is not JSON in UTF-8, or nested too deeply.
    """
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            repeated.extend(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return found

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=pairs), list(dict.fromkeys(repeated))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
