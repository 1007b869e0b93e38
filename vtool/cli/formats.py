"""The `--format` of every checking command."""

from enum import StrEnum


class Format(StrEnum):
    """How findings are printed."""

    full = "full"
    concise = "concise"
    json = "json"
