"""Recipes of TRL's, LLaMA-Factory's and ms-swift's SFT, translated to ours and checked.

All three take the settings of transformers' Trainer, and their own in addition. A recipe is a YAML
file, or a script that calls the trainer's command. Findings give places in it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from vtool.config.compose import Composed
from vtool.config.foreign import hf_traps
from vtool.config.foreign.given import read_given
from vtool.config.foreign.hf_script import PROCESSES_VARIABLE, read_script
from vtool.config.foreign.theirs import ForeignFile, ForeignRecipe
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.foreign.words import NARROW_ADAMW, NO_COUNTERPART, WORDS
from vtool.config.origins import Origins, ValuePosition
from vtool.config.resources import RecipeFile
from vtool.config.schema import Model
from vtool.config.schema.tracking import TRACKERS
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

# Settings whose default there is not ours, so that a recipe which leaves them out means theirs.
_DEFAULTED = (
    *("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "lr_scheduler_type"),
    *("seed", "gradient_checkpointing", "freeze_vit", "freeze_aligner", "freeze_llm"),
    *("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model", "cutoff_len"),
    *("image_max_pixels", "image_min_pixels"),
)
_ADAPTERS = ("lora_r", "lora_rank", "lora_alpha", "lora_dropout", "use_dora", "use_rslora")
_TARGETS = ("lora_target", "lora_target_modules", "target_modules")
_WHOLE = ("additional_target", "modules_to_save", "lora_modules_to_save")


def read_hf(path: Path, trainer: ForeignTrainer, *, read_environment: bool = True) -> ForeignRecipe:
    """Read a recipe of one of these trainers: a YAML file, or a script with its command.

    Raises:
        Findings: `fatal`, where it cannot be read, or is no recipe of this trainer.
    """
    if not path.is_file():
        raise Findings(
            Diagnostic(
                "unreadable-file",
                f"`{path}` is not a file",
                f"give the YAML file of a run of {trainer.title}, or the script that starts it",
            ),
            fatal=True,
        )
    if path.suffix in (".yaml", ".yml", ".json"):
        file = read_yaml(path)
        given, places = read_given(file, whole=trainer.fields, read_environment=read_environment)
        given = {name: value for name, value in given.items() if not name.startswith("ENV.")}
        processes = None
    else:
        given, places, processes = read_script(path, trainer)
    _refuse_megatron(given, places, trainer)
    unknown = list(_unknown(given, places, trainer))
    given, places = _with_current_names(given, places, trainer)
    theirs = ForeignFile(given, places)
    theirs.values["kind"] = "sft"
    translation = _Translation(theirs, trainer, path.stem, processes)
    translation.translate()
    findings = [*unknown, *hf_traps.find_traps(theirs, trainer)]
    left = tuple(
        (name, value)
        for name, value in given.items()
        if name not in theirs.judged
        and value not in (None, {}, [])
        and value != trainer.fields.get(name)
    )
    known = tuple(pair for pair in left if pair[0].partition(".")[0] in trainer.fields)
    findings += _without_counterpart(theirs, known)
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        theirs.names,
        left,
        tuple(translation.notes),
    )


@dataclass(slots=True)
class _Translation:
    """Their settings on the way to ours."""

    theirs: ForeignFile
    trainer: ForeignTrainer
    stem: str
    """The name of the file, without its end."""
    processes: int | None
    """The processes that a script starts; None where that is not said."""
    notes: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """Return the value in force of their setting: the one given, or the trainer's default."""
        given = self.theirs.given
        self.theirs.judged.add(name)
        return given[name] if name in given else self.trainer.fields.get(name)

    def translate(self) -> None:
        """Put everything that has a counterpart into our settings."""
        self._model()
        self._words()
        self._batches()
        self._length()
        self._optimizer()
        self._adapters()
        self._rows()
        self._run()

    def _words(self) -> None:
        """Convert every setting that has a counterpart by itself."""
        theirs = self.theirs
        adapters = self.trainer.adapters(theirs.given)
        for name, word in WORDS.items():
            known = name in theirs.given or (name in _DEFAULTED and name in self.trainer.fields)
            if word.convert is None or word.ours is None or not known:
                continue
            if name in (*_ADAPTERS, *_TOGETHER, self.trainer.length_word):
                continue
            self._put(word.ours, name, word.convert)
        if adapters:
            for name in _ADAPTERS:
                word = WORDS[name]
                if name in self.trainer.fields and word.ours and word.convert:
                    self._put(word.ours, name, word.convert)

    def _put(self, ours: str, name: str, convert: Callable[[Any], Any]) -> None:
        value = self.value(name)
        made = None if value is None else convert(value)
        if made is NO_COUNTERPART:
            self.theirs.judged.discard(name)
        elif made is not None:
            self.theirs.put(ours, made, name)

    def _model(self) -> None:
        name = "model" if "model" in self.trainer.fields else "model_name_or_path"
        path = self.value(name)
        if path is None:
            return
        folder = Path(str(path)).expanduser()
        try:
            kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
        except (OSError, ValueError, AttributeError):
            kind = None
        if kind in get_args(Model.model_fields["family"].annotation):
            self.theirs.put("model.path", str(folder), name)
            self.theirs.put("model.family", kind, name)
        else:
            self.theirs.judged.discard(name)
        bfloat16 = self.value("bf16")
        wanted = self.theirs.given.get("torch_dtype") or self.theirs.given.get("dtype")
        self.theirs.judged |= {"torch_dtype", "dtype", "pure_bf16"}
        if self.value("fp16") in (True, "true"):
            self.theirs.judged.discard("fp16")
        elif wanted in ("float32",) and not bfloat16:
            self.theirs.put("model.dtype", "float32", "torch_dtype")
        elif bfloat16 or wanted == "bfloat16" or (bfloat16 is None) or self.value("pure_bf16"):
            name = "bf16" if bfloat16 or not wanted else "torch_dtype"
            name = "dtype" if name == "torch_dtype" and "dtype" in self.theirs.given else name
            self.theirs.put("model.dtype", "bfloat16", name)

    def _batches(self) -> None:
        size = self.value("per_device_train_batch_size")
        passes = self.value("gradient_accumulation_steps")
        ranks = self.processes or 1
        given = "gradient_accumulation_steps" in self.theirs.given
        self.theirs.values.setdefault("data", {})["micro_batch_size"] = "auto"
        if _is_whole(size):
            self.theirs.put("data.micro_batch_size", size, "per_device_train_batch_size")
        if not _is_whole(size) or ((given or passes is not None) and not _is_whole(passes)):
            return
        if passes is None:  # ms-swift's own
            passes = max(1, math.ceil(16 / size / ranks))
        self.theirs.put(
            "data.global_batch_size", size * passes * ranks, "gradient_accumulation_steps"
        )
        if self.processes is None:
            self.notes.append(
                f"data.global_batch_size is that of one process: {size} rows × {passes} passes."
                " Multiply it by the number of processes that you ran"
            )
        else:
            self.theirs.put("launch.nproc", ranks, PROCESSES_VARIABLE)

    def _length(self) -> None:
        steps, epochs = self.value("max_steps"), self.value("num_train_epochs")
        if isinstance(steps, int) and steps > 0:
            self.theirs.put("train.steps", steps, "max_steps")
            self.theirs.put("train.epochs", None, "num_train_epochs")
        elif isinstance(epochs, int | float):
            self.theirs.put("train.epochs", epochs, "num_train_epochs")
            self.theirs.put("train.steps", None, "max_steps")

    def _optimizer(self) -> None:
        if self.trainer.name == "ms-swift" and self.theirs.given.get("learning_rate") is None:
            rate = 1e-4 if self.trainer.adapters(self.theirs.given) else 1e-5
            self.theirs.put("optim.lr", rate, "learning_rate")
        if (name := self.theirs.given.get("optim")) in NARROW_ADAMW:
            self.theirs.put("optim.states", "8bit", "optim")
            if name != "adamw_torch_8bit":
                self.notes.append(
                    f"optim.states=8bit for {name}: embeddings have states of 8 bit as well,"
                    " unlike bitsandbytes'"
                )
        betas = [self.value("adam_beta1"), self.value("adam_beta2")]
        if all(isinstance(beta, int | float) for beta in betas):
            first = {"adam_beta1", "adam_beta2"} & self.theirs.given.keys() == {"adam_beta1"}
            self.theirs.put("optim.betas", betas, "adam_beta1" if first else "adam_beta2")
        steps = self.value("warmup_steps") or 0
        share = self.value("warmup_ratio") if "warmup_ratio" in self.trainer.fields else None
        share = steps if not share and isinstance(steps, float) and 0 < steps < 1 else share
        if isinstance(share, int | float) and share:
            name = "warmup_ratio" if "warmup_ratio" in self.theirs.given else "warmup_steps"
            self.theirs.put("optim.warmup_ratio", share, name)
            self.theirs.values["optim"]["warmup_steps"] = 0
        elif _is_whole(steps) or steps == 0:
            self.theirs.put("optim.warmup_steps", steps, "warmup_steps")
        kwargs = self.theirs.take("lr_scheduler_kwargs") or {}
        if isinstance(kwargs, str):
            try:
                kwargs = json.loads(kwargs)
            except ValueError:
                kwargs = {}
        rate = self.theirs.values.get("optim", {}).get("lr")
        if isinstance(kwargs, Mapping) and kwargs.keys() & {"min_lr", "min_lr_rate"}:
            floor = kwargs.get("min_lr_rate")
            if floor is None and isinstance(rate, int | float) and rate:
                floor = float(kwargs["min_lr"]) / rate
            self.theirs.put("optim.min_lr_ratio", floor, "lr_scheduler_kwargs")
        elif kwargs:
            self.theirs.judged.discard("lr_scheduler_kwargs")
        if self.value("disable_gradient_checkpointing") is False and (
            self.trainer.name == "llamafactory"
        ):
            # it turns it on by itself
            self.theirs.put("model.gradient_checkpointing", True, "disable_gradient_checkpointing")

    def _adapters(self) -> None:
        kind = self.trainer.kind_of_training
        self.theirs.take(kind)
        if not self.trainer.adapters(self.theirs.given):
            if str(self.value(kind)) not in ("full", "False", "None"):
                self.theirs.judged.discard(kind)
            return
        for names, ours in ((_TARGETS, "lora.targets"), (_WHOLE, "lora.modules_to_save")):
            name = next((each for each in names if each in self.trainer.fields), None)
            asked = _listed(self.value(name)) if name else []
            if name and asked and not set(asked) & {"all", "all-linear"}:
                self.theirs.put(ours, asked, name)
        self.theirs.values.setdefault("lora", {})

    def _rows(self) -> None:
        for theirs, ours in (
            (("dataset", "dataset_name"), "data.train"),
            (("eval_dataset", "val_dataset"), "data.validation"),
        ):
            for name in theirs:
                if sources := self._sources(_listed(self.theirs.given.get(name))):
                    self.theirs.judged |= {name, "dataset_dir"}
                    self.theirs.put(ours, sources, name)
        for name in ("val_size", "split_dataset_ratio"):
            share = self.theirs.given.get(name)
            if isinstance(share, float) and 0 < share < 1:
                self.theirs.judged.add(name)
                self.theirs.put("data.split.validation", share, name)
        longest = self.trainer.longest(self.theirs.given)
        self.theirs.judged.add(self.trainer.length_word)
        if longest:
            self.theirs.put("data.max_length", longest, self.trainer.length_word)
            treatment = self.theirs.take("truncation_strategy") or self.trainer.overlong
            how = {"delete": "drop", "raise": "error"}.get(str(treatment), "truncate")
            self.theirs.put("data.on_overlong", how, "truncation_strategy")
        packed = [self.theirs.take(name) for name in ("packing", "neat_packing", "padding_free")]
        if any(packed) and longest:
            size = self.theirs.values.get("data", {}).pop("micro_batch_size", 1)
            size = size if _is_whole(size) else 1
            self.theirs.put("data.packing", "token_budget", "packing")
            self.theirs.put("data.micro_batch_tokens", size * longest, "packing")

    def _sources(self, names: list[str]) -> list[dict[str, Any]] | None:
        """Return the rows' files, where they are on this machine; None where one is not."""
        if self.trainer.name == "llamafactory":
            folder = Path(str(self.value("dataset_dir")))
            table = folder / "dataset_info.json"
            if not names or not table.is_file():
                return None
            return [
                {"format": "llama_factory", "path": str(table), "dataset": name} for name in names
            ]
        made = []
        for name in names:
            path, _, limit = name.partition("#")
            if not Path(path).expanduser().exists():
                return None
            entry: dict[str, Any] = {"format": self.trainer.layout, "path": path}
            made.append(entry | ({"limit": int(limit)} if limit.isdigit() else {}))
        return made or None

    def _every(self, what: str, ours: str) -> None:
        """Take over the steps between two checkpoints, or two evaluations."""
        strategy, steps = self.value(f"{what}_strategy"), self.value(f"{what}_steps")
        if what == "eval" and self.trainer.name == "ms-swift":
            strategy = self.value("save_strategy") if strategy is None else strategy
            steps = self.value("save_steps") if steps is None else steps
        elif what == "eval" and steps is None:
            steps = self.value("logging_steps")
        if strategy == "steps" and _is_whole(steps):
            self.theirs.put(ours, steps, f"{what}_steps")
        elif strategy in ("no", False):
            self.theirs.put(ours, None, f"{what}_strategy")
        else:
            self.theirs.judged -= {f"{what}_strategy", f"{what}_steps"}

    def _run(self) -> None:
        take, put = self.theirs.take, self.theirs.put
        has_rows = self.theirs.values.get("data", {}).keys() & {"validation", "split"}
        self._every("save", "checkpoint.every_steps")
        if has_rows:
            self._every("eval", "evaluation.every_steps")
        else:
            self.theirs.values.pop("evaluation", None)  # there is nothing to evaluate
            if self.theirs.given.get("eval_strategy") not in (None, "no", False):
                words = ("eval_strategy", "eval_steps", "per_device_eval_batch_size")
                self.theirs.judged -= set(words)
        trackers = [one for one in _listed(take("report_to")) if one not in ("none", "all")]
        known = [one for one in trackers if one in TRACKERS]
        if known:
            put("tracking", [{"kind": one} for one in known], "report_to")
        if len(known) < len(trackers) or "all" in _listed(self.theirs.given.get("report_to")):
            self.theirs.judged.discard("report_to")
        shared = next((name for name in ("deepspeed", "fsdp") if take(name)), None)
        if shared:
            put("engine.kind", "fsdp2", shared)
        self.theirs.values.setdefault("engine", {"kind": "ddp"})
        for name in ("assistant_only_loss", "completion_only_loss"):
            if self.theirs.given.get(name) is True:  # as here
                self.theirs.judged.add(name)
        output = str(self.theirs.given.get("output_dir") or "")
        name = str(self.theirs.given.get("run_name") or Path(output).name or self.stem)
        self.theirs.values.setdefault("run", {}).setdefault("name", name)
        self.theirs.judged |= {
            name
            for name, word in WORDS.items()
            if word.ours is None and name in self.theirs.given and name in _NOTHING_LOST
        }


