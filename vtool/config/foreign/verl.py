"""Recipes of verl's SFT trainer, translated to ours and checked by our rules.

Findings give places in verl's own file.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vtool.config.compose import Composed
from vtool.config.foreign.given import read_given
from vtool.config.foreign.named_model import look_at_model
from vtool.config.foreign.theirs import ForeignFile, ForeignRecipe, absent_findings
from vtool.config.foreign.verl_settings import (
    FSDP,
    LORA,
    MEGATRON,
    MEGATRON_LORA,
    RUN,
    UNREAD,
    VERL_NAMES,
    in_a_group,
)
from vtool.config.origins import Origins
from vtool.config.resources import RecipeFile
from vtool.config.schema.megatron import TransformerConfig
from vtool.config.schema.profiler import OFF
from vtool.config.schema.tracking import TRACKERS
from vtool.config.yaml_positions import YamlFile, read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.hub.names import hub_name

_DDP, _TRANSFORMER = "engine.override_ddp_config", "engine.override_transformer_config"
_SHARED = "engine.use_distributed_optimizer"
_WORDS = {
    same.ours: same.theirs for table in (RUN, MEGATRON_LORA, LORA, FSDP, MEGATRON) for same in table
}


def read_verl(path: Path, *, read_environment: bool = True) -> ForeignRecipe:
    """Read a YAML file of verl's SFT trainer, composed by Hydra or with a user's own keys alone.

    verl's defaults are included.

    Raises:
        Findings: `fatal`, where it cannot be read, or is no recipe of this trainer.
    """
    if not path.is_file():
        raise Findings(
            Diagnostic(
                "unreadable-file",
                f"`{path}` is not a file",
                "give the YAML file of a run of verl's SFT trainer",
            ),
            fatal=True,
        )
    file = read_yaml(path)
    given, places = read_given(file, whole=UNREAD, read_environment=read_environment)
    if found := next((name for name in given if name.startswith("actor_rollout_ref.")), None):
        raise Findings(
            Diagnostic(
                "unknown-recipe",
                (
                    f"{file.name} has `{found.partition('.')[0]}`: it is a recipe of another of"
                    " verl's trainers"
                ),
                "give one of its SFT trainer",
                origin=places[found].value,
            ),
            fatal=True,
        )
    theirs = ForeignFile(given, places)
    theirs.values["kind"] = "sft"
    findings = [*_unread(theirs), *_translate(theirs, _is_megatron(file, given), read_environment)]
    findings += [*_unknown(theirs), *absent_findings(theirs)]
    left = [
        name
        for name in theirs.given
        if name not in theirs.judged and not name.endswith("_target_") and theirs.given[name] != {}
    ]
    unsaid = [name for name in left if name not in theirs.absent]
    findings += _without_counterpart(theirs, unsaid)
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        theirs.names,
        tuple((name, theirs.given[name]) for name in left),
    )


def in_their_words(
    finding: Diagnostic,
    names: Mapping[str, str],
    *,
    of_verl: bool = True,
    scales: Mapping[str, int] | None = None,
) -> Diagnostic:
    """Return a finding of our rules in the names of their settings, and in their units."""
    words = (_WORDS if of_verl else {}) | dict(names)

    def worded(text: str | None) -> str | None:
        for ours, scale in (scales or {}).items():
            for number in re.findall(rf"{re.escape(ours)}(?:=| is | below )(\d+)", text or ""):
                text = (text or "").replace(number, str(int(number) // scale))
        for ours, theirs in sorted(words.items(), key=lambda pair: -len(pair[0])):
            short = ours.removeprefix("engine.")
            for one in (ours, short) if "." in short else (ours,):
                text = re.sub(rf"(?<![\w.]){re.escape(one)}(?!\w)", theirs, text) if text else text
        return re.sub(r"(?<![\w.])(engine\.)?ddp_config\b", _DDP, text) if text else text

    help = finding.help
    if finding.parameter == "engine.ddp_config.use_distributed_optimizer":
        help = (
            f"say the same in both: in verl {_DDP} wins, and in the DDP alone, while the optimizer"
            f" follows {_SHARED}"
        )
    return replace(
        finding,
        message=worded(finding.message) or "",
        help=worded(help),
        parameter=names.get(finding.parameter or "", finding.parameter),
    )


def _is_megatron(file: YamlFile, given: Mapping[str, Any]) -> bool:
    """Return whether the recipe trains on megatron, by `strategy`, its defaults or its settings."""
    if strategy := given.get("engine.strategy"):
        return str(strategy) == "megatron"
    listed = next((value for key, value in file.root.value if key.value == "defaults"), None)
    chosen = [
        value.value
        for entry in getattr(listed, "value", ())
        if isinstance(entry, yaml.MappingNode)
        for _, value in entry.value
    ]
    return "megatron" in chosen or any(
        same.theirs in given for same in MEGATRON if same.theirs.startswith("engine.")
    )


def _translate(theirs: ForeignFile, megatron: bool, trusted: bool) -> Iterator[Diagnostic]:
    take, put = theirs.take, theirs.put
    theirs.map(RUN)
    put("engine.kind", "megatron" if megatron else "fsdp2", "engine.strategy")
    if take("engine.strategy", "fsdp") not in ("fsdp", "fsdp2", "megatron"):
        theirs.judged.discard("engine.strategy")
    if megatron:
        yield from _megatron(theirs)
    else:
        theirs.map(FSDP)
    if not _is_number(rank := take("model.lora_rank", 0)) or rank > 0:
        theirs.map(LORA)
    elif megatron and theirs.given.get("model.lora.rank"):
        theirs.map(MEGATRON_LORA)
    _model(theirs, trusted)
    yield from _lengths(theirs)
    yield from _micro_batches(theirs, megatron)
    steps, epochs = take("trainer.total_training_steps"), take("trainer.total_epochs", 4)
    put("train.steps", steps, "trainer.total_training_steps")
    put("train.epochs", None if steps else epochs, "trainer.total_epochs")
    _optimizer(theirs, steps, megatron)
    mode = take("trainer.resume_mode", "auto")
    put(
        "checkpoint.resume",
        {"disable": "never", "resume_path": take("trainer.resume_from_path")}.get(str(mode))
        or "auto",
        "trainer.resume_mode",
    )
    _trackers(theirs)
    _adapter(theirs)
    _limits(theirs)
    yield from _profiler(theirs)


def _optimizer(theirs: ForeignFile, steps: Any, megatron: bool) -> None:
    optim, name = theirs.values["optim"], "optim.lr_warmup_steps_ratio"
    ratio = theirs.take(name, 0.0)
    if ratio and "warmup_steps" not in optim:
        if not _is_number(ratio):
            theirs.judged.discard(name)
        elif _is_number(steps):
            theirs.put("optim.warmup_steps", int(ratio * steps), name)
        else:
            theirs.put("optim.warmup_ratio", ratio, name)
    if str(theirs.given.get("optim.optimizer")).lower() == "adamw8bit":
        theirs.put("optim.states", "8bit", "optim.optimizer")
    style = theirs.given.get("optim.warmup_style")
    if not megatron and style in ("constant", "cosine"):  # verl's own name of earlier releases
        theirs.judged.add("optim.warmup_style")
        theirs.put("optim.schedule", style, "optim.warmup_style")
    floor, highest = theirs.given.get("optim.min_lr"), optim.get("lr")
    if megatron and _is_number(floor) and _is_number(highest) and highest > 0:
        theirs.judged.add("optim.min_lr")
        theirs.put("optim.min_lr_ratio", floor / highest, "optim.min_lr")


def _trackers(theirs: ForeignFile) -> None:
    """Translate `trainer.logger`: what prints is of no concern here."""
    asked = theirs.take("trainer.logger", [])
    names = [str(one) for one in asked] if isinstance(asked, list) else [str(asked)]
    trackers: list[dict[str, Any]] = [{"kind": name} for name in names if name in TRACKERS]
    project = theirs.given.get("trainer.project_name")
    for tracker in trackers:
        named = {"wandb": "project", "trackio": "project", "mlflow": "experiment"}
        if project is not None and (setting := named.get(tracker["kind"])):
            theirs.judged.add("trainer.project_name")
            tracker[setting] = str(project)
    if trackers:
        theirs.put("tracking", trackers, "trainer.logger")
    if set(names) - {"console", "file", *TRACKERS}:
        theirs.judged.discard("trainer.logger")


def _adapter(theirs: ForeignFile) -> None:
    name = "model.lora_adapter_path"
    path = theirs.given.get(name)
    if path is None or not theirs.values.get("lora"):
        return
    folder = Path(str(path)).expanduser()
    if folder.exists():
        theirs.judged.add(name)
        theirs.put("train.from", str(folder), name)
    else:
        theirs.absent[name] = (f"{path} is no folder here", "train.from=FOLDER")


def _limits(theirs: ForeignFile) -> None:
    """Take over how many rows are read, where they are of one file."""
    for name, split in (("train_max_samples", "train"), ("val_max_samples", "validation")):
        most, sources = theirs.given.get(f"data.{name}"), theirs.values["data"].get(split)
        if not isinstance(most, int):
            continue
        if most <= 0:
            theirs.judged.add(f"data.{name}")
        elif sources and len(sources) == 1:
            theirs.judged.add(f"data.{name}")
            sources[0]["limit"] = most


def _profiler(theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Translate the profiler (verl/utils/profiler/profile.py).

    It is off unless enabled; without ranks, rank 0 alone records; an unknown tool records nothing.
    """
    interval, enabled = (
        theirs.take("trainer.profile_interval", list(OFF)),
        theirs.take("profiler.enable", False),
    )
    if not enabled:
        if interval != list(OFF):
            yield theirs.find(
                "nothing-profiled",
                "trainer.profile_interval",
                f"trainer.profile_interval is {interval}, but profiler.enable is false: verl"
                " records nothing, and says nothing",
                "profiler.enable: true",
            )
        return
    tool = theirs.take("profiler.tool", "torch")
    theirs.put("profiler.tool", "memory" if tool == "torch_memory" else tool, "profiler.tool")
    theirs.put("profiler.profile_interval", interval, "trainer.profile_interval")
    theirs.put("profiler.warmup", 0, "trainer.profile_interval")  # it has none
    everyone, ranks = theirs.take("profiler.all_ranks", False), theirs.take("profiler.ranks", [])
    theirs.put("profiler.ranks", None if everyone else ranks or [0], "profiler.ranks")


