"""Validation of plain values: pydantic's errors become findings, with places and suggestions."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vtool.config.compose import Composed
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.words import WORDS
from vtool.config.given_for_recipe import ANOTHER_FAMILY
from vtool.config.limits import MOST_FINDINGS
from vtool.config.origins import COMMAND_LINE, Key, Origins
from vtool.config.partial import partial
from vtool.config.resources import BEGIN_WITH_DEFAULTS, shown_path
from vtool.config.schema import RECIPE_KINDS, Run, Settings
from vtool.config.settings import Spot, all_settings, choices, find_spot, nullable, takes
from vtool.config.suggest import (
    better_value,
    doubtful_places,
    meant_key,
    what_it_needs,
)
from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.near_miss import did_you_mean, near, one_of
from vtool.families.any_facts import transformers_types

_SAME_DTYPE = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "double": "float64"}
_CHOICE = {"literal_error", "union_tag_invalid"}
_MISSING = {"missing", "union_tag_not_found"}
_RANGE = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
    "too_short",
    "too_long",
    "string_too_short",
    "string_too_long",
    "value_error",
}
# After these, what is inside of a group has not been looked at.
_HIDES = {
    "union_tag_not_found",
    "union_tag_invalid",
    "model_type",
    "model_attributes_type",
    "tuple_type",
}
_LEAST_MISSING = 2
_OF_FINETUNE = "data.global_batch_size"
"""The setting inside of a group that has no default, and that the recipe `finetune` has."""


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """The schema's judgement of a recipe."""

    run: Settings
    """The settings; those without a valid value raise `NotValid` where they are read."""
    sound: frozenset[str]
    """The groups in which every setting has a valid value."""
    findings: tuple[Diagnostic, ...] = ()
    whole: bool = True
    """True if every value was validated."""


def validate(composed: Composed) -> CheckedRecipe:
    """Check the values against the schema: findings VT101 to VT105, all of them at once."""
    values, unset = _without_open(composed.values)
    schema = schema_of(values)
    # settings of no known kind have no other checks
    if "kind" in values and values["kind"] not in list(RECIPE_KINDS):
        return CheckedRecipe(
            partial(schema, {}, [(name,) for name in schema.model_fields]),
            frozenset(),
            (_unknown_kind(values["kind"], composed.origins),),
            whole=False,
        )
    try:
        run = schema.model_validate_json(json.dumps(values, default=repr))
    except ValidationError as error:
        errors = [
            each
            for each in error.errors(include_url=False)
            if not _is_unknown(each, find_spot(each["loc"], schema).keys, composed.unknown)
        ]
    else:
        if not unset and not composed.unknown:
            return CheckedRecipe(run, frozenset(schema.model_fields))
        errors = []
    wrong = [each for each in errors if not _echoes(each)]
    capped = unset[:MOST_FINDINGS], wrong[: max(0, MOST_FINDINGS - len(unset))]
    findings: dict[tuple[str, str | None], Diagnostic] = {}
    for finding in (
        *(_left_open(name, composed.origins) for name in capped[0]),
        *(_finding(each, composed) for each in capped[1]),
    ):
        findings.setdefault((finding.rule, finding.parameter), finding)
    broken = {*composed.unknown, *(tuple(name.split(".")) for name in unset)}
    doubts: set[Key] = set()
    strange: set[Key] = set()
    for number, each in enumerate(errors):
        spot = find_spot(each["loc"], schema)
        if each["type"] != "extra_forbidden":
            broken.add(spot.keys)
        else:
            strange.add(spot.keys)
            doubts |= (
                doubtful_places(spot, each["input"]) if number < MOST_FINDINGS else {spot.keys[:1]}
            )
    listed = sorted(findings.values(), key=_order)
    if more := len(unset) + len(wrong) - len(capped[0]) - len(capped[1]):
        message = f"{more} more settings have findings like these"
        listed.append(Diagnostic(listed[-1].rule, message, "mend those above first"))
    listed = _without_defaults(listed, composed)
    return CheckedRecipe(
        partial(schema, values, broken, doubts, strange),
        frozenset(schema.model_fields) - {keys[0] for keys in (*broken, *doubts, *strange)},
        tuple(listed),
        not any(each["type"] in _HIDES for each in errors),
    )


