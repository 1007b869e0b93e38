"""Ask a trained model a question about images and videos."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from vtool.config.schema import Run
from vtool.data.collate import collate_prompts
from vtool.data.encode import encode_question
from vtool.data.messages_layout import TAG, VIDEO_TAG, parse_row
from vtool.data.row import Row
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import FAMILIES
from vtool.models.adapters import CONFIG, add_saved_adapter, base_of_adapter
from vtool.models.build import load_model
from vtool.models.generate import answer_greedily
from vtool.models.model_class import recorded_modeling
from vtool.models.pictures import PictureReader
from vtool.models.processor import load_processor


@dataclass(frozen=True, slots=True)
class Export:
    """A trained model's folder: a whole model, or adapters for the model in another folder."""

    folder: Path
    base: Path
    """The folder with the whole model; `folder` itself where it is one."""
    family: str


def find_export(run: Path, base: Path | None = None) -> Export:
    """Find the export of a run, or take the folder for an export itself.

    Args:
        run: the folder.
        base: where the weights under an adapter are, in the place of what the adapter says.

    Raises:
        Findings: `not-a-run`.
    """
    folder = next(
        (
            one
            for one in (run, run / "export")
            if any(os.path.exists(one / name) for name in ("config.json", CONFIG))
        ),
        None,
    )
    if folder is None:
        message = f"{run} has no exported model"
        raise Findings(
            Diagnostic(
                "not-a-run", message, help="write one from its newest checkpoint: vtool export RUN"
            ),
            fatal=True,
        )
    if not (folder / CONFIG).exists():
        base = folder
    elif base is None:
        base = base_of_adapter(folder)
    try:
        family_name = str(json.loads((base / "config.json").read_text())["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = (
            f"{base / 'config.json'} is not the config of a model: {type(error).__name__} {error}"
        )
        raise Findings(
            Diagnostic("not-a-run", message, help="write it again: vtool export RUN"), fatal=True
        ) from error
    if family_name not in FAMILIES:
        raise Findings(
            Diagnostic(
                "not-a-run",
                f"{folder} holds a {family_name}, which is none of {', '.join(FAMILIES)}",
            ),
            fatal=True,
        )
    return Export(folder, base, family_name)


def load_exported(run: Path, export: Export | None = None) -> Any:
    """Load a trained model in float32, in evaluation mode, with its adapters.

    A run's model has the class that it was trained with; that of a folder by itself has
    transformers' own, as a server would.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`, `modeling-changed`.
    """
    export = export or find_export(run)
    modeling = recorded_modeling(run) if export.folder != run else None
    model = load_model(export.base, export.family, torch.float32, "sdpa", modeling).eval()
    if export.base != export.folder:
        add_saved_adapter(model, export.folder)
    return model


def predict(
    run: Path,
    images: Sequence[str],
    question: str | None,
    system: str | None,
    max_new_tokens: int,
    videos: Sequence[str] = (),
) -> str:
    """Return the greedy answer of a run's export, or of an exported folder.

    Images and videos go where the texts have their <image> and <video> tags; without any tag,
    before the question. The model is given the inputs that it was trained with.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`, `modeling-changed`, and what is wrong with the
            images and texts (VT6xx).
    """
    export = find_export(run)
    text = question if question is not None else _first_question(run)
    try:
        row = _row({TAG: images, VIDEO_TAG: videos}, text, system)
        processor = load_processor(export.folder, export.family, config_of=export.base)
        settings = own_settings(run, export.folder)
        if settings:
            processor = replace(processor, pictures=PictureReader.of(settings.data.image))
        prompt = encode_question(row, processor)
    except Findings as findings:
        here = "paths are relative to the folder you are in"
        with_help = [
            replace(one, help=here) if one.rule in ("missing-image", "missing-video") else one
            for one in findings.diagnostics
        ]
        raise Findings(with_help, fatal=True) from findings
    model = load_exported(run, export)
    dropped = settings.data.drop_model_inputs if settings else ()
    inputs = collate_prompts([prompt], processor, dropped)
    with torch.no_grad():
        return answer_greedily(model, processor, inputs, max_new_tokens)[0].strip()


def _row(shown: Mapping[str, Sequence[str]], question: str, system: str | None) -> Row:
    """Build the row of a question, as a rows file would be read.

    Args:
        shown: files by the tag that stands for them.
    """
    asked = question
    for tag, files in reversed(list(shown.items())):
        tags = question.count(tag) + (system or "").count(tag)
        if tags and tags != len(files):
            kind = tag[1:-1]
            message = (
                f"the texts have {tags} {tag} tag{'s' * (tags > 1)}, and the number of {kind}s is"
                f" {len(files)}"
            )
            raise Findings(
                Diagnostic(
                    "placeholder-mismatch",
                    message,
                    help=f"give --{kind} once for each tag, or leave the tags out",
                )
            )
        asked = asked if tags else tag * len(files) + asked
    messages = [
        *([{"role": "system", "content": system}] if system is not None else []),
        {"role": "user", "content": asked},
    ]
    return parse_row(
        {"messages": messages, **{f"{tag[1:-1]}s": list(files) for tag, files in shown.items()}},
        "the question",
        Path(),
    )


def own_settings(run: Path, export: Path) -> Run | None:
    """Return the settings of an export's run, which say how it has read its rows.

    An export that stands alone says nothing about it.

    Raises:
        Findings: `not-a-run`, where the run's own settings cannot be read: its images might be
            taken in another size than it has learnt.
    """
    file = export.parent / "config.yaml"
    try:
        settings = yaml.safe_load(file.read_text())
        return Run.model_validate_json(json.dumps(settings))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        if export == run:  # and what lies beside it may be of anything
            return None
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        message = f"{file}: {why}; it says how the run has read its images"
        raise Findings(
            Diagnostic(
                "not-a-run",
                message,
                help="put it back; or, with the sizes of the export alone: vtool predict"
                f" {shlex.quote(str(export))}",
            ),
            fatal=True,
        ) from error


def _first_question(run: Path) -> str:
    try:
        with (run / "predictions.jsonl").open() as file:
            return str(json.loads(file.readline())["question"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{run} has no test question to ask again"
        raise Findings(
            Diagnostic("not-a-run", message, help="say what to ask: --question TEXT"), fatal=True
        ) from error
