"""The trainer that a recipe was written for, by the names of its settings."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.more_words import AXOLOTL_WORDS
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.verl_settings import verl_names
from vtool.config.schema import Run
from vtool.config.settings import all_settings

_ALONE = ("data.train_files", "model.partial_pretrain")
"""Settings of verl that say by themselves whose the recipe is."""
_OTHER_PROGRAMS = ("actor_rollout_ref",)
_OF_LLAMAFACTORY = (("finetuning_type",), ("model_name_or_path", "stage"))
"""Settings of LLaMA-Factory that say by themselves whose the recipe is."""
_LEAST, _SHARE, _ALIKE = 3, 0.6, 0.85


def trainer_of(values: Mapping[Any, Any]) -> str | None:
    """Return whose recipe a YAML mapping is; None for one of vtool's, and for any other file.

    Args:
        values: the mapping, as YAML has it.

    Returns:
        A name that `--from` takes.
    """
    if "kind" in values or not _may_be_of_verl(values.get("defaults")):
        return None
    if _is_of_verl(values):
        return "verl"
    given = [key for key in values if isinstance(key, str)]
    if "defaults" in values or any(
        isinstance(values[key], Mapping) for key in given if key in Run.model_fields
    ):
        return None
    if any(set(marks) <= {*given} for marks in _OF_LLAMAFACTORY):
        return "llamafactory"
    known = _names()
    everything = set().union(*known.values())
    found = [key if key in everything else _nearest(key) for key in given]
    if "base_model" not in found:  # axolotl's, which has it always, knows many words of others
        known = {name: words for name, words in known.items() if name != "axolotl"}
    scores = {name: sum(key in words for key in found) for name, words in known.items()}
    best, second = sorted(scores, key=lambda name: -scores[name])[:2]
    others = set().union(*(words for name, words in known.items() if name != best))
    is_clear = scores[best] > scores[second] and any(key in known[best] - others for key in found)
    enough = scores[best] >= max(_LEAST, _SHARE * len(given))
    return best if is_clear and enough else None


def lead(values: Mapping[Any, Any], name: str, other: str) -> int:
    """Return how many more of a flat recipe's settings one trainer knows than another."""
    known = _names()
    first, second = (sum(key in known.get(one, ()) for key in values) for one in (name, other))
    return first - second


@cache
def _names() -> Mapping[str, frozenset[str]]:
    """Return the settings of each trainer whose recipes are flat, words of earlier releases too."""
    fields = {name: set(trainer.fields) for name, trainer in TRAINERS.items()}
    everything = set().union(*fields.values()) | _earlier_words()
    found = {
        name: frozenset(
            word
            for word in everything
            if word in fields[name] or trainer.replaced(word) is not None
        )
        for name, trainer in TRAINERS.items()
    }
    axolotl = known_words("axolotl")
    words = {*axolotl.history, *AXOLOTL_WORDS}.union(*axolotl.plugins.values())
    return found | {"axolotl": frozenset(words)}


def _earlier_words() -> set[str]:
    return {"warmup_ratio", "evaluation_strategy", "max_seq_length", "train_type", "torch_dtype"}


@cache
def _nearest(key: str) -> str | None:
    """Return the setting that a key is but for a typo."""
    everything = sorted(set().union(*_names().values()))
    return next(iter(get_close_matches(key, everything, 1, _ALIKE)), None)


def _may_be_of_verl(defaults: Any) -> bool:
    """Return whether a defaults list, if there is one, names files of verl's."""
    if defaults is None:
        return True
    entries = defaults if isinstance(defaults, list) else [defaults]
    texts = [str(key) for one in entries for key in (one if isinstance(one, Mapping) else [one])]
    marks = ("_trainer", "actor_rollout_ref", "model@", "override /")
    return any(mark in text for text in texts for mark in marks)


def _is_of_verl(values: Mapping[Any, Any]) -> bool:
    if any(isinstance(values.get(name), Mapping) for name in _OTHER_PROGRAMS):
        return True
    ours = {setting.name for setting in all_settings(Run)}
    score = 0
    for name in _leaves(values, ""):
        theirs = name in verl_names() or (name.endswith("_target_") and "." in name)
        if name in _ALONE:
            score += 2
        elif theirs != (name in ours):
            score += 1 if theirs else -1
    return score >= 2


def _leaves(values: Mapping[Any, Any], above: str) -> Iterator[str]:
    """Yield dotted names of values; a name that a file writes with its dots is one, too."""
    for key, value in values.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, name)
        else:
            yield name
