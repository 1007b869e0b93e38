"""Asked against read back: what a live object has of a setting, what the recipe asks of it, and the
comparison of both.

Whoever owns an object says what it sees in it (`Seen`), without being told what was asked;
`vtool.config.wanted` says what is asked of which object, without looking at one. Torch-free: here
both are plain values.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.config.origins import Origins
from vtool.diagnostics import Diagnostic

# Settings whose difference has a rule of its own: on another machine, or with --live, they cannot
# be told.
DEVICE = ("device.kind", "engine.cpu_offload")


@dataclass(frozen=True, slots=True)
class Observed:
    """What a live object has of a setting."""

    name: str
    """The setting, dotted;

    or what of it is to be seen in this object, as `Wanted` is filed under.
    """
    value: Any
    """As a recipe writes it."""
    where: str
    """The object, for people: `AdamW, group 1`."""
    of: tuple[Any, ...] = ()
    """What in the model it is about, where more than one thing is asked under this name:

    given to a `Wanted` that is a function.
    """


@dataclass(frozen=True, slots=True)
class Expected:
    """What is asked of a live object."""

    setting: str
    """The setting that says it, dotted."""
    value: Any
    what: str = ""
    """What is to have this value, where it is not the setting itself: `trained weights in `."""


Asked = Expected | Callable[..., Expected | None]
"""What is asked under a name;

of a name of which there are several, a function of `Seen.of` (None: nothing).
"""


def compare(
    wanted: Mapping[str, Asked], seen: Iterable[Observed], origins: Origins | None = None
) -> list[Diagnostic]:
    """Findings `setting-not-arrived` and `device-not-used`: one for each setting and each value
    that is there instead.

    What nothing is asked of is let be; what nothing is seen of, `unseen` tells.
    """
    found: dict[tuple[str, str, str], list[Observed]] = {}
    for one in seen:
        asked = _asked(wanted, one)
        if asked is not None and not same(asked.value, one.value):
            found.setdefault(
                (asked.setting, asked.what + shown(asked.value), shown(one.value)), []
            ).append(one)
    return [_finding(*key, places, origins) for key, places in found.items()]


def unseen(wanted: Mapping[str, Asked], seen: Iterable[Observed]) -> list[str]:
    """The names that something is asked of, and nothing was seen of:

    those of settings that speak for themselves alone.
    """
    names = {one.name for one in seen}
    return [
        name
        for name, asked in wanted.items()
        if name not in names and (callable(asked) or asked.setting == name)
    ]


def settings_seen(wanted: Mapping[str, Asked], seen: Iterable[Observed]) -> set[str]:
    """The settings, dotted, of which something is asked that was seen;

    of entries of a list, the list's name.
    """
    found = {asked.setting for one in seen if (asked := _asked(wanted, one)) is not None}
    return {".".join(part for part in name.split(".") if not part.isdigit()) for name in found}


def same(asked: Any, value: Any) -> bool:
    """Whether two values are one:

    true is not 1 (pytorch#149750), a list may be a tuple, and a product of numbers may be rounded.
    """
    if isinstance(asked, bool) or isinstance(value, bool):
        return asked is value
    if isinstance(asked, int | float) and isinstance(value, int | float):
        return math.isclose(asked, value, rel_tol=1e-9)
    if isinstance(asked, Sequence) and isinstance(value, Sequence) and not isinstance(asked, str):
        return len(asked) == len(value) and all(
            same(one, other) for one, other in zip(asked, value, strict=True)
        )
    return bool(asked == value)


def shown(value: Any) -> str:
    """A value as a recipe writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case str():
            return value
        case Sequence():
            return f"[{', '.join(map(shown, value))}]"
        case _:
            return str(value)


def _asked(wanted: Mapping[str, Asked], seen: Observed) -> Expected | None:
    asked = wanted.get(seen.name)
    return asked(*seen.of) if callable(asked) else asked


def _finding(
    setting: str, asked: str, there: str, places: Sequence[Observed], origins: Origins | None
) -> Diagnostic:
    names = list(dict.fromkeys(place.where for place in places))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    rule = "device-not-used" if setting in DEVICE else "setting-not-arrived"
    message = f"`{setting}` asks for {asked}, but {names[0]}{more} has {there}"
    origin = origins.near(setting) if origins else None
    return Diagnostic(rule, message, parameter=setting, origin=origin, expected=asked, seen=there)