def _megatron(theirs: ForeignFile) -> Iterator[Diagnostic]:
    theirs.map(MEGATRON)
    # verl itself puts it out then
    if theirs.values["engine"].get("parallel", {}).get("tensor", 1) == 1:
        theirs.values["engine"].get("parallel", {}).pop("sequence", None)
    for name in theirs.given:
        group, _, last = name.rpartition(".")
        if group == _DDP or (group == _TRANSFORMER and last in TransformerConfig.model_fields):
            ours = "ddp_config" if group == _DDP else "transformer_config"
            theirs.put(f"engine.{ours}.{last}", theirs.take(name), name)
    shares = theirs.values["engine"]["wrap_config"]["use_distributed_optimizer"]
    bridged = theirs.take("engine.use_mbridge", True) and theirs.take(
        "engine.vanilla_mbridge", True
    )
    if not shares and bridged and f"{_DDP}.use_distributed_optimizer" not in theirs.given:
        yield theirs.find(
            "setting-dropped",
            _SHARED,
            f"{_SHARED} is false, and before verl#5775 it does not reach mbridge, whose own"
            " default is true: the weights of the ranks drift apart, and no error is raised",
            f"write {_DDP}.use_distributed_optimizer: false as well",
        )


def _model(theirs: ForeignFile, trusted: bool) -> None:
    """Translate the model's path, with the family that it is of.

    It stays theirs, where it is one of another family, or the name of one that is not here.
    """
    path = theirs.values.get("model", {}).get("path")
    if path is None:
        return
    look = look_at_model(path, trusted=trusted)
    theirs.values["model"]["path"] = look.path
    if look.family is not None:
        theirs.put("model.family", look.family, "model.path")
    on_hub = look.absent is not None and hub_name(str(path)) is not None
    if on_hub and look.absent is not None:
        theirs.absent["model.path"] = look.absent
    if on_hub or (look.is_known and look.family is None):
        del theirs.names["model.path"]
        theirs.judged.discard("model.path")


