"""Rules about where the weights come from."""

import json
from collections.abc import Iterator
from pathlib import Path

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic

_RULE = "conflicting-model-source"


def conflicting_model_source(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """model.init, model.path and model.size say one thing."""
    model = run.model
    if model.init == "pretrained" and model.path is None:
        message = "model.init is pretrained, but model.path names no folder to take weights from"
        help = "set model.path=FOLDER; for random weights, model.init=random"
        yield Diagnostic(_RULE, message, help, "model.path", origins.near("model.init"))
    elif model.init == "random" and model.path is not None:
        message = f"model.init is random, but model.path names a folder of weights, {model.path}"
        help = "set model.init=pretrained to start from them, or model.path=null"
        yield Diagnostic(_RULE, message, help, "model.init", origins.near("model.init"))
    elif model.starts_from == "random" and model.size is None:
        message = "neither model.path nor model.size says what to train"
        help = "set model.path=FOLDER to fine-tune a model, or model.size=tiny for random weights"
        yield Diagnostic(_RULE, message, help, "model.path", origins.near("model.path"))


def not_a_model_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """model.path holds a model of model.family. Whether its weights are whole is seen when they are loaded."""
    model = run.model
    if model.path is None or not (folder := Path(model.path)).exists():
        return
    problem, seen = _problem(folder, model.family)
    if problem:
        inside = next((sub for sub in ("export", "huggingface", "hf") if (folder / sub / "config.json").is_file()), None)
        help = f"there is one in {folder / inside}" if inside else "give a folder as save_pretrained or `vtool export` writes it"
        expected = model.family if seen else None
        yield Diagnostic("not-a-model-folder", f"{folder} {problem}", help, "model.path", origins.near("model.path"), expected, seen)


def _problem(folder: Path, family: str) -> tuple[str | None, str | None]:
    """What keeps a folder from being a model's, and the family that it is of instead."""
    if not folder.is_dir():
        return "is a file, not a model's folder", None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "has no config.json, and so is not a model's folder", None
    except (OSError, ValueError) as error:
        return f"has a config.json that cannot be read: {error}", None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found is None:
        return "has a config.json without a model_type", None
    return (None, None) if found == family else (f"is a model of type {found}, but model.family is {family}", str(found))
