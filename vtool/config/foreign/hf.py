"""Recipes of TRL's, LLaMA-Factory's and ms-swift's SFT, translated to ours and checked.

All three take the settings of transformers' Trainer, and their own in addition. A recipe is a YAML
file, or a script that calls the trainer's command. Findings give places in it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.config.compose import Composed
from vtool.config.foreign import hf_traps
from vtool.config.foreign.given import read_given
from vtool.config.foreign.hf_script import read_script
from vtool.config.foreign.hf_translation import Translation
from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.theirs import ForeignFile, ForeignRecipe, absent_findings
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.origins import Origins, ValuePosition
from vtool.config.resources import RecipeFile
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near


def read_hf(path: Path, trainer: ForeignTrainer, *, read_environment: bool = True) -> ForeignRecipe:
    """Read a recipe of one of these trainers: a YAML file, or a script with its command.

    Raises:
        Findings: `fatal`, where it cannot be read, or is no recipe of this trainer.
    """
    if not path.is_file():
        raise Findings(
            Diagnostic(
                "unreadable-file",
                f"`{path}` is not a file",
                f"give the YAML file of a run of {trainer.title}, or the script that starts it",
            ),
            fatal=True,
        )
    if path.suffix in (".yaml", ".yml", ".json"):
        file = read_yaml(path)
        given, places = read_given(file, whole=trainer.fields, read_environment=read_environment)
        given = {name: value for name, value in given.items() if not name.startswith("ENV.")}
        processes = None
    else:
        given, places, processes = read_script(path, trainer)
    _refuse_megatron(given, places, trainer)
    unknown = list(_unknown(given, places, trainer))
    given, places = _with_current_names(given, places, trainer)
    theirs = ForeignFile(given, places)
    theirs.values["kind"] = "sft"
    translation = Translation(theirs, trainer, path.stem, processes, trusted=read_environment)
    translation.translate()
    findings = [*unknown, *hf_traps.find_traps(theirs, trainer), *absent_findings(theirs)]
    left = tuple(
        (name, value)
        for name, value in given.items()
        if name not in theirs.judged
        and value not in (None, {}, [])
        and value != trainer.fields.get(name)
    )
    unsaid = theirs.absent.keys() | translation.harmless
    known = tuple(
        pair
        for pair in left
        if pair[0].partition(".")[0] in trainer.fields and pair[0] not in unsaid
    )
    findings += _without_counterpart(theirs, known)
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        theirs.names,
        left,
        tuple(translation.notes),
    )


def _refuse_megatron(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> None:
    """Refuse recipes for LLaMA-Factory's back end of Megatron, which has other settings."""
    found = next((name for name in given if name.endswith("_model_parallel_size")), None)
    if found is not None and found not in trainer.fields:
        raise Findings(
            Diagnostic(
                "unknown-recipe",
                f"`{found}` is a setting of Megatron's, and not of {trainer.title}'s own trainer",
                "give a recipe of its own trainer: what is behind USE_MCA is not known here",
                found,
                places[found].key,
            ),
            fatal=True,
        )


def _unknown(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> Iterator[Diagnostic]:
    for name in given:
        head = name.partition(".")[0]
        if head in trainer.fields:
            continue
        meant = did_you_mean(near(head, sorted(trainer.fields)))
        elsewhere = trainer.replaced(head)
        others = known_words(trainer.name).other_releases(head)
        yield Diagnostic(
            "unknown-key",
            f"{trainer.release} has no setting `{name}`{f' ({others})' if others else ''}, and does"
            " not start with it",
            elsewhere or meant,
            name,
            places[name].key,
        )


def _with_current_names(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> tuple[dict[str, Any], dict[str, ValuePosition]]:
    """Return settings with words of earlier releases by those that mean the same now.

    They were found already; a recipe that is converted must not lose what they mean.
    """
    renamed = {
        name: now
        for name in given
        if (now := trainer.successor(name)) is not None and now not in given
    }
    return (
        {renamed.get(name, name): value for name, value in given.items()},
        {renamed.get(name, name): place for name, place in places.items()},
    )


def _without_counterpart(
    theirs: ForeignFile, left: tuple[tuple[str, Any], ...]
) -> list[Diagnostic]:
    if not left:
        return []
    names = ", ".join(name for name, _ in left)
    some = f"{len(left)} setting{'s have' if len(left) > 1 else ' has'} no counterpart here, or a"
    return [
        theirs.find(
            "no-counterpart",
            left[0][0],
            f"{some} value without one: {names}",
            "nothing is reported on these; `vtool explain WORD` describes each",
        )
    ]
