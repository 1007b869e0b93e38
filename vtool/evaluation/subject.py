"""The model that is evaluated: a run's, an export, an adapter, or any folder of a known family."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from vtool.config.schema import Data, Run
from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import write_line
from vtool.evaluation.exported import Export, find_export, load_exported, own_settings
from vtool.hub.cache import find_cached_model
from vtool.hub.download import download_absent
from vtool.hub.names import HubName, hub_name
from vtool.model_folder import MODEL_CONFIG
from vtool.models.base_files import BASE_RECORD, check_same_weights, file_digests, model_file_blocks
from vtool.models.landing import check_landing
from vtool.models.model_class import MODELING_RECORD
from vtool.models.processor import Processor, load_processor
from vtool.near_runs import runs_there

ADDS_NOTHING = "which adds nothing yet: a matrix of each module is all zero, and the base answers"
"""Words of an adapter as it begins, before a step of training."""
_RUNS = Path("runs")
"""The folder that a run is in by default."""
_OF_RUN_OR_MODEL = ("config.yaml", "checkpoints", "export", MODEL_CONFIG, "adapter_config.json")
"""Names of which the folder of a run, a model or an adapter has one at least."""
_OF_A_MODEL = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.txt", "*.model")
"""The files of weights, configs, templates and tokenizers."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model that answers questions: a run's export, a folder, or an adapter on its base."""

    given: Path
    export: Export
    run: Run | None
    """The settings of its run; None where it is no run's."""
    idle: bool = False
    """True of an adapter that adds nothing: of each pair, one matrix is zero."""

    @property
    def is_adapter(self) -> bool:
        """True if the weights are an adapter's, on a base in another folder."""
        return self.export.base != self.export.folder

    def in_words(self) -> str:
        """Return the folder, and the base of an adapter."""
        base = f" on {self.export.base}" if self.is_adapter else ""
        base += f", {ADDS_NOTHING}" if self.idle else ""
        return f"{self.export.folder}{base} ({self.export.family})"

    def processor(self, settings: Data) -> Processor:
        """Load its processor, with these sizes of images and videos."""
        return load_processor(
            self.export.folder,
            self.export.family,
            settings.image,
            settings.video,
            config_of=self.export.base,
            data=settings,
        )

    def other_prompt(self, settings: Data) -> str | None:
        """Return in words how chats are written otherwise than in training; None where not."""
        own = self.run.data if self.run else None
        if own is None:
            return None
        parts = []
        if settings.chat_template not in (None, own.chat_template):
            parts.append(f"data.chat_template is {settings.chat_template}")
        given, trained = settings.template_arguments, own.template_arguments
        if other := {key: value for key, value in given.items() if trained.get(key) != value}:
            parts.append(f"data.template_arguments has {other}, and the training had {trained}")
        if not parts:
            return None
        return f"{' and '.join(parts)}: these prompts are others than were learnt (prompt-differs)"

    def load(self) -> Any:
        """Load the model in float32, in evaluation mode, with its adapter.

        Raises:
            Findings: `model-does-not-load`, `modeling-changed`.
        """
        return load_exported(self.given, self.export)

    def digest(self) -> str:
        """Return a digest of the files that make it what it is, weights included.

        Raises:
            Findings: `model-does-not-load`, where one cannot be read.
        """
        digest = xxhash.xxh3_128()
        files = [
            file
            for folder in dict.fromkeys((self.export.base, self.export.folder))
            for pattern in _OF_A_MODEL
            for file in sorted(folder.glob(pattern))
        ]
        record = self.given / MODELING_RECORD
        if self.export.folder != self.given and record.exists():
            files.append(record)
        for file in files:
            size = file.stat().st_size if file.exists() else 0  # a link to nothing is not read
            digest.update(f"{file.name} {size}\n".encode())
            for block in model_file_blocks(file):
                digest.update(block)
        return digest.hexdigest()

    def trained_on(self, files: Sequence[Mapping[str, Any]]) -> bool:
        """Return if its run was trained on one of these files, by their digests."""
        try:
            own = read_small_json(self.given / "data.json")["train"]["files"]
            known = {each.get("sha256") for each in own} - {None}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False
        return any(each.get("sha256") in known for each in files)


