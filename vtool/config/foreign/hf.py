"""Recipes of TRL's, LLaMA-Factory's and ms-swift's SFT, translated to ours and checked.

All three take the settings of transformers' Trainer, and their own in addition. A recipe is a YAML
file, or a script that calls the trainer's command. Findings give places in it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtool.config.compose import Composed
from vtool.config.foreign import hf_traps
from vtool.config.foreign.given import read_given
from vtool.config.foreign.hf_script import PROCESSES_VARIABLE, find_unread_variables, read_script
from vtool.config.foreign.hf_translation import Translation
from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.launch_options import AskedProcesses
from vtool.config.foreign.swift_bounds import (
    SWIFT_VARIABLES,
    find_lost_variables,
    meant_variable,
    with_model_arguments,
)
from vtool.config.foreign.theirs import ForeignFile, ForeignRecipe, absent_findings
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.foreign.values import check_values, hangs_on, without_guesses
from vtool.config.foreign.word import is_whole
from vtool.config.origins import Origins, ValuePosition
from vtool.config.resources import RecipeFile
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near


def read_hf(path: Path, trainer: ForeignTrainer) -> ForeignRecipe:
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
    unread: list[Diagnostic] = []
    if path.suffix in (".yaml", ".yml", ".json"):
        file = read_yaml(path)
        given, places = read_given(file, whole=trainer.fields)
        _refuse_others(given, path, trainer)
        processes = _take_variables(given, places, trainer)
        ranks = AskedProcesses(processes, 1) if processes else None
    else:
        given, places, ranks, unread = read_script(path, trainer)
        if trainer.name == "ms-swift":
            lines = [place.value.line or 0 for place in places.values()]
            unread += find_unread_variables(path, max(lines, default=0))
    _refuse_megatron(given, places, trainer)
    unknown = [*unread, *_unknown(given, places, trainer)]
    given, places, written = _with_current_names(given, places, trainer)
    checked = check_values(trainer.name, trainer.title, given, places)
    given = checked.given
    unknown += [_as_written(one, written) for one in checked.findings]
    theirs = ForeignFile(given, places)
    if trainer.name == "ms-swift":
        unknown += find_lost_variables(given, theirs)
        given = with_model_arguments(given)
    theirs = ForeignFile(given, places, path.parent, checked.refused)
    theirs.values["kind"] = "sft"
    translation = Translation(theirs, trainer, path.stem, ranks)
    translation.translate()
    traps = hf_traps.find_traps(theirs, trainer, ranks.all if ranks else None)
    traps = without_guesses(traps, checked.refused)
    findings = [*unknown, *traps, *absent_findings(theirs)]
    left = tuple(
        (name, value)
        for name, value in (given | checked.refused).items()
        if name in checked.refused
        or (hangs_on(name, checked.refused) and name not in theirs.names.values())
        or (
            name not in theirs.judged
            and value not in (None, {}, [])
            and value != trainer.fields.get(name)
        )
    )
    unsaid = theirs.absent.keys() | translation.harmless | checked.refused.keys()
    known = tuple(
        pair
        for pair in left
        if pair[0].partition(".")[0] in trainer.fields
        and pair[0] not in unsaid
        and not hangs_on(pair[0], {*checked.refused, *theirs.absent})
    )
    findings[len(unknown) :] = [
        _as_written(one, written)
        for one in (*findings[len(unknown) :], *_without_counterpart(theirs, known))
    ]
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        {ours: written.get(word, word) for ours, word in theirs.names.items()},
        tuple((written.get(name, name), value) for name, value in left),
        tuple(translation.notes),
        theirs.scales,
        checked.refused,
    )


def _take_variables(
    given: dict[str, Any], places: dict[str, ValuePosition], trainer: ForeignTrainer
) -> int | None:
    """Name the variables of ms-swift's group `ENV` as a script does; return the processes."""
    if trainer.name != "ms-swift":
        return None
    processes = None
    for name in [one for one in given if one.partition(".")[0].upper() == "ENV"]:
        variable = name.partition(".")[2]
        if variable in SWIFT_VARIABLES or meant_variable(variable):
            given[variable], places[variable] = given[name], places[name]
        elif variable == PROCESSES_VARIABLE and is_whole(given[name]):
            processes, places[variable] = given[name], places[name]
        if name.startswith("ENV"):
            del given[name]
    return processes


_OF_OTHERS = {
    "compute_environment": "settings of accelerate's launcher",
    "distributed_type": "settings of accelerate's launcher",
    "dist_config": "a recipe of LLaMA-Factory's other engine, of USE_V1",
    "train_dataset": "a recipe of LLaMA-Factory's other engine, of USE_V1",
    "peft_config": "a recipe of LLaMA-Factory's other engine, of USE_V1",
    "sampler_type": "settings of `swift sample`",
    "sampler_engine": "settings of `swift sample`",
}
"""Settings that are in no recipe of these trainers, and what a file that has them is."""
_AFTER: Mapping[str, set[str]] = {
    "trl": set(),
    "llamafactory": {"export_dir", "infer_backend", "task"},
    "ms-swift": {"stream", "infer_backend"},
}
"""Settings that only files for predicting, scoring or exporting have."""


def _refuse_others(given: Mapping[str, Any], path: Path, trainer: ForeignTrainer) -> None:
    """Refuse a file of another command as a whole, in the place of a finding for each setting."""
    heads = {name.partition(".")[0] for name in given}
    mark = next((name for name in _OF_OTHERS if name in heads - trainer.fields.keys()), None)
    what = _OF_OTHERS[mark] if mark else None
    trains = {"dataset", "do_train", "learning_rate", "output_dir", "cached_dataset"}
    if not heads & trains and heads & _AFTER[trainer.name] and len(heads) > 2:
        what = "settings of a command that is for after training"
    if len(heads) > 2 and not heads & trainer.fields.keys():
        what = "none of its settings"
    if what is not None:
        message = f"{path.name} has {what}: it is no recipe of {trainer.title}'s fine-tuning"
        help = "give the file that the trainer's own command takes"
        raise Findings(Diagnostic("unknown-recipe", message, help), fatal=True)


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
        if head in trainer.fields or name in SWIFT_VARIABLES:
            continue
        if variables := meant_variable(name) if trainer.name == "ms-swift" else []:
            message = f"{name} is set, and ms-swift reads no such variable"
            help = did_you_mean(variables)
            yield Diagnostic("setting-without-reader", message, help, name, places[name].key)
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
) -> tuple[dict[str, Any], dict[str, ValuePosition], dict[str, str]]:
    """Return settings with words of earlier releases by those that mean the same now.

    They were found already; a recipe that is converted must not lose what they mean. The third are
    the words that the file has, by those of now.
    """
    renamed = {
        name: now
        for name in given
        if (now := trainer.successor(name)) is not None and now not in given
    }
    return (
        {renamed.get(name, name): value for name, value in given.items()},
        {renamed.get(name, name): place for name, place in places.items()},
        {now: name for name, now in renamed.items()},
    )


def _as_written(finding: Diagnostic, written: Mapping[str, str]) -> Diagnostic:
    """Return a finding with the words that the file has."""
    message, name = finding.message, finding.parameter
    for now, word in written.items():
        message = re.sub(rf"(?<![\w.]){now}(?!\w)", word, message)
    return replace(finding, message=message, parameter=written.get(name or "", name))


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
