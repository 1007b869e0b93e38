"""A model that a recipe names as the hub does: its folder in the cache, and its commit."""

from pathlib import Path

from vtool.config.given_for_recipe import ANOTHER_FAMILY
from vtool.config.origins import Origins
from vtool.config.partial import without_setting
from vtool.config.schema import Run
from vtool.config.schema.base import NotValid
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import FAMILIES
from vtool.hub.cache import find_cached_model
from vtool.hub.names import HubName, hub_name

_NAME = "model.path"
_MAKES = ("qwen", "glm")
"""Beginnings of names on the hub of models that vtool trains."""


def with_hub_folder(run: Run, origins: Origins) -> tuple[Run, Run, tuple[Diagnostic, ...]]:
    """Return a run with the folder and the commit of a hub's model in the place of its name.

    Nothing is downloaded. A folder that is there wins over a name.

    Returns:
        The run; the run as rules may read it; and what stands against the model.
    """
    try:
        path, revision = run.model.path, run.model.revision
    except NotValid:
        return run, run, ()
    given = hub_name(path, revision) if path is not None else None
    if given is None:
        pinned = path is not None and Path(path).name == revision
        if revision is None or pinned:
            return run, run, ()
        message = (
            f"model.revision is {revision}, and model.path is {path or 'not set'}: no name of a hub"
        )
        help = "leave it out; or name a model of the hub: model.path=ORGANIZATION/NAME"
        wrong = Diagnostic(
            "hub-name-unknown", message, help, "model.revision", origins.near("model.revision")
        )
        return run, run, (wrong,)
    try:
        found = find_cached_model(given, _NAME)
    except Findings as findings:
        near = origins.near(_NAME)
        reported = tuple(
            Diagnostic(one.rule, one.message, _help(one, given), _NAME, near, seen=one.seen)
            for one in findings.diagnostics
        )
        return run, without_setting(run, _NAME), reported  # type: ignore[return-value]
    changed = {"path": str(found.folder), "revision": found.commit}
    made = run.model_copy(update={"model": run.model.model_copy(update=changed)})
    return made, made, ()


def _help(finding: Diagnostic, model: HubName) -> str | None:
    """Return the help, with the families that are trained where the name looks like no such one."""
    if any(make in model.name.lower() for make in _MAKES):
        return finding.help
    families = ", ".join(FAMILIES)
    return f"{finding.help}. If its type is none of {families}: {ANOTHER_FAMILY}"