def _without_defaults(findings: list[Diagnostic], composed: Composed) -> list[Diagnostic]:
    """Say once that a recipe extends no other, in the place of each setting that it lacks."""
    own = shown_path(composed.file.path)
    files = {place.value.file for place in composed.origins.places.values()}
    absent = [one for one in findings if one.rule == "missing-key"]
    groups = [one for one in absent if "." not in (one.parameter or ".")]
    missing = [*groups, *(one for one in absent if one.parameter == _OF_FINETUNE)]
    # one that says its kind, and lacks a single group, is whole but for that
    begun = "kind" in composed.values and len(groups) < _LEAST_MISSING
    if not missing or begun or not files <= {own, COMMAND_LINE.file}:
        return findings
    *names, last = [f"`{one.parameter}`" for one in missing]
    listed = f"{', '.join(names)} and {last}" if names else last
    message = f"{own} has no `defaults:`, and lacks {listed}"
    help = BEGIN_WITH_DEFAULTS
    words = WORDS.keys() - Run.model_fields.keys()
    if theirs := next((key for key in composed.values if key in words), None):
        readers = "|".join((*TRAINERS, "verl", "axolotl"))
        help += f"; or, as `{theirs}` is a word of other trainers: `vtool validate-config --from"
        help += f" {readers} {own}` checks a recipe of one, and --convert makes one of vtool of it"
    first = Diagnostic("missing-key", message, help, None, Origin(own))
    return [first, *(one for one in findings if one not in missing)]


def _is_unknown(error: ErrorDetails, keys: Key, unknown: Collection[Key]) -> bool:
    """Return whether an error is of a value that is not known, and so may be none."""
    around = [place for place in unknown if keys[: len(place)] == place]
    of_what_is_there = error["type"] not in _MISSING | {"extra_forbidden", "union_tag_invalid"}
    return bool(around) and (keys in around or not (of_what_is_there or keys[-1].isdigit()))


def _order(finding: Diagnostic) -> tuple[bool, str, int, int]:
    """Order findings for reading: by file, from the top, the command line last."""
    origin = finding.origin or Origin("")
    return origin == COMMAND_LINE, origin.file, origin.line or 0, origin.column or 0


def schema_of(values: dict[str, Any]) -> type[Settings]:
    """Return the schema of a recipe's `kind`; of a run where that is missing or unknown."""
    kind = values.get("kind")
    return RECIPE_KINDS.get(kind, Run) if isinstance(kind, str) else Run


def _finding(error: ErrorDetails, composed: Composed) -> Diagnostic:
    spot = find_spot(error["loc"], root := schema_of(composed.values))
    name, kind, origins = spot.name, error["type"], composed.origins
    place = origins.places.get(spot.keys)
    if kind == "extra_forbidden":
        return Diagnostic(
            "unknown-key",
            f"there is no setting `{name}`",
            meant_key(spot, error["input"]),
            name,
            place.key if place else None,
            seen=_seen(error["input"]),
        )
    if kind in _MISSING:
        tag = f"{name}.{_tag(error)}" if kind == "union_tag_not_found" else name
        wanted = (
            takes(spot.annotation, spot.metadata)
            if kind == "missing"
            else one_of(choices(spot.annotation))
        )
        if spot.keys[-1].isdigit() and kind == "missing":
            return _unfit(
                "out-of-range", find_spot(error["loc"][:-1], root), error["input"], origins
            )
        return Diagnostic(
            "missing-key",
            f"`{tag}` is not given, and has no default",
            what_it_needs(tag, wanted),
            tag,
            (
                (place.value if place else None)
                or origins.near(name)
                or Origin(shown_path(composed.file.path))
            ),
            wanted,
        )
    if kind in _CHOICE:
        return _unknown_choice(error, spot, origins)
    return _unfit(
        "out-of-range" if kind in _RANGE else "wrong-type",
        spot,
        error["input"],
        origins,
        finite=kind == "finite_number",
    )


