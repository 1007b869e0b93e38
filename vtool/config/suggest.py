"""Help for unknown keys, and for values of another type."""

import json
import math
from functools import cache

from vtool.config.foreign.words import WORDS, counterpart_of
from vtool.config.megatron_versions import of_another_release
from vtool.config.origins import COMMAND_LINE
from vtool.config.schema import RECIPE_KINDS, Run, Settings
from vtool.config.schema.megatron import DdpConfig
from vtool.config.settings import Setting, Spot, all_settings, choices, nullable, takes
from vtool.diagnostics import Origin
from vtool.diagnostics.near_miss import (
    did_you_mean,
    ending,
    near,
    one_of,
    overlapping,
    same_words,
)

_MOST_WORDS = 8
"""The most words of other trainers inside of an unknown group that are answered."""


def better_value(spot: Spot, given: object, origin: Origin | None) -> str | None:
    """Return how to write the value that was probably meant; None where that is unknown."""
    wanted = takes(spot.annotation)
    if wanted.startswith("a group of settings"):
        return _inside_of_group(spot.name, given)
    if wanted.startswith("a list"):
        return _as_list(spot.name, given)
    help: str | None = None
    match given:
        case bool() | int() | float() if wanted.startswith("text"):
            shell, file = (
                f"{spot.name}='{json.dumps(given)}'",
                f'{spot.keys[-1]}: "{json.dumps(given)}"',
            )
            help = (
                f'quote it for vtool, and for the shell: "{shell}"'
                if origin == COMMAND_LINE
                else f"quote it: {file}"
            )
        case float() if wanted.startswith("an integer") and given.is_integer():
            help = f"write {int(given)}"
        case float() if wanted.startswith("an integer") and math.isfinite(given):
            help = f"write {math.floor(given)} or {math.ceil(given)}"
        case str() if wanted.startswith("true") and given.casefold() in (
            "yes",
            "no",
            "on",
            "off",
            "y",
            "n",
        ):
            help = "write true or false"
        case str() if nullable(spot.annotation) and given.casefold() in ("none", "nil", "~"):
            help = "write null"
        case str() if wanted.startswith(("a number", "an integer")):
            number = _is_number(given)
            typed = example_of(spot.name)
            help = "without quotes it is a number" if number else typed and f"write {typed}"
        case _:
            pass
    return help


_EXAMPLES = {
    **{"data.train": "my.jsonl", "model.path": "FOLDER", "optim.lr": "1e-5", "lora": "{rank: 16}"},
    **{"data.max_length": "4096", "train.steps": "500", "train.epochs": "3", "run.name": "NAME"},
}
"""Values of settings that have no default that would be typed."""


def example_of(name: str) -> str | None:
    """Return a setting as it is typed, with a value that it takes; None: none is known."""
    found = next((one for one in all_settings(Run) if one.name == name), None)
    if found is None:
        return None
    default = None if found.field.is_required() else found.field.default
    plain = default is not None and isinstance(default, str | int | float)
    usual = json.dumps(default).strip('"') if plain else None
    value = _EXAMPLES.get(name) or usual or next(iter(choices(found.field.annotation)), None)
    return value and f"{name}={value}"


def meant_inside(group: str, given: object) -> str | None:
    """Return help with the setting inside of a group that other trainers call by its name.

    `model: Qwen/Qwen2.5-VL-3B-Instruct` is how ms-swift says `model.path`.
    """
    ours = WORDS[group].ours if group in WORDS else None
    if not isinstance(given, str) or ours is None or not ours.startswith(f"{group}."):
        return None
    words = next(choices(one.field.annotation) for one in all_settings(Run) if one.name == ours)
    if words and given not in words:
        return f"`{ours}` takes {one_of(words)}"
    return f"did you mean `{ours}={given}`?"


def _inside_of_group(name: str, given: object) -> str:
    group, _, number = name.rpartition(".")
    if group in _HOW_TO_GIVE and number.isdigit():
        return "write a file or a folder of rows, or a group: {format: messages, path: my.jsonl}"
    inside = _inside(name)
    if meant := meant_inside(name, given):
        return meant
    exact = [
        f"{setting.name}={given}"
        for setting in inside
        if given in choices(setting.field.annotation)
    ]
    return (
        did_you_mean(exact) or f"set what is in it: {', '.join(setting.name for setting in inside)}"
    )


