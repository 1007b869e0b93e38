"""Rules about where the weights come from."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtool.config.given_for_recipe import ANOTHER_FAMILY
from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule
from vtool.families import FAMILIES, can_train, family_facts
from vtool.families.images import patches_of_processor, patches_of_tower
from vtool.families.modeling_file import (
    RULE,
    SETTING,
    check_modeling_file,
    is_well_formed,
    split_modeling,
)
from vtool.families.quantization import QUANTIZED_HELP, quantized_already
from vtool.model_folder import INDEX, MODEL_CONFIG, WHOLE, ModelFolder

_RULE = "conflicting-model-source"
_NO_CLASS = "for which transformers here has no image-text-to-text class"


def _problem(folder: Path, family: str) -> tuple[str | None, str | None]:
    """Return why a folder is not a model of this family, and the family that it is of instead."""
    if not folder.is_dir():
        return "is a file, not a model's folder", None
    try:
        config = ModelFolder(folder).read(MODEL_CONFIG)
    except FileNotFoundError:
        return "has no config.json, and so is not a model's folder", None
    except (OSError, ValueError, RecursionError) as error:
        return f"has a config.json that cannot be read: {error}", None
    found = config.get("model_type") if isinstance(config, dict) else None
    found = found if isinstance(found, str) else None
    if found == family:
        return _problem_of_own(config, family), None
    if found is None:
        return "has a config.json without a model_type", None
    other = f"but model.family is {family}" if can_train(found) else _NO_CLASS
    return f"is a model of type {found}, {other}", str(found)


def _problem_of_own(config: dict[str, Any], family: str) -> str | None:
    """Return why a model of the right family cannot be trained."""
    if family_facts(family).is_learnt:  # its class reads what it likes
        return f"is {quantized}" if (quantized := quantized_already(config)) else None
    if not isinstance(config.get("vision_config"), dict):
        return (
            "has a config.json without a vision_config: transformers would make up a tower of its"
            " default size"
        )
    text = config.get("text_config", config)
    if not (isinstance(text, dict) and text) and "hidden_size" not in config:
        return (
            f"has a config.json whose text_config is {json.dumps(text)}: transformers would make up"
            " a language model of its default size"
        )
    return f"is {quantized}" if (quantized := quantized_already(config)) else None


@settings_rule(
    Rule(
        name="conflicting-model-source",
        code="VT202",
        summary=(
            "model.init, model.path and model.size do not say one thing about where the weights"
            " come from."
        ),
        why=(
            "A run that means to fine-tune and starts from random weights looks like one that"
            " learns badly."
        ),
        bad="model.init=pretrained",
        good="model.init=random",
        fix="`pretrained` needs model.path, and `random` needs model.size instead of it.",
    ),
)
def conflicting_model_source(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.init, model.path and model.size agree about where the weights come from."""
    model = run.model
    if model.init == "pretrained" and model.path is None:
        yield Diagnostic(
            _RULE,
            "model.init is pretrained, but model.path names no folder to take weights from",
            "set model.path=FOLDER; for random weights, model.init=random",
            "model.path",
            origins.near("model.init"),
        )
    elif model.init == "random" and model.path is not None:
        yield Diagnostic(
            _RULE,
            f"model.init is random, but model.path names a folder of weights, {model.path}",
            "set model.init=pretrained to start from them, or model.path=null",
            "model.init",
            origins.near("model.init"),
        )
    elif model.starts_from == "random" and model.family not in FAMILIES:
        yield Diagnostic(
            _RULE,
            f"model.family is {model.family}, which has no size for random weights",
            f"set model.path=FOLDER; a size have {', '.join(FAMILIES)}",
            "model.path",
            origins.near("model.family"),
        )
    elif model.starts_from == "random" and model.size is None:
        yield Diagnostic(
            _RULE,
            "neither model.path nor model.size says what to train",
            "set model.path=FOLDER to fine-tune a model, or model.size=tiny for random weights",
            "model.path",
            origins.near("model.path"),
        )


