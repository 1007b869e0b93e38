"""JSON in answers, which models put between fences."""

import json
import re
from typing import Any

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
ABSENT = object()
"""The value of a text that is no JSON; `null` is a value of its own."""


def parsed(text: str) -> Any:
    """Return the value that a text is the JSON of, with or without a fence, else `ABSENT`."""
    fenced = _FENCED.fullmatch(text)
    try:
        return json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        return ABSENT
