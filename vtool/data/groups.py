"""Groups of rows: what a row is about, by which rows are held back (`vtool.data.splits`)."""

import base64
import json
from contextlib import suppress

import xxhash

from vtool.data.row import Row, texts_of


def group_of_value(value: object) -> int:
    """Return the group of rows that have a value under the key that the recipe names."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers, of which some are missing, has 1.0 for 1
    # dates, decimals and bytes are values of Arrow's, not of JSON
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def group_of_text(row: Row) -> int:
    """Return the group of a row without pictures and videos: its first question's."""
    asked = next((each for each in row.messages if each["role"] == "user"), row.messages[0])
    text = "\n".join(texts_of(asked))
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def group_of_media(given: object, content: bytes) -> int:
    """Return the group of a row by its first picture or video.

    Args:
        given: what the row has: a path, a `data:` address, or a picture in memory.
        content: its bytes, as they are read.
    """
    if isinstance(given, str) and given.startswith("data:"):
        with suppress(ValueError):  # the picture inside, so that it is the one that a file has
            content = base64.b64decode(given.partition(",")[2])
    return xxhash.xxh3_64_intdigest(content)
