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
from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.named_model import look_at_model
from vtool.config.foreign.target_pattern import put_targets
from vtool.config.foreign.theirs import (
    LEFT_OPEN,
    ForeignRecipe,
    absent_findings,
)
from vtool.config.foreign.values import check_values, hangs_on, without_guesses
from vtool.config.foreign.verl_file import VerlFile
from vtool.config.foreign.verl_script import (
    VerlScript,
    find_refused_overrides,
    put_processes,
    read_verl_script,
)
from vtool.config.foreign.verl_settings import (
    FSDP,
    LORA,
    MEGATRON,
    MEGATRON_LORA,
    RUN,
    UNREAD,
    VERL_SUCCESSORS,
    is_known_to_verl,
)
from vtool.config.origins import Origins
from vtool.config.resources import RecipeFile
from vtool.config.schema.megatron import TransformerConfig
from vtool.config.schema.profiler import OFF
from vtool.config.schema.tracking import TRACKERS
from vtool.config.yaml_positions import YamlFile, read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

_DDP, _TRANSFORMER = "engine.override_ddp_config", "engine.override_transformer_config"
_OPTIMIZER = "optim.override_optimizer_config"
_SHARED = "engine.use_distributed_optimizer"
_OF_ENGINE = ("engine.", "optim.")
_WORDS = {
    same.ours: same.theirs for table in (RUN, MEGATRON_LORA, LORA, FSDP, MEGATRON) for same in table
}


