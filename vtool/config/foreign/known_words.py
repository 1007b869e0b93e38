"""The settings that each release of another trainer knows.

The installed release is judged by, or else the newest of the tables in `releases/`, which
`scripts/record_trainers.py` makes from the trainers' wheels.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from vtool.config.foreign.package_fields import PACKAGES, read_package

TABLES = Path(__file__).with_name("releases")


@dataclass(frozen=True, slots=True)
class KnownWords:
    """The settings of a trainer, in the release that is judged by, and in others."""

    release: str
    beside: str | None
    """The release of transformers that its settings are of, too."""
    fields: Mapping[str, Any]
    """By setting: its default; None where it has no plain one."""
    history: Mapping[str, tuple[str, ...]]
    """By setting: the releases of the table that know it."""
    plugins: Mapping[str, frozenset[str]]
    """By plug-in: the settings that it alone reads."""
    open: tuple[str, ...]
    """Groups that take any name."""
    choices: Mapping[str, Mapping[str, Any]]
    """By choice of Hydra's, `engine=fsdp`: its settings with their defaults."""
    takes: Mapping[str, str]
    """By setting: what it takes, as `ReadFields.takes` says it; any text where it is not in it."""

    def other_releases(self, word: str) -> str | None:
        """Return which releases know a setting that this one does not; None where none does."""
        releases = self.history.get(word)
        if not releases:
            return None
        last, first = releases[-1], releases[0]
        newer = tuple(map(_number, last.split("."))) > tuple(map(_number, self.release.split(".")))
        return f"known since {first}" if newer else f"known until {last}"


@cache
def known_words(trainer: str) -> KnownWords:
    """Return the settings of a trainer, by the name that `--from` takes."""
    table = json.loads((TABLES / f"{trainer}.json").read_text("utf-8"))
    release, beside = list(table["releases"].items())[-1]
    fields, open_ = table["fields"], tuple(table.get("open", ()))
    choices = table.get("choices", {})
    takes = {word: kind for kind, words in table["takes"].items() for word in words.split()}
    plugins = {name: tuple(words.split()) for name, words in table.get("plugins", {}).items()}
    installed = _installed(trainer)
    if installed and tuple(installed) != (release, beside)[: len(installed)]:
        read = read_package(trainer, list(installed.values()))
        if read.fields:
            release, beside = (*installed, None)[:2]
            fields, plugins, open_ = read.fields, dict(read.plugins), read.open
            choices, takes = read.choices, dict(read.takes)
    history = dict.fromkeys(table["fields"], tuple(table["releases"])) | {
        word: tuple(releases.split())
        for releases, words in table["known"].items()
        for word in words.split()
    }
    return KnownWords(
        release or "",
        beside,
        fields,
        history,
        {name: frozenset(words) for name, words in plugins.items()},
        open_,
        choices,
        takes,
    )


def _installed(trainer: str) -> dict[str, Path]:
    """Return the installed releases that a trainer's settings are of, each with its folder."""
    try:
        found = [distribution(name) for name in PACKAGES[trainer].distributions]
    except PackageNotFoundError:
        return {}
    return {one.version: Path(str(one.locate_file(""))) for one in found}


def _number(part: str) -> int:
    digits = "".join(letter for letter in part if letter.isdigit())
    return int(digits) if digits else 0