def _lengths(theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Translate the settings of lengths, and yield findings about them.

    Rows without padding are cut to `max_length`, whatever `truncation` says
    (`multiturn_sft_dataset.py`).
    """
    padding, cut = (
        theirs.take("data.pad_mode", "no_padding"),
        theirs.take("data.truncation", "error"),
    )
    if padding == "no_padding":
        theirs.put("data.on_overlong", "truncate", "data.truncation")
        if "data.truncation" in theirs.given and cut != "right":
            yield theirs.find(
                "setting-without-reader",
                "data.truncation",
                f"data.truncation is {cut}, and with data.pad_mode=no_padding verl never reads it:"
                " longer rows silently lose their end",
                "filter the rows beforehand, or set data.pad_mode=right; here"
                " data.on_overlong=error names them",
            )
    elif cut in ("error", "right"):
        theirs.put("data.on_overlong", "truncate" if cut == "right" else "error", "data.truncation")
    else:
        theirs.judged.discard("data.truncation")


def _micro_batches(theirs: ForeignFile, megatron: bool) -> Iterator[Diagnostic]:
    name, budget = "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu"
    if not theirs.take("data.use_dynamic_bsz", True):
        theirs.put("data.micro_batch_size", theirs.take(name, 4), name)
        return
    if name in theirs.given:
        yield theirs.find(
            "setting-without-reader",
            name,
            f"{name} is set, but with data.use_dynamic_bsz=true verl reads"
            " data.max_token_len_per_gpu in its place",
            "leave it out, or set data.use_dynamic_bsz=false",
        )
    if megatron or not {"data.use_dynamic_bsz", budget} & theirs.given.keys():
        return
    theirs.put("data.packing", "token_budget", "data.use_dynamic_bsz")
    theirs.put("data.micro_batch_tokens", theirs.take(budget, 8192), budget)


def _unread(theirs: ForeignFile) -> Iterator[Diagnostic]:
    for name, why in UNREAD.items():
        if name in theirs.given:
            yield theirs.find("setting-without-reader", name, f"{name}: {why}", "leave it out")


def _unknown(theirs: ForeignFile) -> Iterator[Diagnostic]:
    for name in theirs.given:
        if (
            name in VERL_NAMES
            or in_a_group(name)
            or name in (_DDP, _TRANSFORMER)
            or name.startswith((f"{_DDP}.", f"{_TRANSFORMER}."))
        ):
            continue
        theirs.judged.add(name)
        close = near(name, sorted(VERL_NAMES)) or [
            one for one in sorted(VERL_NAMES) if one.rpartition(".")[2] == name.rpartition(".")[2]
        ]
        yield Diagnostic(
            "unknown-key",
            f"verl's SFT trainer has no setting `{name}`",
            did_you_mean(close),
            name,
            theirs.places[name].key,
        )


def _without_counterpart(theirs: ForeignFile, left: Sequence[str]) -> Iterator[Diagnostic]:
    if left:
        yield theirs.find(
            "no-counterpart",
            left[0],
            f"{len(left)} setting{'s have' if len(left) > 1 else ' has'} no counterpart here, or a"
            f" value without one: {', '.join(left)}",
            "nothing is reported on these",
        )


def _is_number(value: Any) -> bool:
    """Return True if a value of a YAML file is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