def find_folder(given: str) -> Path:
    """Return the folder of a model, by its path or by the name of a run in `runs/`.

    Raises:
        Findings: `not-a-run`; fatal.
    """
    path, named = Path(given), _RUNS / given
    if named.is_dir() and not any((path / name).exists() for name in _OF_RUN_OR_MODEL):
        path = named  # a folder of rows, say, does not hide the run of its name
    of_run = path.parent == _RUNS  # even where there is no such folder yet, it is no hub's name
    if not path.is_dir() and not of_run and (model := hub_name(given)):
        return _of_hub(model)
    if not path.is_dir():
        message = f"there is no folder {given}"
        message += "" if of_run else f", and no run of that name in {_RUNS}/"
        if path.is_file():
            message = f"{given} is a file, and no folder of a model or a run"
        help = runs_there(path) or "name a run, an export, or a model's folder"
        raise Findings(Diagnostic("not-a-run", message, help), fatal=True)
    return path


def _of_hub(model: HubName) -> Path:
    """Return the folder of a hub's model, which is downloaded where it is not there.

    Raises:
        Findings: as `find_cached_model` and `download`; fatal.
    """
    try:
        return find_cached_model(model).folder
    except Findings as findings:
        if not download_absent(findings.diagnostics, write_line):
            raise
        return find_cached_model(model).folder


def open_model(given: str, base: Path | None = None) -> EvaluatedModel:
    """Find a model by its folder, or by the name of a run in `runs/`.

    Args:
        given: the folder or the name.
        base: where the weights under an adapter are, in the place of what the adapter says.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`; `adapter-mismatch`, where an adapter does not
            land in its base; fatal.
    """
    path = find_folder(given)
    try:
        export = find_export(path, base)
        subject = EvaluatedModel(path, export, own_settings(path, export.folder))
        if subject.is_adapter:
            _check_base(export)
            return replace(subject, idle=check_landing(export.folder, export.base).idle)
        return subject
    except Findings as findings:
        moved = "put it back, or say where it is now: --base FOLDER"
        found = [
            replace(one, help=moved)
            if one.rule == "model-does-not-load" and "is an adapter for" in one.message
            else one
            for one in findings.diagnostics
        ]
        raise Findings(found, fatal=True) from findings


def _check_base(export: Export) -> None:
    """Hold the weights under a run's adapter against those that it was trained on.

    Raises:
        Findings: `base-changed`.
    """
    run = export.folder.parent
    try:
        written = read_small_json(run / BASE_RECORD)
    except (OSError, ValueError):  # an adapter that stands alone says nothing
        return
    if isinstance(written, dict):
        check_same_weights(run, export.base, written, file_digests(export.base))


def with_own_reading(run: Run, own: Run | None, given: Collection[str]) -> Run:
    """Return a recipe that reads rows as the model's run did, and computes as it did.

    A model that has learnt images of one size is not shown them in another. What is given on the
    command line stays.

    Args:
        run: the rows' recipe.
        own: the model's run.
        given: the names of the settings of the command line.
    """
    if own is None:
        return run
    data, model = _with_reading(run.data, own.data, given), run.model
    if "model.dtype" not in given:
        model = model.model_copy(update={"dtype": own.model.dtype})
    return run.model_copy(update={"data": data, "model": model})


def _with_reading(data: Data, own: Data, given: Collection[str]) -> Data:
    changed: dict[str, Any] = {}
    for group in ("image", "video"):
        mine, prefix = getattr(data, group), f"data.{group}."
        if f"data.{group}" in given:
            continue
        keys = {key.removeprefix(prefix) for key in given if key.startswith(prefix)}
        changed[group] = getattr(own, group).model_copy(
            update={key: getattr(mine, key) for key in keys}
        )
    if data.coordinates is None and not any(key.startswith("data.coordinates") for key in given):
        changed["coordinates"] = own.coordinates
    # what was trained stands in the model's own template
    for name in ("chat_template", "template_arguments"):
        asked = any(key.startswith(f"data.{name}") for key in given)
        if not asked or getattr(data, name) == getattr(own, name):
            changed[name] = type(data).model_fields[name].get_default(call_default_factory=True)
    if "data.drop_model_inputs" not in given:
        changed["drop_model_inputs"] = own.drop_model_inputs
    return data.model_copy(update=changed)
