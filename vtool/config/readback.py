"""Settings read back from live objects: expected values, observed values, and their comparison.

The owner of an object says what it observes in it, without being given a setting;
`vtool.config.expected` says what is expected, without an object. Torch-free: both are plain values.
They are compared in every run (`training/observe_run.py`), by `validate-config --live`
(`verification/live.py`) and by `vtool.compare` (`verification/compare.py`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.config.origins import Origins
from vtool.diagnostics import Diagnostic

# Settings whose difference has a rule of its own: on another machine, or with --live, they
# cannot be checked.
_DEVICE = ("device.kind", "engine.cpu_offload")


@dataclass(frozen=True, slots=True)
class Observed:
    """A setting's value in a live object."""

    name: str
    """The setting, dotted, or another key of `expected_settings`."""
    value: Any
    """The value, as a recipe writes it."""
    where: str
    """The object, for people: `AdamW, group 1`."""
    of: tuple[Any, ...] = ()
    """Arguments for an expectation that is a function: what in the model it is about."""


def observe_values(values: Mapping[str, Any], where: str) -> Iterator[Observed]:
    """Yield the settings that one object has, by name."""
    return (Observed(name, value, where) for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Expected:
    """The value that a recipe expects in a live object."""

    setting: str
    """The setting that says it, dotted."""
    value: Any
    """The value, as a recipe writes it."""
    what: str = ""
    """The thing that is to have this value, if not the setting itself: `trained weights in `."""


Expectation = Expected | Callable[..., Expected | None]
"""The expectation under a name.

Where it differs within a model, it is a function of `Observed.of`, which returns None where nothing
is expected.
"""


def compare_readback(
    expected: Mapping[str, Expectation],
    observed: Iterable[Observed],
    origins: Origins | None = None,
) -> list[Diagnostic]:
    """Return findings: `setting-not-arrived` and `device-not-used`.

    There is one for each setting and each value that is there instead. An observation of which
    nothing is expected is left out; `unobserved` names the opposite.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in observed:
        wish = _expectation(expected, one)
        if wish is not None and not same_value(wish.value, one.value):
            key = (wish.setting, wish.what + as_text(wish.value), as_text(one.value))
            found.setdefault(key, []).append(one.where)
    return [_finding(*key, places, origins) for key, places in found.items()]


def unobserved(expected: Mapping[str, Expectation], observed: Iterable[Observed]) -> list[str]:
    """Return the settings that are expected under their own name, and observed nowhere."""
    names = {one.name for one in observed}
    return [
        name
        for name, wish in expected.items()
        if name not in names and (callable(wish) or wish.setting == name)
    ]


def observed_settings(
    expected: Mapping[str, Expectation], observed: Iterable[Observed]
) -> set[str]:
    """Return the settings that are both expected and observed; for entries of a list, its name."""
    found = {wish.setting for one in observed if (wish := _expectation(expected, one))}
    return {".".join(part for part in name.split(".") if not part.isdigit()) for name in found}


def same_value(expected: Any, value: Any) -> bool:
    """Return whether a recipe would mean the same by two values.

    True is not 1 (pytorch#149750), a list may be a tuple, and a product of numbers may be rounded.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return math.isclose(expected, value, rel_tol=1e-9)
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    return bool(expected == value)


def as_text(value: Any) -> str:
    """Return a value as a recipe writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            return f"[{', '.join(map(as_text, value))}]"
        case _:
            return str(value)


def _expectation(expected: Mapping[str, Expectation], one: Observed) -> Expected | None:
    wish = expected.get(one.name)
    return wish(*one.of) if callable(wish) else wish


def _finding(
    setting: str, expected: str, there: str, places: Sequence[str], origins: Origins | None
) -> Diagnostic:
    names = list(dict.fromkeys(places))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return Diagnostic(
        "device-not-used" if setting in _DEVICE else "setting-not-arrived",
        f"`{setting}` asks for {expected}, but {names[0]}{more} has {there}",
        parameter=setting,
        origin=origins.near(setting) if origins else None,
        expected=expected,
        seen=there,
    )
