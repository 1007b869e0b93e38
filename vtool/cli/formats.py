"""The `--format` of every command that checks something."""

from enum import StrEnum


class OutputFormat(StrEnum):
    """The output format of findings: for reading, one line each, or for programs and services."""

    full = "full"
    concise = "concise"
    json = "json"
    github = "github"
    sarif = "sarif"
