"""The names of subjects: a class of a framework, a function of a file, a folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from vtool.config.schema.load_check import ClassFramework
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

CLASS_FRAMEWORKS = get_args(ClassFramework)
_HOSTS = (*CLASS_FRAMEWORKS, "python")
FOLDER_HOST = "folder"


@dataclass(frozen=True, slots=True)
class NamedSubject:
    """A subject: `vllm:BertModel`, `python:FILE.py:factory`, or a folder."""

    host: str
    """`vllm`, `transformers`, `sglang`, `python` or `folder`."""
    name: str
    """The class, the path and the function, or the path of the folder."""
    typed: str | None = None
    """The user's own words, where they are not `host:name`."""

    def __str__(self) -> str:
        return self.typed or f"{self.host}:{self.name}"


def parse_subject(text: str, typed: str | None = None) -> NamedSubject:
    """Parse the name of a subject.

    Args:
        typed: the user's own words, where `text` was made from them: a recipe.

    Raises:
        Findings: `unknown-subject`, where it is none.
    """
    host, colon, name = text.partition(":")
    if host not in _HOSTS and is_path(text):
        return NamedSubject(FOLDER_HOST, text, typed or text)
    if not colon or not name or host not in _HOSTS:
        likely = [f"{guess}:{name}" for guess in near(host, _HOSTS)] if colon and name else []
        raise no_subject(
            f"`{text}` is no subject: neither a folder, nor a recipe, nor one of"
            f" {', '.join(f'{known}:…' for known in _HOSTS)}",
            did_you_mean(likely),
        )
    if host == "python":
        file, colon, function = name.rpartition(":")
        if not colon or not function.isidentifier():
            raise no_subject(
                f"`{text}` does not say which function makes the object",
                f"write python:{file if colon else name}:factory",
            )
        if not Path(file).is_file():
            raise no_subject(f"`{text}`: there is no file {file}", "give the path of a Python file")
    return NamedSubject(host, name, typed)


def no_subject(message: str, help: str | None = None) -> Findings:
    """Return the error of a name, or of none, that leaves nothing to check."""
    return Findings(Diagnostic("unknown-subject", message, help), fatal=True)


def is_path(text: str) -> bool:
    """Return True if the text is meant for a folder or a file, which may be missing."""
    return (
        "/" in text or text in (".", "..") or text.endswith(".safetensors") or os.path.lexists(text)
    )


def unknown_name(subject: NamedSubject, known: Sequence[str]) -> Diagnostic:
    """Return the finding about a class that the framework does not have."""
    return Diagnostic(
        "unknown-subject",
        f"{subject.host} has no class `{subject.name}` among the {len(known)} that it has"
        " registered",
        did_you_mean([f"{subject.host}:{name}" for name in near(subject.name, known)])
        or f"`vtool load-check --all {subject.host}` checks them all",
    )


def fits_nothing(host: str, pattern: str, known: Sequence[str]) -> Findings:
    """Return the error where `subjects.match` leaves nothing to check."""
    return no_subject(
        f"none of the {len(known)} classes that {host} has registered fits subjects.match"
        f" `{pattern}`",
        did_you_mean([f"subjects.match={name}" for name in near(pattern.strip("*"), known)])
        or "it is a pattern such as 'Qwen*', and case counts",
    )
