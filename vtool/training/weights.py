"""The weights that `train.from` names: those of a run, of a checkpoint or of an export.

Whole weights take the place of those that the model is built with, an adapter's that of a new one.
They are put into the bare model, before an engine takes it over, so that every engine begins alike.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vtool.config.schema import Lora, Model, Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import can_train, family_facts
from vtool.model_folder import MODEL_CONFIG, ModelFolder
from vtool.models.adapters import (
    CONFIG,
    WEIGHTS,
    base_of_adapter,
    is_adapter_name,
    is_for_nf4,
    saved_name,
)
from vtool.models.base_files import file_digest
from vtool.models.build import build_model
from vtool.models.mapped_weights import MappedWeights
from vtool.models.observe_model import measure_config
from vtool.models.processor import Processor
from vtool.training.checkpoint import best_before, find_damage, newest, passed_over
from vtool.training.checkpoint_files import MANIFEST, SavedTensors, paths_of_tensors
from vtool.training.digests import DigestsByFile, digest_here
from vtool.training.kept_processor import check_processor
from vtool.training.own_folder import written_settings
from vtool.training.run_folder import RunFolder, reading
from vtool.words import first_line

RULE, _SETTING = "unfit-weights", "train.from"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Weights:
    """The place of weights, and the model that they are of."""

    folder: Path
    """A checkpoint, or an export: a whole model or an adapter."""
    kind: Literal["checkpoint", "export"]
    config: Path
    """The folder with the model's config.json."""
    processor: Path
    """The folder with the tokenizer and the image processor."""
    run: Path | None = None
    """The run that wrote the checkpoint."""
    base: Path | None = None
    """For adapters: the folder of the weights beneath them."""
    warnings: tuple[Diagnostic, ...] = ()
    """Warnings about newer checkpoints, which are damaged."""

    @property
    def adapted(self) -> bool:
        """True for an adapter's."""
        return self.base is not None

    @property
    def files(self) -> list[Path]:
        """The files of a checkpoint's weights, of an adapter's, or of a model's."""
        if self.kind == "checkpoint":
            return paths_of_tensors(self.folder, "model")
        adapter = self.folder / WEIGHTS
        return [adapter] if adapter.exists() else sorted(self.folder.glob("*.safetensors"))

    def in_words(self) -> str:
        """Return the line that names the weights a run begins with."""
        what = "the adapter" if self.adapted else "the weights"
        return (
            f"begins with {what} of {self.folder}: its optimizer, schedule, rows and ledger are its"
            " own, from step 1"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the run's record of its first weights, with the digest of each file."""
        return {
            "path": str(self.folder.resolve()),
            "kind": "adapter" if self.adapted else "model",
            "files": {file.name: file_digest(file) for file in self.files},
        }


@dataclass(frozen=True, slots=True)
class _Adapter:
    """The settings of an adapter without which it is another one."""

    rank: int
    scale: float
    nf4: bool
    """True if its base was in NF4."""


def find_weights(run: Run, digests: DigestsByFile = digest_here) -> Weights | None:
    """Return the weights that a run is to begin with, which fit its model; None without any.

    Raises:
        Findings: `unfit-weights`, `no-checkpoint`, `corrupt-checkpoint`, `not-a-run`,
            `processor-changed`, `model-does-not-load`.
    """
    if run.train.source is None:
        return None
    named = Path(run.train.source)
    if (named / MANIFEST).exists() or named.name.startswith("step-"):
        found, lora = _of_checkpoint(named, run, digests)
    elif (named / "config.yaml").exists():
        newest_one, damaged = newest(named / "checkpoints", digests)
        if newest_one is None:
            none = Diagnostic("no-checkpoint", f"{named} has no checkpoint", parameter=_SETTING)
            raise Findings(damaged or [none])
        best, lost = best_before(newest_one, digests)
        if lost:
            raise Findings(lost)
        found, lora = _of_checkpoint(best or newest_one, run, digests)
        found = replace(found, warnings=passed_over(damaged))
    elif (named / CONFIG).exists():
        base = base_of_adapter(named)
        found, lora = Weights(named, "export", base, named, base=base), _lora_of(named)
    elif (named / MODEL_CONFIG).exists():
        found, lora = Weights(named, "export", named, named), None
    else:
        message = (
            f"{named} is neither a run, nor a checkpoint of one, nor an export: there is no"
            f" config.yaml, {MANIFEST}, config.json or {CONFIG}"
        )
        raise Findings(Diagnostic(RULE, message, parameter=_SETTING))
    if problems := [*_of_the_model(found, run.model), *_of_adapters(found, lora, run.lora)]:
        raise Findings(
            Diagnostic(RULE, f"{found.folder}: {problem}", help, _SETTING)
            for problem, help in problems
        )
    if found.run is not None and run.model.path is not None:
        _check_same_model(found.run, run.model.path)
    return found


def _check_same_model(run: Path, given: str) -> None:
    """Refuse the weights of a run that began with another model than `model.path` names now.

    Raises:
        Findings: `unfit-weights`.
    """
    path = written_settings(RunFolder(run).config)["model"].get("path")
    if _is_elsewhere(path, given, run):
        message = (
            f"{run} is a run with model.path {path or 'null'}, and model.path is {given}: they are"
            " two models"
        )
        help = "leave one of them out: train.from for model.path's weights, or model.path"
        raise Findings(Diagnostic(RULE, message, help, _SETTING))


def _of_checkpoint(
    checkpoint: Path, run: Run, digests: DigestsByFile
) -> tuple[Weights, _Adapter | None]:
    if problem := find_damage(checkpoint, digests):
        message = f"{checkpoint}: {problem}"
        help = "name another checkpoint, or the run's export"
        raise Findings(Diagnostic("corrupt-checkpoint", message, help, _SETTING))
    origin = RunFolder(checkpoint.parent.parent)
    with reading(origin.config):
        written = written_settings(origin.config)
        lora = written.get("lora")
        settings = Lora.model_validate_json(json.dumps(lora)) if lora else None
        path = written["model"].get("path")
    check_processor(origin)
    base = None
    if settings is not None:
        base = origin.base if origin.base.exists() else Path(str(path))
    found = Weights(checkpoint, "checkpoint", origin.processor, origin.processor, origin.path, base)
    if settings is None:
        return found, None
    return found, _Adapter(settings.rank, settings.scale, settings.base_dtype == "nf4")


def _is_elsewhere(of_run: str | None, given: str, run: Path) -> bool:
    """Return whether a run has begun with another model than `model.path` names now.

    Its own export is the same model, and so is a base that was moved, which has its name.
    """
    if of_run is None:
        return run.resolve() not in Path(given).resolve().parents
    return _model_name(Path(of_run)) != _model_name(Path(given))


def _model_name(folder: Path) -> str:
    """Return the name of a model's folder; of one in the hub's cache, whatever its revision."""
    return next((part for part in folder.parts if part.startswith("models--")), folder.name)


def _lora_of(folder: Path) -> _Adapter:
    """Return the settings of an adapter in peft's format."""
    try:
        config = ModelFolder(folder).read(CONFIG)
        by = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
        return _Adapter(config["r"], config["lora_alpha"] / by, is_for_nf4(folder))
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        message = f"{folder / CONFIG} cannot be read: {type(error).__name__} {error}"
        raise Findings(Diagnostic("model-does-not-load", message, parameter=_SETTING)) from error


_Problem = tuple[str, str | None]


def _of_the_model(found: Weights, model: Model) -> Iterator[_Problem]:
    """Yield each difference between the config of the weights and the model of the recipe."""
    from transformers import AutoConfig

    def read(folder: Path) -> Any:
        try:
            return AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # whatever its readers of a broken file raise
            message = f"{folder / MODEL_CONFIG}: {first_line(error)}"
            raise Findings(
                Diagnostic("model-does-not-load", message, parameter=_SETTING)
            ) from error

    config = read(found.config)
    if config.model_type != model.family:
        known = f"set model.family={config.model_type}" if can_train(config.model_type) else None
        yield (
            f"it is a model of type {config.model_type}, but model.family is {model.family}",
            known,
        )
        return
    own = measure_config(config)
    if model.path is not None:
        wanted, whose = measure_config(read(Path(model.path))), model.path
    else:
        wanted, whose = (
            dict(family_facts(model.family).sizes[model.size or ""]),
            f"size {model.size}",
        )
    if other := [
        f"{name} {own[name]}, not {wanted[name]}"
        for name in own
        if name in wanted and own[name] != wanted[name]
    ]:
        help = "take the recipe of that model, or weights of this one"
        yield f"it is of other sizes than {whose}: {', '.join(other)}", help


def _of_adapters(found: Weights, lora: _Adapter | None, own: Lora | None) -> Iterator[_Problem]:
    if lora is None:
        return
    if own is None:
        merged = (
            f"vtool export {found.run} --merge, and train.from={found.run}/merged"
            if found.run is not None
            else "merge it into its base with peft, and name that folder"
        )
        yield (
            "it is an adapter, and this run has no lora",
            f"train it on with lora.rank={lora.rank:g} lora.alpha="
            f"{lora.scale * lora.rank:g}; for whole weights: {merged}",
        )
        return
    for name, of, value in (("rank", lora.rank, own.rank), ("scale", lora.scale, own.scale)):
        if not math.isclose(of, value):
            alpha = lora.scale * (math.sqrt(lora.rank) if own.rslora else lora.rank)
            help = f"set lora.rank={lora.rank:g} lora.alpha={alpha:g}"
            yield f"its adapters have {name} {of:g}, and lora's have {value:g}", help
    if lora.nf4 != (own.base_dtype == "nf4"):
        trained = "a base in NF4" if lora.nf4 else "a base as its folder has it"
        yield (
            f"it was trained on {trained}, and lora.base_dtype is {own.base_dtype}",
            f"set lora.base_dtype={'nf4' if lora.nf4 else 'float32'}; or merge it: vtool export"
            " RUN --merge, and train.from=RUN/merged",
        )


def settings_of(found: Weights, model: Model) -> Model:
    """Return the model's settings; for an export, those of a model loaded from its folder."""
    if found.kind == "checkpoint":
        return model
    return model.model_copy(update={"path": str(found.folder), "init": "pretrained", "size": None})


def build_whole(
    found: Weights, model: Model, processor: Processor, folder: RunFolder, seed: int
) -> Any:
    """Build a model with whole weights that were found, all of them in memory.

    Raises:
        Findings: `unfit-weights`, `model-does-not-load`.
    """
    settings, whole = settings_of(found, model), found.kind == "export"
    built = build_model(settings, processor, folder.processor, seed, weights=whole)
    if not whole:
        _copy(map_checkpoint(found, built).tensors, built.state_dict())
    return built


def map_checkpoint(found: Weights, model: nn.Module) -> MappedWeights:
    """Map the weights of a checkpoint, which are exactly a model's.

    Args:
        model: with or without weights.

    Raises:
        Findings: `unfit-weights`, `model-does-not-load`.
    """
    weights, state = _read(found), model.state_dict()
    tied = state.keys() - {name for name, _ in model.named_parameters()}
    _check_fit(weights, state, found, may_miss=tied)
    return MappedWeights(weights, tuple(found.files))


def load_adapter(found: Weights, model: nn.Module) -> None:
    """Put an adapter's weights into those of a model that has new ones, in place.

    Raises:
        Findings: `unfit-weights`.
    """
    named = ((saved_name(name), parameter) for name, parameter in model.named_parameters())
    weights, own = _read(found), {name: one for name, one in named if is_adapter_name(name)}
    _check_fit(weights, own, found)
    _copy(weights, own)


def _read(found: Weights) -> Mapping[str, Tensor]:
    files = found.files
    try:
        return SavedTensors(files)
    except (OSError, SafetensorError) as error:
        message = f"{', '.join(map(str, files))}: {first_line(error)}"
        raise Findings(Diagnostic("model-does-not-load", message, parameter=_SETTING)) from error


def _check_fit(
    given: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    found: Weights,
    may_miss: set[str] | frozenset[str] = frozenset(),
) -> None:
    """Check that tensors are exactly those of a model, by name and shape.

    Args:
        may_miss: names of the model that are another's: tied.
    """
    problems = {
        "it lacks": sorted(own.keys() - given.keys() - may_miss),
        "the model has no": sorted(given.keys() - own.keys()),
        "of another shape": [
            f"{name} {[*given[name].shape]}, not {[*own[name].shape]}"
            for name in sorted(own.keys() & given.keys())
            if own[name].shape != given[name].shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(
            f"{what} {len(names)}: {', '.join(names[:_SHOWN])}"
            for what, names in problems.items()
            if names
        )
        help = (
            "take the settings of the run that they are of: lora.targets, lora.dora, model.freeze"
        )
        message = f"{found.folder} has not exactly this model's weights. {listed}"
        raise Findings(Diagnostic(RULE, message, help if found.adapted else None, _SETTING))


def _copy(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
