"""The `--format` of every checking command."""

from enum import StrEnum


class Format(StrEnum):
    """How findings are printed: for reading, a line each, or for programs and services."""

    full = "full"
    concise = "concise"
    json = "json"
    github = "github"
    sarif = "sarif"