def read_verl(path: Path) -> ForeignRecipe:
    """Read a YAML file of verl's SFT trainer, or a script that starts it.

    The file is one that Hydra has composed, or has a user's own keys alone. verl's defaults are
    included.

    Raises:
        Findings: `fatal`, where it cannot be read, or is no recipe of this trainer.
    """
    if not path.is_file():
        raise Findings(
            Diagnostic(
                "unreadable-file",
                f"`{path}` is not a file",
                "give the YAML file of a run of verl's SFT trainer, or the script that starts it",
            ),
            fatal=True,
        )
    if path.suffix in (".yaml", ".yml", ".json"):
        file = read_yaml(path)
        given, places = read_given(file, whole=UNREAD)
        script = VerlScript(given, places, _choices(file))
    else:
        script = read_verl_script(path)
    given, places = script.given, script.places
    if found := next((name for name in given if name.startswith("actor_rollout_ref.")), None):
        group, place = found.partition(".")[0], places[found].value
        message = f"{path.name} has `{group}`: it is a recipe of another of verl's trainers"
        help = "give one of its SFT trainer"
        raise Findings(Diagnostic("unknown-recipe", message, help, origin=place), fatal=True)
    engine = _engine(given, script.choices)
    groups = {"engine": engine, "optim": engine} | script.choices
    checked = check_values("verl", "verl", given, places, groups)
    theirs = VerlFile(checked.given, places, refused=checked.refused)
    theirs.values["kind"] = "sft"
    theirs.defaults = dict(known_words("verl").fields)
    for group in ("engine", "optim"):
        choice = script.choices.get(group) or engine
        theirs.defaults |= known_words("verl").choices.get(f"{group}={choice}", {})
    put_processes(theirs, script)
    findings = [*_unread(theirs), *_translate(theirs, engine, script.notes)]
    findings += [*_unknown(theirs, script, engine), *find_refused_overrides(script)]
    findings += [*theirs.find_unread_warm_up(engine), *absent_findings(theirs)]
    findings = [*checked.findings, *without_guesses(iter(findings), checked.refused)]
    left = [
        name
        for name in theirs.given
        if name in checked.refused
        or (
            name not in theirs.judged
            and not name.endswith("_target_")
            and (name in theirs.absent or not theirs.is_default(name))
        )
    ]
    unread = {*theirs.absent, *checked.refused}
    unsaid = [name for name in left if name not in unread and not hangs_on(name, unread)]
    findings += _without_counterpart(theirs, unsaid)
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        theirs.names,
        tuple((name, (checked.given | checked.refused)[name]) for name in left),
        tuple(script.notes),
        refused=checked.refused,
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
            for number in re.findall(
                rf"{re.escape(ours)}(?:=| is | below |, which is )(\d+)", text or ""
            ):
                text = (text or "").replace(number, str(int(number) // scale))
        for ours, theirs in sorted(words.items(), key=lambda pair: -len(pair[0])):
            short = ours.removeprefix("engine.")
            for one in (ours, short) if "." in short else (ours,):
                text = re.sub(rf"(?<![\w.]){re.escape(one)}(?!\w)", theirs, text) if text else text
        if text and "data.val_files" in text:  # the other way to have them is ours alone
            text = text.replace(" or data.split.validation", "")
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


def _choices(file: YamlFile) -> dict[str, str]:
    """Return the choices of a defaults list, by group."""
    listed = next((value for key, value in file.root.value if key.value == "defaults"), None)
    pairs = [
        pair
        for entry in getattr(listed, "value", ())
        if isinstance(entry, yaml.MappingNode)
        for pair in entry.value
    ]
    groups = {str(key.value).removeprefix("override").strip(" /"): value for key, value in pairs}
    return {group.partition("@")[0]: str(value.value) for group, value in groups.items()}


def _engine(given: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """Return the engine that trains: `fsdp`, `megatron`, or the name of another."""
    chosen = str(given.get("engine.strategy") or choices.get("engine") or "")
    if not chosen:
        of_megatron = any(
            same.theirs in given for same in MEGATRON if same.theirs.startswith("engine.")
        )
        return "megatron" if of_megatron or "megatron" in choices.values() else "fsdp"
    return "fsdp" if chosen in ("fsdp", "fsdp2", "fsdp_turbo") else chosen


def _translate(theirs: VerlFile, engine: str, notes: list[str]) -> Iterator[Diagnostic]:
    take, put = theirs.take, theirs.put
    megatron, ours = engine == "megatron", engine in ("fsdp", "megatron")
    theirs.map(RUN if ours else map(theirs.of_its_engine, RUN))
    kind = "megatron" if megatron else "fsdp2"
    if take("engine.strategy", "fsdp") in ("fsdp", "fsdp2", "megatron"):
        put("engine.kind", kind, "engine.strategy")
    else:
        theirs.judged.discard("engine.strategy")
        theirs.values["engine"] = {"kind": kind}
    if megatron:
        yield from _megatron(theirs)
    elif ours:
        theirs.map(FSDP)
        yield from theirs.put_precision()
    if not _is_number(rank := take("model.lora_rank", 0)) or rank > 0:
        theirs.map(LORA)
    elif megatron and theirs.given.get("model.lora.rank"):
        theirs.map(MEGATRON_LORA)
    _rows(theirs)
    _model(theirs)
    pattern = theirs.given.get("model.target_modules")
    if "lora" in theirs.values and isinstance(pattern, str) and pattern != "all-linear":
        put_targets(theirs, pattern, "model.target_modules")
    yield from _lengths(theirs, notes)
    yield from _micro_batches(theirs, megatron)
    steps, epochs = take("trainer.total_training_steps"), take("trainer.total_epochs", 4)
    lengths = ("trainer.total_training_steps", "trainer.total_epochs")
    if steps or theirs.refused.keys().isdisjoint(lengths):
        put("train.steps", steps, lengths[0])
        put("train.epochs", None if steps else epochs, lengths[1])
    if ours:
        _optimizer(theirs, steps, megatron)
    mode = take("trainer.resume_mode", "auto")
    put(
        "checkpoint.resume",
        {"disable": "never", "resume_path": take("trainer.resume_from_path")}.get(str(mode))
        or "auto",
        "trainer.resume_mode",
    )
    _trackers(theirs, notes)
    _adapter(theirs)
    _limits(theirs)
    yield from _profiler(theirs)


def _optimizer(theirs: VerlFile, steps: Any, megatron: bool) -> None:
    optim, name = theirs.values.setdefault("optim", {}), "optim.lr_warmup_steps_ratio"
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
        if floor:
            theirs.put("optim.min_lr_ratio", floor / highest, "optim.min_lr")


def _trackers(theirs: VerlFile, notes: list[str]) -> None:
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
    if others := [one for one in names if one not in {"console", "file", *TRACKERS}]:
        if trackers:
            notes.append(f"trainer.logger: {', '.join(others)} is no tracker here")
        else:
            theirs.judged.discard("trainer.logger")


def _adapter(theirs: VerlFile) -> None:
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


def _limits(theirs: VerlFile) -> None:
    """Take over how many rows are read, where they are of one file."""
    data = theirs.values.get("data", {})
    for name, split in (("train_max_samples", "train"), ("val_max_samples", "validation")):
        most, sources = theirs.given.get(f"data.{name}"), data.get(split)
        if not isinstance(most, int):
            continue
        if most <= 0:
            theirs.judged.add(f"data.{name}")
        elif sources and len(sources) == 1:
            theirs.judged.add(f"data.{name}")
            sources[0]["limit"] = most


def _profiler(theirs: VerlFile) -> Iterator[Diagnostic]:
    """Translate the profiler (verl/utils/profiler/profile.py).

    It is off unless enabled; without ranks, rank 0 alone records; an unknown tool records nothing.
    """
    interval = theirs.take("trainer.profile_interval", list(OFF))
    enabled = theirs.take("profiler.enable", False)
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


def _megatron(theirs: VerlFile) -> Iterator[Diagnostic]:
    theirs.map(MEGATRON)
    theirs.values.get("optim", {}).pop(
        "betas", None
    )  # Adam has megatron-core's own, which are ours
    arrives = f"{_OPTIMIZER}.adam_beta1", f"{_OPTIMIZER}.adam_beta2"
    if not theirs.is_default("optim.betas") and not theirs.given.keys() & {*arrives}:
        yield theirs.find(
            "setting-dropped",
            "optim.betas",
            "optim.betas does not reach megatron-core's Adam, which keeps 0.9 and 0.999",
            f"set {' and '.join(arrives)}",
        )
    # verl itself puts it out then
    settings = theirs.values.get("engine", {})
    if settings.get("parallel", {}).get("tensor", 1) == 1:
        settings.get("parallel", {}).pop("sequence", None)
    for name in theirs.given:
        group, _, last = name.rpartition(".")
        if group == _DDP or (group == _TRANSFORMER and last in TransformerConfig.model_fields):
            ours = "ddp_config" if group == _DDP else "transformer_config"
            theirs.put(f"engine.{ours}.{last}", theirs.take(name), name)
    shares = settings.get("wrap_config", {}).get("use_distributed_optimizer", True)
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


def _rows(theirs: VerlFile) -> None:
    """Leave open the rows whose files are not on this machine."""
    data = theirs.values.get("data", {})
    for ours, name in (("train", "data.train_files"), ("validation", "data.val_files")):
        paths = [Path(one["path"]) for one in data.get(ours) or ()]
        if (gone := next((one for one in paths if not one.exists()), None)) is None:
            continue
        theirs.absent[name] = (f"{gone} is no file here", f"data.{ours}=[{{format: …, path: …}}]")
        theirs.judged.discard(name)
        if ours == "train":
            del data[ours], theirs.names["data.train"]
        else:
            theirs.put("data.validation", LEFT_OPEN, name)


def _model(theirs: VerlFile) -> None:
    """Translate the model's path, with the family that it is of.

    It stays theirs, where it is one of another family, or the name of one that is not here.
    """
    path = theirs.values.get("model", {}).get("path")
    if path is None:
        return
    look = look_at_model(path)
    theirs.values["model"]["path"] = look.path
    if look.family is not None:
        theirs.put("model.family", look.family, "model.path")
    if look.absent is not None:
        theirs.absent["model.path"] = look.absent
    if look.absent is not None or (look.is_known and look.family is None):
        del theirs.names["model.path"]
        theirs.judged.discard("model.path")


def _lengths(theirs: VerlFile, notes: list[str]) -> Iterator[Diagnostic]:
    """Translate the settings of lengths, and yield findings about them.

    Rows without padding are cut to `max_length`, whatever `truncation` says
    (`multiturn_sft_dataset.py`).
    """
    padding = theirs.take("data.pad_mode", "no_padding")
    cut = theirs.take("data.truncation", "error")
    if padding == "no_padding":
        theirs.put("data.on_overlong", "truncate", "data.truncation")
        if theirs.says("data.truncation") and cut not in ("right", None):
            notes.append(
                "data.on_overlong is truncate: with data.pad_mode=no_padding verl never reads"
                f" data.truncation ({cut}), and longer rows lose their end"
            )
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


def _micro_batches(theirs: VerlFile, megatron: bool) -> Iterator[Diagnostic]:
    name, budget = "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu"
    if not theirs.take("data.use_dynamic_bsz", True):
        theirs.put("data.micro_batch_size", theirs.take(name, 4), name)
        return
    if theirs.says(name):
        yield theirs.find(
            "setting-without-reader",
            name,
            f"{name} is set, but with data.use_dynamic_bsz=true verl reads"
            " data.max_token_len_per_gpu in its place",
            "leave it out, or set data.use_dynamic_bsz=false",
        )
    if megatron:
        return
    theirs.put("data.packing", "token_budget", "data.use_dynamic_bsz")
    theirs.put("data.micro_batch_tokens", theirs.take(budget, 8192), budget)


def _unread(theirs: VerlFile) -> Iterator[Diagnostic]:
    for name, why in UNREAD.items():
        if theirs.says(name) and name not in theirs.judged:
            yield theirs.find("setting-without-reader", name, f"{name}: {why}", "leave it out")


def _unknown(theirs: VerlFile, script: VerlScript, engine: str) -> Iterator[Diagnostic]:
    known = known_words("verl")
    names = sorted(known.fields.keys() | UNREAD.keys())
    engines = {choice.rpartition("=")[2] for choice in known.choices} | {"mindspeed"}
    for name in theirs.given:
        group = name.partition(".")[0]
        unlisted = engine not in engines and f"{group}." in _OF_ENGINE  # of a plug-in of verl's
        # what `+` adds to rows and the trainer is for a data set of the user's
        added = name in script.added and group in ("data", "trainer", "ray_kwargs")
        if name in UNREAD or unlisted or added:
            continue
        choice = f"{group}={script.choices.get(group)}"
        others = known.other_releases(name)
        chosen = known.choices.get(f"{group}={script.choices.get(group) or engine}", known.fields)
        if is_known_to_verl(name) or is_known_to_verl(name, chosen):
            if choice not in known.choices or is_known_to_verl(name, known.choices[choice]):
                continue
            having = [one for one in known.choices if is_known_to_verl(name, known.choices[one])]
            message = f"verl has no setting `{name}` with {choice}, and does not start with it"
            help = f"with {' or '.join(having)}, it has" if having else None
        else:
            last = name.rpartition(".")[2]
            close = VERL_SUCCESSORS.get(name) or near(name, names)
            close = close or [one for one in names if one.rpartition(".")[2] == last]
            help = did_you_mean(close)
            message = f"the SFT trainer of verl {known.release} has no setting `{name}`"
            message += f" ({others})" if others else ""
        theirs.judged.add(name)
        yield Diagnostic("unknown-key", message, help, name, theirs.places[name].key)


def _without_counterpart(theirs: VerlFile, left: Sequence[str]) -> Iterator[Diagnostic]:
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
