"""Rules about where the weights come from."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vtool.config.origins import Origins
from vtool.config.schema import Megatron, Run
from vtool.config.suggest import ANOTHER_FAMILY
from vtool.diagnostics import Diagnostic
from vtool.families import FAMILIES
from vtool.families.images import patches_of_processor, patches_of_tower
from vtool.families.modeling_file import (
    RULE,
    SETTING,
    check_modeling_file,
    is_well_formed,
    split_modeling,
)

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
    """model.path holds a model of model.family.

    Whether its weights are whole is seen when they are loaded.
    """
    model = run.model
    if model.path is None or not (folder := Path(model.path)).exists():
        return
    problem, seen = _problem(folder, model.family)
    if problem:
        inside = next(
            (
                sub
                for sub in ("export", "huggingface", "hf")
                if (folder / sub / "config.json").is_file()
            ),
            None,
        )
        help = (
            f"there is one in {folder / inside}"
            if inside
            else "give a folder as save_pretrained or `vtool export` writes it"
        )
        if seen in FAMILIES:
            help = f"set model.family={seen}, or give another folder"
        elif seen:
            help = f"give a model of one of {', '.join(FAMILIES)}; {ANOTHER_FAMILY}"
        expected = model.family if seen else None
        yield Diagnostic(
            "not-a-model-folder",
            f"{folder} {problem}",
            help,
            "model.path",
            origins.near("model.path"),
            expected,
            seen,
        )


def not_a_model_class(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """model.modeling names a class that stands in a Python file.

    Whether it fits is seen when the file is imported, which no rule does.
    """
    given = run.model.modeling
    if given is None:
        return
    near = origins.near(SETTING)
    if not is_well_formed(given):
        message = f"model.modeling takes FILE.py:CLASS, not {given}"
        yield Diagnostic(
            RULE,
            message,
            "name a class behind the file: my_model.py:MyModel",
            SETTING,
            near,
        )
    elif split_modeling(given)[0].is_file() and (found := check_modeling_file(given)):
        yield replace(found, origin=found.origin or near)


def modeling_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """The class is the one that computes:

    megatron-core has layers of its own, and would leave it out without a word.
    """
    if run.model.modeling is not None and isinstance(run.engine, Megatron):
        message = (
            "model.modeling names a class, but engine=megatron computes with layers of"
            " megatron-core's: it would not be used"
        )
        help = "leave it out, or set engine=fsdp2 or engine=ddp"
        yield Diagnostic("not-built-on-engine", message, help, SETTING, origins.near(SETTING))


def patch_mismatch(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """The image processor cuts images as the tower takes them:

    else pixels end up elsewhere, or tokens and features differ in number.
    """
    if run.model.path is None:
        return
    folder = Path(run.model.path)
    tower, processor = patches_of_tower(folder, run.model.family), patches_of_processor(folder)
    if tower is None or processor is None or tower == processor:
        return
    names = ("patch_size", "merge_size", "temporal_patch_size")
    apart = [
        f"{name} {getattr(processor, name)}, not {getattr(tower, name)}"
        for name in names
        if getattr(processor, name) != getattr(tower, name)
    ]
    message = (
        f"{folder}: the image processor has {' and '.join(apart)}, which the vision tower takes"
        " (vision_config in config.json)"
    )
    help = "take preprocessor_config.json from the folder that the weights are from"
    yield Diagnostic("patch-mismatch", message, help, "model.path", origins.near("model.path"))


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
    if found == family:
        there = isinstance(config.get("vision_config"), dict)
        return (
            None
            if there
            else (
                "has a config.json without a vision_config: transformers would make up a tower of"
                " its default size"
            )
        ), None
    if found is None:
        return "has a config.json without a model_type", None
    return f"is a model of type {found}, but model.family is {family}", str(found)