_TOGETHER = (
    *("model", "model_name_or_path", "num_train_epochs", "max_steps"),
    *("warmup_ratio", "warmup_steps", "save_steps", "eval_steps"),
)
"""Words that mean something only with others."""
_NOTHING_LOST = (
    *("logging_steps", "logging_first_step", "logging_strategy", "plot_loss", "do_train", "stage"),
    *("save_safetensors", "save_only_model", "ddp_timeout", "dataset_num_proc", "template"),
    *("preprocessing_num_workers", "overwrite_cache", "overwrite_output_dir", "trust_remote_code"),
)
"""Settings without a counterpart that change no number of a run."""


def _refuse_megatron(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> None:
    """Refuse recipes for LLaMA-Factory's back end of Megatron, which has other settings."""
    found = next((name for name in given if name.endswith("_model_parallel_size")), None)
    if found is not None and found not in trainer.fields:
        raise Findings(
            Diagnostic(
                "unknown-recipe",
                f"`{found}` is a setting of Megatron's, and not of {trainer.title}'s own trainer",
                "give a recipe of its own trainer: what is behind USE_MCA is not known here",
                found,
                places[found].key,
            ),
            fatal=True,
        )


def _unknown(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> Iterator[Diagnostic]:
    for name in given:
        head = name.partition(".")[0]
        if head in trainer.fields:
            continue
        meant = did_you_mean(near(head, sorted(trainer.fields)))
        elsewhere = trainer.replaced(head)
        yield Diagnostic(
            "unknown-key",
            f"{trainer.release} has no setting `{name}`, and does not start with it",
            elsewhere or meant,
            name,
            places[name].key,
        )


def _with_current_names(
    given: Mapping[str, Any], places: Mapping[str, ValuePosition], trainer: ForeignTrainer
) -> tuple[dict[str, Any], dict[str, ValuePosition]]:
    """Return settings with words of earlier releases by those that mean the same now.

    They were found already; a recipe that is converted must not lose what they mean.
    """
    renamed = {
        name: now
        for name in given
        if (now := trainer.successor(name)) is not None and now not in given
    }
    return (
        {renamed.get(name, name): value for name, value in given.items()},
        {renamed.get(name, name): place for name, place in places.items()},
    )


def _without_counterpart(
    theirs: ForeignFile, left: tuple[tuple[str, Any], ...]
) -> list[Diagnostic]:
    if not left:
        return []
    names = ", ".join(name for name, _ in left)
    some = f"{len(left)} setting{'s have' if len(left) > 1 else ' has'} no counterpart here, or a"
    return [
        theirs.find(
            "no-counterpart",
            left[0][0],
            f"{some} value without one: {names}",
            "nothing is reported on these; `vtool explain WORD` describes each",
        )
    ]


def _listed(value: Any) -> list[str]:
    """Return a list, or text with commas, as a list."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return [part.strip() for part in str(value).split(",") if part.strip()]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
