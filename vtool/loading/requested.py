"""The subjects that a user names to be checked, as settings of a load check."""

import os
from collections.abc import Iterable, Mapping, Sequence

from vtool.config.compose import compose_recipe
from vtool.config.load import load_load_check, load_run
from vtool.config.schema import LoadCheck, Run
from vtool.config.shipped import recipe_names
from vtool.diagnostics.result import Result
from vtool.families import family_facts
from vtool.hub.cache import find_cached_model
from vtool.hub.names import hub_name
from vtool.loading.subjects import no_subject
from vtool.model_folder import MODEL_CONFIG

DEFAULT_RECIPE = "load_check"
"""The recipe whose settings hold for subjects that are named one by one."""


def load_check_settings(
    subjects: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    framework: str | None = None,
    python: str | None = None,
    changed_since: str | None = None,
) -> tuple[LoadCheck, dict[str, str]]:
    """Return the settings of a check, and for each subject made of another word, that word.

    Args:
        subjects: folders, files, `vllm:NAME` and the like; the first may be a recipe: of kind
            `load_check`, or of a training run, which stands for what will be served of it.
        overrides: `KEY=VALUE`, of the check or of that run.
        framework: every class of it is checked, in place of subjects.
        python: the interpreter that has the framework.
        changed_since: of the framework's classes, those changed since this git commit.

    Raises:
        Findings: what stands against the recipe; `unknown-subject`, where nothing is named; as
            `find_cached_model`, of a model that is named as the hub does.
        ValueError: both subjects and a framework are named.
    """
    recipe, typed, named = DEFAULT_RECIPE, {}, list(subjects)
    if named and (named[0] in recipe_names() or named[0].endswith((".yaml", ".yml"))):
        word, *named = named
        if compose_recipe(word, ()).values.get("kind") == "sft":
            of_run = [text for text in overrides if _group(text) in Run.model_fields]
            overrides = [text for text in overrides if text not in of_run]
            served = _served(load_run(word, of_run).run)
            named, typed = [served, *named], {served: word}
        else:
            recipe = word
    for place, word in enumerate(named):
        if model := hub_name(word):
            named[place] = os.path.join(find_cached_model(model).folder, "")
            typed[named[place]] = word
    settings = load_load_check(recipe, overrides).load_check
    chosen = settings.subjects
    if framework and named:
        raise ValueError("either subjects are named, or --all of a framework is asked for")
    if framework or named:
        chosen = chosen.model_copy(update={"names": tuple(named), "all": framework})
    if changed_since:
        chosen = chosen.model_copy(update={"changed_since": changed_since})
    if not chosen.names and not chosen.all:
        raise no_subject(
            "nothing is named that could be checked",
            "name a folder, vllm:NAME, python:FILE.py:factory, or say --all vllm",
        )
    update = {"subjects": chosen, "python": python or settings.python}
    return settings.model_copy(update=update), typed


def in_named_order(
    results: Iterable[Result], settings: LoadCheck, typed: Mapping[str, str]
) -> tuple[Result, ...]:
    """Sort results as their subjects were named; those of a whole framework stay as they came."""
    names = [typed.get(name, name) for name in settings.subjects.names]
    place = {name: number for number, name in enumerate(names)}
    return tuple(sorted(results, key=lambda result: place.get(result.subject, len(place))))


def _group(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


def _served(run: Run) -> str:
    """Return the subject that serves a run: its export, or before that, vLLM's class for it."""
    export = run.folder / "export"
    if (export / MODEL_CONFIG).is_file():
        return os.path.join(export, "")  # with a slash, that it is taken for nothing else
    return f"vllm:{family_facts(run.model.family).model_class_name}"
