"""Rules about where the weights come from."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Origin

Where = Callable[[str], Origin | None]


def conflicting_model_source(run: Run, where: Where) -> Iterator[Diagnostic]:
    model = run.model
    if model.init == "pretrained" and model.path is None:
        message = "model.init is pretrained, but no folder is given"
        yield Diagnostic("conflicting-model-source", message, "set model.path=FOLDER", "model.path", where("model.init"))
    if model.init == "random" and model.path is not None:
        message = f"model.init is random, so that nothing of model.path={model.path} would be loaded"
        yield Diagnostic("conflicting-model-source", message, "leave one of them out", "model.init", where("model.init"))
    if model.starts_from == "random" and model.size is None:
        message = "the weights are to be random, and model.size does not say how many"
        help = "set model.size=tiny, or model.path=FOLDER to load a model"
        yield Diagnostic("conflicting-model-source", message, help, "model.size", where("model"))


def not_a_model_folder(run: Run, where: Where) -> Iterator[Diagnostic]:
    if run.model.path is None:
        return
    folder, origin = Path(run.model.path), where("model.path")
    if not folder.is_dir():
        message = f"there is no folder {folder} (looked for {folder.absolute()})"
        yield Diagnostic("path-not-found", message, "models are not fetched from a hub: give a folder", "model.path", origin)
        return
    try:
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = "it has no config.json" if isinstance(error, FileNotFoundError) else f"its config.json cannot be read: {error}"
        yield Diagnostic("not-a-model-folder", f"{folder} is no model: {reason}", None, "model.path", origin)
        return
    if model_type != run.model.family:
        message = f"{folder} is a model of type {model_type}, and model.family is {run.model.family}"
        yield Diagnostic("not-a-model-folder", message, None, "model.path", origin, run.model.family, str(model_type))


def ignored_setting(run: Run, where: Where) -> Iterator[Diagnostic]:
    if run.model.path is not None and run.model.size is not None and run.model.init != "random":
        message = f"model.size={run.model.size} is not used: the model in model.path has a size of its own"
        yield Diagnostic("ignored-setting", message, "set model.size=null to say so", "model.size", where("model.size"))


RULES = (conflicting_model_source, not_a_model_folder, ignored_setting)
