"""From plain values to a frozen `Run`: pydantic's errors become findings, each with its place and a suggestion."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from vtool.config.compose import Composed
from vtool.config.marks import Key
from vtool.config.schema import Run
from vtool.config.settings import all_settings, names_at
from vtool.diagnostics import Diagnostic, Findings, Origin

_RULES = {"extra_forbidden": "unknown-key", "missing": "missing-key"}
_CHOICE = {"literal_error", "union_tag_invalid", "enum"}
_RANGE = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
    "too_short",
    "too_long",
    "string_too_short",
}


def validate(composed: Composed) -> Run:
    """Check the values against the schema.

    Raises:
        Findings: VT101 to VT105, all of them at once.
    """
    unset = [keys for keys, value in _leaves(composed.values) if value == "???"]
    try:
        run = Run.model_validate_json(json.dumps(composed.values))
    except ValidationError as error:
        findings = [_finding(entry, composed) for entry in error.errors(include_url=False) if entry["input"] != "???" and not _echo(entry)]
        raise Findings([*(_unset(keys, composed) for keys in unset), *findings]) from None
    if unset:
        raise Findings([_unset(keys, composed) for keys in unset])
    return run


def origin_of(origins: Mapping[Key, Origin], keys: tuple[str, ...]) -> Origin | None:
    """Where a value comes from: its own place, or that of the nearest group around it."""
    for end in range(len(keys), 0, -1):
        if (origin := origins.get(keys[:end])) is not None:
            return origin
    return None


def _finding(entry: Any, composed: Composed) -> Diagnostic:
    keys = _without_tags(entry["loc"], composed.values)
    name = ".".join(keys)
    kind, context = entry["type"], entry.get("ctx", {})
    origin = origin_of(composed.origins, keys)
    seen = _shown(entry["input"])
    if kind == "extra_forbidden":
        return Diagnostic("unknown-key", f"there is no setting `{name}`", _near(keys[-1], ".".join(keys[:-1]), entry["loc"]), name, origin, seen=seen)
    if kind in ("missing", "union_tag_not_found"):
        if kind == "union_tag_not_found":
            name = f"{name}.{context['discriminator'].strip(chr(39))}"
        return Diagnostic("missing-key", f"`{name}` has no default and is not given", f"set it: {name}=VALUE", name, origin)
    if kind in _CHOICE:
        expected = str(context.get("expected") or context.get("expected_tags"))
        key = f"{name}.{context['discriminator'].strip(chr(39))}" if kind == "union_tag_invalid" else name
        given = str(context["tag"]) if kind == "union_tag_invalid" else str(entry["input"])
        near = get_close_matches(given, [word.strip("' ") for word in expected.replace(" or ", ",").split(",")], 1)
        return Diagnostic(
            "unknown-choice",
            f"`{key}` is `{given}`; it takes {expected}",
            (near and f"did you mean `{near[0]}`?") or None,
            key,
            origin,
            expected,
            given,
        )
    rule = "out-of-range" if kind in _RANGE else "wrong-type"
    wanted = entry["msg"][0].lower() + entry["msg"][1:]
    return Diagnostic(rule, f"`{name}` is {seen}: {wanted}", None, name, origin, expected=wanted, seen=seen)


def _echo(entry: Any) -> bool:
    """Whether an error only repeats others: a list "too short" because its entries have errors of their own."""
    return bool(entry["type"] == "too_short" and len(entry["input"]) >= entry["ctx"]["min_length"])


def _unset(keys: tuple[str, ...], composed: Composed) -> Diagnostic:
    name = ".".join(keys)
    message = f"`{name}` must be given: the recipe leaves it to you"
    return Diagnostic("missing-key", message, f"set it: {name}=VALUE", name, origin_of(composed.origins, keys))


def _near(key: str, group: str, place: tuple[str | int, ...]) -> str:
    here = names_at(place[:-1])
    if near := get_close_matches(key, here, 1, cutoff=0.5):
        return f"did you mean `{'.'.join((*group.split('.'), near[0])) if group else near[0]}`?"
    elsewhere = [setting.name for setting in all_settings() if setting.name.rpartition(".")[2] == key]
    if elsewhere:
        return f"did you mean `{elsewhere[0]}`?"
    return f"`{group}` takes {', '.join(here)}" if group else f"a recipe takes {', '.join(here)}"


def _without_tags(place: tuple[str | int, ...], values: Any) -> tuple[str, ...]:
    """pydantic puts the member of a union into the place of an error; nobody has written it there."""
    keys: list[str] = []
    for number, part in enumerate(place):
        if isinstance(part, int) and isinstance(values, list):
            values = values[part] if part < len(values) else None
        elif isinstance(values, dict) and part in values:
            values = values[part]
        elif number < len(place) - 1:
            continue
        keys.append(str(part))
    return tuple(keys)


def _leaves(values: Any, keys: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(values, dict | list):
        entries = values.items() if isinstance(values, dict) else enumerate(values)
        return [leaf for key, value in entries for leaf in _leaves(value, (*keys, str(key)))]
    return [(keys, values)]


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "…"