@settings_rule(
    Rule(
        name="not-a-model-folder",
        code="VT209",
        summary=(
            "model.path is no folder of a model of model.family, or of one without a vision part or"
            " of quantized weights, or its files are not what they are called."
        ),
        why="The wrong architecture loads with weights missing, or not at all.",
        bad="model.path=rows",
        good="model.path=models/qwen",
        fix=(
            "Give a folder with a config.json whose model_type is model.family: one that"
            " save_pretrained or `vtool export` wrote."
        ),
    ),
)
def not_a_model_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.path holds a model of model.family.

    Whether its weights are whole is seen when they are loaded.
    """
    model = run.model
    if model.path is None or not os.path.exists(folder := Path(model.path)):
        return
    problem, seen = _problem(folder, model.family)
    stands_in = ModelFolder(folder).stand_in()
    if stands_in:
        problem, seen = stands_in[0], None
    if problem:
        inside = next(
            (
                sub
                for sub in ("export", "huggingface", "hf")
                if (folder / sub / MODEL_CONFIG).is_file()
            ),
            None,
        )
        help = (
            f"there is one in {folder / inside}"
            if inside
            else "give a folder as save_pretrained or `vtool export` writes it"
        )
        if seen and can_train(seen):
            help = f"set model.family={seen}, or give another folder"
        elif seen:
            help = ANOTHER_FAMILY
        elif problem.startswith("is quantized"):
            help = QUANTIZED_HELP
        if stands_in and stands_in[1]:
            help = stands_in[1]
        yield Diagnostic(
            "not-a-model-folder",
            f"{folder} {problem}",
            help,
            "model.path",
            origins.near("model.path"),
            model.family if seen else None,
            seen,
        )


@settings_rule(
    Rule(
        name="not-a-model-class",
        code="VT226",
        summary="model.modeling names no class that stands in a Python file.",
        why=(
            "Transformers' own class in its place would train, and nobody would see that the file"
            " had not been used."
        ),
        bad="model.modeling=models/my_model.py:MyModle",
        good="model.modeling=models/my_model.py:MyModel",
        fix=(
            "Name the file and, behind a colon, a class that is written in it:"
            " model.modeling=FILE.py:CLASS."
        ),
    ),
)
def not_a_model_class(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.modeling names a class that stands in a Python file.

    Whether it fits is seen when the file is imported, which no rule does.
    """
    given = run.model.modeling
    if given is None:
        return
    near = origins.near(SETTING)
    if not is_well_formed(given):
        yield Diagnostic(
            RULE,
            f"model.modeling takes FILE.py:CLASS, not {given}",
            "name a class behind the file: my_model.py:MyModel",
            SETTING,
            near,
        )
    elif os.path.isfile(split_modeling(given)[0]) and (found := check_modeling_file(given)):
        yield replace(found, origin=found.origin or near)


