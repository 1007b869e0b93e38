"""The model that another trainer's recipe names: a folder, or a name of a hub; and its family."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from vtool.config.limited import Here
from vtool.config.schema import Model
from vtool.diagnostics import Findings
from vtool.hub.cache import find_cached_model
from vtool.hub.names import hub_name
from vtool.model_folder import ModelFolder

_FAMILIES = (
    (r"qwen2\.5-?vl", "qwen2_5_vl"),
    (r"qwen2-?vl", "qwen2_vl"),
    (r"qwen3-?vl\b.*-a\d+b", "qwen3_vl_moe"),
    (r"qwen3-?vl", "qwen3_vl"),
    (r"qwen3\.5(?!.*-a\d+b)", "qwen3_5"),
    (r"glm-4\.1v", "glm4v"),
)
_USUAL_NAMES = {
    **{"qwen2_vl": "Qwen2-VL", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL"},
    **{"qwen3_vl_moe": "Qwen3-VL", "qwen3_5": "Qwen3.5", "glm4v": "GLM-4.1V"},
}
_OTHER_NAME = (
    "its name is of no family that vtool trains (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5,"
    " GLM-4.1V): `vtool watch` shows what its own trainer teaches it"
)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model, as far as this machine knows it."""

    path: str
    """The folder, or the name of a model in the hub's cache, as `model.path` takes it."""
    family: str | None = None
    """The family here, by its config.json or else by its name; None for another model."""
    is_known: bool = False
    """True where its config.json was read."""
    absent: tuple[str, str] | None = None
    """The reason that it was not read, and what to do."""


def look_at_model(named: Any, revision: Any = None) -> NamedModel:
    """Look at the folder of a model, or at the cache of the hub; nothing is downloaded.

    Args:
        named: a folder, or a name of a hub.
        revision: a branch, a tag or a commit of the hub's model.
    """
    text = str(named)
    folder = Path(text).expanduser()
    kind = ModelFolder(folder).model_type
    on_hub = None if kind else hub_name(text, revision if isinstance(revision, str) else None)
    if kind is not None:
        return NamedModel(str(folder), _family(kind), is_known=True)
    if on_hub is None:
        why = "has no config.json that can be read" if folder.exists() else "is not there"
        return NamedModel(
            str(folder), _guessed(text), absent=(f"{text} {why}", "model.path=FOLDER")
        )
    help = f"{on_hub.download}; or give its folder: model.path=FOLDER"
    if _guessed(text) is None:
        help = f"{help}; {_OTHER_NAME}"
    if Here.stranger:
        why = f"{on_hub} is no folder here, and the cache of the hub was not looked at"
        return NamedModel(text, _guessed(text), absent=(why, help))
    try:
        kind = ModelFolder(find_cached_model(on_hub).folder).model_type
    except Findings as findings:
        why = findings.diagnostics[0].message
        return NamedModel(text, _guessed(text), absent=(why, help))
    return NamedModel(text, _family(kind), is_known=True)


def likely_name(named: Any) -> str | None:
    """Return the usual name of the family that a folder or a name is of; None where none is known.

    Nothing but the folder's config.json is read.
    """
    folder = Path(str(named)).expanduser()
    family = _family(ModelFolder(folder).model_type) or _guessed(str(named))
    return _USUAL_NAMES.get(family or "")


def _family(kind: str | None) -> str | None:
    return kind if kind in get_args(Model.model_fields["family"].annotation) else None


def _guessed(name: str) -> str | None:
    """Return the family that a name such as `Qwen2.5-VL-3B-Instruct` says."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((family for known, family in _FAMILIES if re.search(known, last)), None)