def _unknown_choice(error: ErrorDetails, spot: Spot, origins: Origins) -> Diagnostic:
    words = choices(spot.annotation)
    name, given = (
        (f"{spot.name}.{_tag(error)}", error["ctx"]["tag"])
        if error["type"] == "union_tag_invalid"
        else (spot.name, error["input"])
    )
    help = did_you_mean(near(given, words)) if isinstance(given, str) else None
    if isinstance(given, str) and (meant := _SAME_DTYPE.get(given.lower())) in words:
        help = f"write {meant}"
    elif given in ("fp16", "float16", "half") and "bfloat16" in words:
        help = "float16 is not built, whose gradients need scaling; bfloat16 takes as few bytes"
    if len(words) == 1 and not nullable(spot.annotation):
        help = f"only `{words[0]}` is built: leave `{name}` out"
    if name == "model.family" and isinstance(given, str):
        meant = did_you_mean(near(given, [*words, *transformers_types()]))
        help = f"{meant}; {ANOTHER_FAMILY}" if meant else ANOTHER_FAMILY
    null = ", or null" if nullable(spot.annotation) else ""
    listed = f"{one_of(words)}{null}"
    if error["type"] == "literal_error":
        listed = takes(spot.annotation, spot.metadata)
    return Diagnostic(
        "unknown-choice",
        f"`{name}` takes {listed}, not {_seen(given)}",
        help,
        name,
        origins.near(name),
        ", ".join(words),
        _seen(given),
    )


def _unknown_kind(given: object, origins: Origins) -> Diagnostic:
    return Diagnostic(
        "unknown-choice",
        f"`kind` takes {one_of(RECIPE_KINDS)}, not {_seen(given)}",
        did_you_mean(near(given, RECIPE_KINDS)) if isinstance(given, str) else None,
        "kind",
        origins.near("kind"),
        ", ".join(RECIPE_KINDS),
        _seen(given),
    )


def _unfit(
    rule: str, spot: Spot, given: object, origins: Origins, finite: bool = False
) -> Diagnostic:
    wanted, origin = takes(spot.annotation, spot.metadata), origins.near(spot.name)
    wanted = wanted.replace("a number", "a finite number", 1) if finite else wanted
    return Diagnostic(
        rule,
        f"`{spot.name}` takes {wanted}, not {_seen(given)}",
        better_value(spot, given, origin),
        spot.name,
        origin,
        wanted,
        _seen(given),
    )


def _left_open(name: str, origins: Origins) -> Diagnostic:
    """Return a finding for `???`: the user must set the value."""
    setting = next(
        (
            setting
            for setting in all_settings()
            if setting.name == ".".join(key for key in name.split(".") if not key.isdigit())
        ),
        None,
    )
    wanted = setting.takes if setting else "VALUE"
    return Diagnostic(
        "missing-key",
        f"`{name}` is left open by the recipe, and must be given",
        what_it_needs(name, wanted),
        name,
        origins.near(name),
        wanted,
    )


def _without_open(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that are not `???`, and the names of those that are."""
    names: list[str] = []

    def strip(value: Any, keys: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            names.extend(
                ".".join((*keys, str(key))) for key, entry in value.items() if entry == "???"
            )
            return {
                key: strip(entry, (*keys, str(key)))
                for key, entry in value.items()
                if entry != "???"
            }
        if isinstance(value, list):
            return [strip(entry, (*keys, str(number))) for number, entry in enumerate(value)]
        return value

    return strip(values, ()), names


def _echoes(error: ErrorDetails) -> bool:
    """Return whether an error repeats others: a list is too short when its entries have errors.

    A value that is neither a number nor a word has an error for each; the number's says both.
    """
    if error["type"] == "literal_error" and str(error["loc"][-1]).startswith("literal["):
        return True
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _tag(error: ErrorDetails) -> str:
    """Return the name of the setting that tells the members of a union apart."""
    return str(error["ctx"]["discriminator"]).strip("'")


def _seen(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}…"