@settings_rule(
    Rule(
        name="patch-mismatch",
        code="VT215",
        summary=(
            "The image processor in model.path cuts images into other patches than the model's"
            " vision tower takes."
        ),
        why=(
            "Where the numbers happen to divide, pixels end up in other places and nothing fails;"
            " else the first step does, or an image has another number of tokens than of features."
        ),
        bad="model.path=models/mixed",
        good="model.path=models/qwen",
        fix=(
            "Take preprocessor_config.json and config.json from one folder. patch_size, merge_size"
            " and temporal_patch_size are those of vision_config: patch_size, spatial_merge_size,"
            " temporal_patch_size."
        ),
    ),
)
def patch_mismatch(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the image processor cuts images into the patches that the tower takes.

    Else pixels end up elsewhere, or tokens and features differ in number.
    """
    if run.model.path is None or family_facts(run.model.family).is_learnt:
        return
    folder = Path(run.model.path)
    tower, processor = patches_of_tower(folder, run.model.family), patches_of_processor(folder)
    if tower is None or processor is None or tower == processor:
        return
    apart = [
        f"{name} {getattr(processor, name)}, not {getattr(tower, name)}"
        for name in ("patch_size", "merge_size", "temporal_patch_size")
        if getattr(processor, name) != getattr(tower, name)
    ]
    yield Diagnostic(
        "patch-mismatch",
        (
            f"{folder}: the image processor has {' and '.join(apart)}, which the vision tower takes"
            " (vision_config in config.json)"
        ),
        "take preprocessor_config.json from the folder that the weights are from",
        "model.path",
        origins.near("model.path"),
    )


@settings_rule(
    Rule(
        name="two-saves-in-folder",
        code="VT251",
        summary="model.path has two saves of the weights: one file, and an index of others.",
        why=(
            "A save into a folder that had one already leaves both there. transformers, and so a"
            " run, reads the one file; a server may read the other save."
        ),
        bad="model.path=models/twice",
        good="model.path=models/qwen",
        fix="Take the files of the save away that is not meant, its index included.",
        severity="warning",
    ),
)
def two_saves_in_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.path has one save of the weights.

    An index that names the one file is healthy, and so is one whose files are not there.
    """
    if run.model.path is None or not os.path.isfile(Path(run.model.path) / WHOLE):
        return
    folder = Path(run.model.path)
    named = {*ModelFolder(folder).named_shards}
    # what is named elsewhere is not looked at
    listed = {name for name in named - {WHOLE} if os.path.basename(name) == name}
    if not (others := sorted(name for name in listed if os.path.isfile(folder / name))):
        return
    more = f" to {others[-1]}" if len(others) > 1 else ""
    yield Diagnostic(
        "two-saves-in-folder",
        f"{folder} has two saves of the weights: {WHOLE} is read, and {others[0]}{more}, which"
        f" {INDEX} names, {'are' if more else 'is'} not",
        f"take {INDEX} and its files away; or {WHOLE}, where the others are meant",
        "model.path",
        origins.near("model.path"),
    )


def _blocks(run: Run) -> tuple[int, int] | None:
    """Return the number of the tower's blocks and of the language model's layers.

    None where the folder's config.json does not give them.
    """
    model = run.model
    if model.starts_from == "random":
        size = family_facts(model.family).sizes.get(model.size or "")
        return (size["vision_depth"], size["layers"]) if size else None
    try:
        config = ModelFolder(Path(str(model.path))).config
        text, vision = config.get("text_config", config), config["vision_config"]
        return int(vision["depth"]), int(text["num_hidden_layers"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


@settings_rule(
    Rule(
        name="recompute-beyond-blocks",
        code="VT250",
        summary="model.gradient_checkpointing is more than the model has blocks.",
        why=(
            "It is a number of another model, or of layers that are counted otherwise: what was"
            " planned with it, memory above all, is not what this run has."
        ),
        bad="model.gradient_checkpointing=99",
        good="model.gradient_checkpointing=full",
        fix="Say `full`, or at most the number of blocks: the tower's and the language model's.",
    ),
)
def recompute_beyond_blocks(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.gradient_checkpointing is not more than the model has blocks."""
    name, asked = "model.gradient_checkpointing", run.model.gradient_checkpointing
    if isinstance(asked, str) or (found := _blocks(run)) is None or asked <= sum(found):
        return
    tower, layers = found
    yield Diagnostic(
        "recompute-beyond-blocks",
        f"{name} is {asked}, and this model has {sum(found)} blocks: {tower} of its vision tower"
        f" and {layers} layers of its language model",
        f"set {name}=full, or at most {sum(found)}",
        name,
        origins.near(name),
    )


@settings_rule(
    Rule(
        name="router-loss-left-out",
        code="VT684",
        summary="A model's config.json asks for a loss of its experts' router, and none is added.",
        why=(
            "transformers' own trainer adds router_aux_loss_coef times a load-balancing loss where"
            " output_router_logits is true; here the loss is that of the tokens alone, so that"
            " experts may be used less and less evenly."
        ),
        bad='"output_router_logits": true, "router_aux_loss_coef": 0.001 in config.json',
        good='"output_router_logits": false in config.json',
        fix=(
            "Train a few steps and compare what experts are used, or set output_router_logits to"
            " false in config.json: then nothing is left out."
        ),
        severity="warning",
    ),
)
def router_loss_left_out(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the folder's config.json asks for no loss beside that of the tokens."""
    config = ModelFolder(Path(run.model.path)).config if run.model.path else {}
    text = config.get("text_config")
    parts = (config, text if isinstance(text, dict) else {})
    asked = any(part.get("output_router_logits") is True for part in parts)
    rates = [part["router_aux_loss_coef"] for part in parts if part.get("router_aux_loss_coef")]
    if asked and rates:
        yield Diagnostic(
            "router-loss-left-out",
            f"{run.model.path}: config.json asks for {rates[0]} times the router's loss, and the"
            " loss here is that of the tokens alone",
            parameter="model.path",
            origin=origins.near("model.path"),
        )