def _as_list(name: str, given: object) -> str | None:
    if name in _HOW_TO_GIVE:
        return _HOW_TO_GIVE[name]
    entries = [setting for setting in _inside(name) if choices(setting.field.annotation)]
    if entries and not isinstance(given, dict):
        return (
            f"write a list of groups: [{{{entries[0].leaf}:"
            f" {choices(entries[0].field.annotation)[0]}, …}}]"
        )
    return (
        None
        if given is None or isinstance(given, list)
        else f"write a list: [{given if isinstance(given, str) else json.dumps(given)}]"
    )


def meant_key(spot: Spot, given: object = None) -> str:
    """Return a question about the settings that an unknown key may have been meant for.

    Args:
        spot: the place of the key.
        given: its value.
    """
    key, group = spot.keys[-1], ".".join(spot.keys[:-1])
    if spot.owners == (DdpConfig,) and (answer := of_another_release(key)):
        return answer
    if len(spot.keys) == 1 and key in RECIPE_KINDS:
        return (
            f"settings of a recipe of kind {key} stand at its top: `sources`, not `{key}.sources`"
        )
    if "." in key:
        outer, _, inner = (_ours_of(spot, key.rpartition(".")[2]) or key).rpartition(".")
        return f"in a file, groups are nested: `{_nested(outer, inner)}`"
    if others := _of_another_kind(spot):
        words = dict.fromkeys(word for _, found in others for word in found)
        return f"`{key}` is a setting of {others[0][0]}: {', '.join(words)}"
    if answer := _inside_or_itself(spot, given):
        return answer
    leaves = [name for owner in spot.owners for name in owner.model_fields]
    return did_you_mean(likely_meant(spot, given)[:3]) or (
        f"`{group}` has the settings {', '.join(leaves)}"
        if group
        else f"a recipe has the groups {', '.join(leaves)}"
    )


def _inside_or_itself(spot: Spot, given: object) -> str | None:
    """Answer words of other trainers: those inside of a group, or else the key itself."""
    inside = _words_inside(spot, given)
    if not inside:
        return _of_another_trainer(spot, given)
    if len(meant := set(inside.values())) == 1:
        return did_you_mean([*meant])
    return f"here {', '.join(f'`{name}` is `{ours}`' for name, ours in inside.items())}"


def _nested(outer: str, inner: str) -> str:
    """Return a setting as a file has it: `optim: {groups: {vision: {lr: …}}}`."""
    text = f"{inner}: …"
    for group in reversed(outer.split(".") if outer else []):
        text = f"{group}: {{{text}}}"
    return text


def _ours_of(spot: Spot, word: str) -> str | None:
    """Return the setting here for a word of other trainers."""
    known = WORDS.get(word) if spot.root is Run else None
    return known.ours if known else None


def _of_another_trainer(spot: Spot, given: object) -> str | None:
    """Return the setting here for a key of other trainers."""
    key = spot.keys[-1]
    word = WORDS.get(key) if spot.root is Run else None
    if word is None:
        return None
    if word.ours is None:
        return counterpart_of(key)
    group = word.ours.partition(".")[0]
    if isinstance(given, dict) and len(spot.keys) == 1 and group in near(key, [*Run.model_fields]):
        return None  # `optimizer: {lr: …}` is the group's name, written out
    return f"did you mean `{word.ours}`?" + (f" ({word.how})" if word.how else "")


def _words_inside(spot: Spot, given: object) -> dict[str, str]:
    """Return the words of other trainers inside of an unknown group, with the settings here.

    None, where all that is inside are settings of the group that its name is near to.
    """
    if not isinstance(given, dict) or len(spot.keys) > 1 or spot.root is not Run:
        return {}
    found: dict[str, str] = {}
    everything, _ = _settings(Run)
    meant = near(spot.keys[-1], [*Run.model_fields])
    ways: list[tuple[str, object]] = [(spot.name, given)]
    while ways and len(found) < _MOST_WORDS:
        above, value = ways.pop(0)
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            name, ours = f"{above}.{key}", _ours_of(spot, str(key))
            in_order = any(
                f"{group}{name.removeprefix(spot.name)}" in everything for group in meant
            )
            if ours is not None and not in_order:
                found[name] = ours
            else:
                ways.append((name, inner))
    return found


def _of_another_kind(spot: Spot) -> list[tuple[str, tuple[str, ...]]]:
    """Return, of each other kind of group that has the key, the field that chooses it."""
    return [
        next(
            (name, found)
            for name, field in member.model_fields.items()
            if (found := choices(field.annotation))
        )
        for member in spot.members
        if spot.keys[-1] in member.model_fields and member not in spot.owners
    ]


def likely_meant(spot: Spot, given: object = None) -> list[str]:
    """Return the settings that an unknown key may have been meant for, likeliest first."""
    key, group = spot.keys[-1], ".".join(spot.keys[:-1])
    if words := _words_inside(spot, given):
        return list(dict.fromkeys(words.values()))
    if _of_another_trainer(spot, given):
        return [ours] if (ours := WORDS[key].ours) else []
    prefix = f"{group}." if group else ""
    leaves = [name for owner in spot.owners for name in owner.model_fields]
    here = [f"{prefix}{name}" for name in leaves]
    everything, values = _settings(spot.root)
    exact = [name for name in everything if name.rpartition(".")[2] == key]
    similar = [f"{prefix}{name}" for name in near(key, leaves)]
    likely = [*exact, *(similar or ending(key, everything))]
    likely = (
        likely
        or same_words(key, here)
        or same_words(key, values)
        or overlapping(key, [name for name in here if name in values])
        or overlapping(key, values)
    )
    return list(dict.fromkeys(likely))


@cache
def _settings(root: type[Settings]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of all settings and groups, and those of the settings alone."""
    found = tuple(all_settings(root))
    return (
        tuple(setting.name for setting in found),
        tuple(setting.name for setting in found if not setting.groups),
    )


def doubtful_places(spot: Spot, given: object = None) -> set[tuple[str, ...]]:
    """Return the places of the settings that an unknown key may have been meant for.

    All of its group, where that cannot be guessed. Where one is written, it is not in doubt.
    """
    group = spot.keys[:-1]
    if "." in spot.keys[-1]:
        ours = _ours_of(spot, spot.keys[-1].rpartition(".")[2])
        return {tuple(ours.split(".")) if ours else (*group, *spot.keys[-1].split("."))}
    meant = {tuple(name.split(".")) for name in likely_meant(spot, given)}
    if _of_another_kind(spot) or not meant:
        return meant | ({group} if group else set())
    return meant


_HOW_TO_GIVE = {
    "model.path": (
        "model.path=FOLDER, with the model's config.json, tokenizer, image processor and"
        " safetensors; or its name on the Hugging Face Hub, as in"
        " model.path=Qwen/Qwen2.5-VL-7B-Instruct, which is downloaded once"
    ),
    **{
        f"data.{split}": (
            f"data.{split}=my.jsonl, a file or a folder of rows, whose layout is detected; of"
            f" several, a list: data.{split}=[a.jsonl,b.json]"
        )
        for split in ("train", "validation", "test")
    },
}
"""By setting, what is written there, where its type says little."""


def what_it_needs(name: str, accepted: str) -> str:
    """Return how to give a setting, or a group, that is missing."""
    if name in _HOW_TO_GIVE:
        return _HOW_TO_GIVE[name]
    inside = _inside(name) if accepted == "a group of settings" else []
    required = [setting.name for setting in inside if setting.required]
    if inside:
        return (
            f"it needs {', '.join(required)}"
            if required
            else f"it takes {', '.join(setting.name for setting in inside)}"
        )
    return f"{name} takes {accepted}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _inside(group: str) -> list[Setting]:
    return [setting for setting in all_settings() if setting.name.rpartition(".")[0] == group]
