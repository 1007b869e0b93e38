"""Settings of TRL, LLaMA-Factory and ms-swift on the way to ours."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.foreign import hf_rows
from vtool.config.foreign.deepspeed_file import DEEPSPEED_SCHEDULES, read_deepspeed
from vtool.config.foreign.hf_script import PROCESSES_VARIABLE
from vtool.config.foreign.hf_sharing import sharding_engine
from vtool.config.foreign.launch_options import AskedProcesses
from vtool.config.foreign.llamafactory_traps import FREEZES, parts_without_adapter
from vtool.config.foreign.named_model import look_at_model
from vtool.config.foreign.swift_bounds import put_bounds
from vtool.config.foreign.target_pattern import put_targets
from vtool.config.foreign.theirs import ForeignFile, listed_words
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.foreign.word import NARROW_ADAMW, NO_COUNTERPART, family_name, is_whole
from vtool.config.foreign.words import WORDS
from vtool.config.schema.tracking import TRACKERS
from vtool.words import plural

# Settings whose default there is not ours, so that a recipe which leaves them out means theirs.
_DEFAULTED = (
    *("learning_rate", "weight_decay", "adam_epsilon", "lr_scheduler_type"),
    *("seed", "gradient_checkpointing", "freeze_vit", "freeze_aligner", "freeze_llm"),
    *("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model", "cutoff_len"),
    *("image_max_pixels", "image_min_pixels"),
)
_ADAPTERS = ("lora_r", "lora_rank", "lora_alpha", "lora_dropout", "use_dora", "use_rslora")
_TARGETS = ("lora_target", "lora_target_modules", "target_modules")
_WHOLE = ("additional_target", "modules_to_save", "lora_modules_to_save")
_QUANTIZED = (
    *("load_in_4bit", "quantization_bit", "quant_bits", "quant_method", "quantization_method"),
    *("quantization_type", "bnb_4bit_quant_type", "double_quantization"),
    *("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "bnb_4bit_compute_dtype"),
)
_TOGETHER = (
    *("model", "model_name_or_path", "num_train_epochs", "max_steps", "model_type"),
    *("warmup_ratio", "warmup_steps", "save_steps", "eval_steps", "ddp_bucket_cap_mb"),
    *("metric_for_best_model", "greater_is_better"),
)
"""Words that mean something only with others."""
WITHOUT_WARM_UP = ("constant", "reduce_lr_on_plateau", "greedy")
"""Schedules for which transformers reads neither `warmup_steps` nor `warmup_ratio`."""
_HARMLESS = (
    *("logging_steps", "logging_first_step", "logging_strategy", "plot_loss", "do_train"),
    *("save_safetensors", "save_only_model", "ddp_timeout", "template"),
    *("preprocessing_num_workers", "dataset_num_proc", "overwrite_output_dir", "do_eval"),
    *("trust_remote_code", "gradient_checkpointing_kwargs", "use_reentrant_gc", "logging_dir"),
)
"""Settings that are not converted, and change no number of a run: comments, and no finding."""


@dataclass(slots=True)
class Translation:
    """Their settings on the way to ours."""

    theirs: ForeignFile
    trainer: ForeignTrainer
    stem: str
    """The name of the file, without its end."""
    ranks: AskedProcesses | None
    """The processes that a script starts; None where that is not said."""
    notes: list[str] = field(default_factory=list)

    @property
    def harmless(self) -> frozenset[str]:
        """The words of which nothing is to be said, converted or not."""
        return frozenset(_HARMLESS)

    def value(self, name: str) -> Any:
        """Return the value in force of their setting: the one given, or the trainer's default."""
        given = self.theirs.given
        self.theirs.judged.add(name)
        return given[name] if name in given else self.trainer.fields.get(name)

    def translate(self) -> None:
        """Put everything that has a counterpart into our settings."""
        self._model()
        self._words()
        if self.trainer.name == "ms-swift":
            put_bounds(self)
        if self.trainer.name == "llamafactory":
            for part in parts_without_adapter(self.theirs, self.trainer):
                self.theirs.put(f"model.freeze.{part}", True, FREEZES[part])
        self._batches()
        self._length()
        self._optimizer()
        self._warm_up()
        self._adapters()
        hf_rows.put_rows(self)
        self._run()
        hf_rows.put_evaluation(self)

    def _words(self) -> None:
        """Convert every setting that has a counterpart by itself."""
        theirs = self.theirs
        for name, word in WORDS.items():
            known = name in theirs.given or (name in _DEFAULTED and name in self.trainer.fields)
            if word.convert is None or word.ours is None or not known:
                continue
            if name in (*_ADAPTERS, *_TOGETHER, "max_length", "cutoff_len"):
                continue
            self.put(word.ours, name, word.convert)
        if self.trainer.adapters(theirs.given):
            for name in _ADAPTERS:
                word = WORDS[name]
                if name in self.trainer.fields and word.ours and word.convert:
                    self.put(word.ours, name, word.convert)
        if "data_seed" in theirs.given and "seed" not in theirs.given:
            self.put("run.seed", "data_seed", lambda value: value)
        if self.trainer.name == "llamafactory" and not self.value("gradient_checkpointing"):
            # it turns it on by itself
            recomputed = not self.value("disable_gradient_checkpointing")
            theirs.put("model.gradient_checkpointing", recomputed, "disable_gradient_checkpointing")

    def put(self, ours: str, name: str, convert: Callable[[Any], Any]) -> None:
        """Set one of our settings from one of theirs, where its value has a counterpart."""
        value = self.value(name)
        made = None if value is None else convert(value)
        if made is NO_COUNTERPART:
            self.theirs.judged.discard(name)
        elif made is not None:
            self.theirs.put(ours, made, name)

    def _model(self) -> None:
        name = "model" if "model" in self.trainer.fields else "model_name_or_path"
        path = self.value(name)
        if path is not None:
            revision = self.theirs.given.get("model_revision")
            look = look_at_model(path, revision)
            if look.family is not None:
                self.theirs.put("model.family", look.family, name)
            else:  # ms-swift's and LLaMA-Factory's words for it
                said = next((one for one in ("model_type", "template") if self._names(one)), None)
                if said is not None:
                    self.put("model.family", said, _family_of_word)
            if look.is_known and look.family is not None:
                self.theirs.judged.add("model_type")
                self.theirs.put("model.path", look.path, name)
            else:
                self.theirs.judged.discard(name)
            if look.absent is not None:
                self.theirs.absent[name] = look.absent
        self._dtype()

    def _names(self, word: str) -> bool:
        return _family_of_word(self.theirs.given.get(word)) is not NO_COUNTERPART

    def _dtype(self) -> None:
        given, put = self.theirs.given, self.theirs.put
        if self.theirs.refused.keys() & {"bf16", "fp16", "pure_bf16", "dtype", "torch_dtype"}:
            return
        half = self.value("bf16")
        name = "dtype" if "dtype" in given else "torch_dtype"
        wanted = given.get("torch_dtype") or given.get("dtype")
        self.theirs.judged |= {"torch_dtype", "dtype", "pure_bf16"}
        # TRL computes in bfloat16 unless bf16 is false, whatever its weights are
        float32 = wanted == "float32" and (self.trainer.name != "trl" or half is False)
        if self.value("fp16") in (True, "true"):
            self.theirs.judged.discard("fp16")
        elif float32 and not half:
            put("model.dtype", "float32", name)
        elif half or wanted == "bfloat16" or half is None or self.value("pure_bf16"):
            pure = given.get("pure_bf16") and not half and not wanted
            put("model.dtype", "bfloat16", "pure_bf16" if pure else name if wanted else "bf16")

    def _batches(self) -> None:
        size = self.value("per_device_train_batch_size")
        passes = self.value("gradient_accumulation_steps")
        ranks = self.ranks.all if self.ranks else 1
        given = "gradient_accumulation_steps" in self.theirs.given
        self.theirs.values.setdefault("data", {})["micro_batch_size"] = "auto"
        if self.theirs.take("auto_find_batch_size") is True:
            self.theirs.put("data.micro_batch_size", "auto", "auto_find_batch_size")
        elif is_whole(size):
            self.theirs.put("data.micro_batch_size", size, "per_device_train_batch_size")
        if not is_whole(size) or ((given or passes is not None) and not is_whole(passes)):
            return
        if passes is None:  # ms-swift's own
            passes = max(1, math.ceil(16 / size / ranks))
        self.theirs.put(
            "data.global_batch_size", size * passes * ranks, "gradient_accumulation_steps"
        )
        if passes > 1 and self.trainer.name in ("trl", "llamafactory"):
            self.notes.append(
                "The loss is a mean over the tokens of a step. There, for models with images, each"
                f" of its {passes} passes counts the same, whatever its tokens"
            )
        if self.ranks is None:
            self.notes.append(
                f"data.global_batch_size is that of one process: {plural(size, 'row')}"
                f" × {plural(passes, 'pass', 'passes')}."
                " Multiply it by the number of processes that you ran"
            )
        else:
            nodes = self.ranks.nodes
            self.theirs.put("launch.nproc", max(1, ranks // nodes), PROCESSES_VARIABLE)
            if nodes > 1:
                self.notes.append(f"It is for {nodes} machines: start it on each, by torchrun")

    def _length(self) -> None:
        steps, epochs = self.value("max_steps"), self.value("num_train_epochs")
        if isinstance(steps, int) and steps > 0:
            self.theirs.put("train.steps", steps, "max_steps")
            self.theirs.put("train.epochs", None, "num_train_epochs")
        elif isinstance(epochs, int | float) and "max_steps" not in self.theirs.refused:
            self.theirs.put("train.epochs", epochs, "num_train_epochs")
            self.theirs.put("train.steps", None, "max_steps")

    def _optimizer(self) -> None:
        if self.trainer.name == "ms-swift" and self.theirs.given.get("learning_rate") is None:
            rate = 1e-4 if self.trainer.adapters(self.theirs.given) else 1e-5
            self.theirs.put("optim.lr", rate, "learning_rate")
        largest = self.value("max_grad_norm")
        if largest is None or isinstance(largest, int | float):
            self.theirs.put("optim.clip_norm", largest or None, "max_grad_norm")
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

    def _warm_up(self) -> None:
        steps = self.value("warmup_steps") or 0
        share = self.value("warmup_ratio") if "warmup_ratio" in self.trainer.fields else None
        share = steps if not share and isinstance(steps, float) and 0 < steps < 1 else share
        schedule = self.theirs.given.get("lr_scheduler_type")  # judged with the words
        if schedule in WITHOUT_WARM_UP:
            self.theirs.values.setdefault("optim", {})["warmup_steps"] = 0
            self.theirs.judged -= {"warmup_ratio", "warmup_steps"}
        elif isinstance(share, int | float) and share:
            name = "warmup_ratio" if "warmup_ratio" in self.theirs.given else "warmup_steps"
            self.theirs.put("optim.warmup_ratio", share, name)
            self.theirs.values["optim"]["warmup_steps"] = 0
        elif is_whole(steps) or steps == 0:
            self.theirs.put("optim.warmup_steps", steps, "warmup_steps")

    def _adapters(self) -> None:
        kind = self.trainer.kind_of_training
        self.theirs.take(kind)
        if not self.trainer.adapters(self.theirs.given):
            if str(self.value(kind)) not in ("full", "False", "None"):
                self.theirs.judged.discard(kind)
            return
        for names, ours in ((_TARGETS, "lora.targets"), (_WHOLE, "lora.modules_to_save")):
            name = next((each for each in names if each in self.trainer.fields), None)
            asked = listed_words(self.value(name)) if name else []
            if name and asked and not set(asked) & {"all", "all-linear"}:
                self.theirs.put(ours, asked, name)
        self._target_pattern()
        self.theirs.values.setdefault("lora", {})
        self._quantized()
        for name in ("adapter_name_or_path", "adapters"):
            adapters = listed_words(self.theirs.given.get(name))
            if len(adapters) == 1 and Path(adapters[0]).expanduser().exists():
                self.theirs.judged.add(name)
                self.theirs.put("train.from", str(Path(adapters[0]).expanduser()), name)
            elif adapters:
                missing = [one for one in adapters if not Path(one).expanduser().exists()]
                if missing:
                    why = f"{', '.join(missing)} is no folder here"
                    self.theirs.absent[name] = (why, "train.from=FOLDER")

    def _target_pattern(self) -> None:
        """Take over the layers that a regular expression names: TRL makes one of a single name."""
        given, name = self.theirs.given, "lora_target_modules"
        pattern = given.get(name)
        if isinstance(pattern, list) and len(pattern) == 1:
            pattern = pattern[0]
        if self.trainer.name == "ms-swift":
            name, pattern = "target_regex", given.get("target_regex")
            self.theirs.judged |= {"target_modules"} if pattern else set()
        if isinstance(pattern, str) and pattern not in ("", "all-linear"):
            saved = self.theirs.values.get("lora", {}).get("modules_to_save", ())
            put_targets(self.theirs, pattern, name, saved)

    def _quantized(self) -> None:
        """Take over QLoRA: bitsandbytes' four bits for the base."""
        given, value = self.theirs.given, self.trainer.fields
        bits = next((name for name in ("quantization_bit", "quant_bits") if given.get(name)), None)
        asked = "load_in_4bit" if given.get("load_in_4bit") is True else bits
        method = given.get("quant_method") or given.get("quantization_method", "bnb")
        kinds = (given.get(name, value.get(name)) for name in ("quantization_type", _QUANTIZED[6]))
        if asked is None or (asked == bits and given[bits] != 4):
            return
        if method == "bnb" and next((kind for kind in kinds if kind), "nf4") == "nf4":
            self.theirs.judged |= set(_QUANTIZED)
            self.theirs.put("lora.base_dtype", "nf4", asked)

    def _run(self) -> None:
        take, put, given = self.theirs.take, self.theirs.put, self.theirs.given
        hf_rows.put_every(self, "save", "checkpoint.every_steps")
        trackers = [one for one in listed_words(take("report_to")) if one not in ("none", "all")]
        known: list[dict[str, Any]] = [{"kind": one} for one in trackers if one in TRACKERS]
        for one in known:
            if one["kind"] == "trackio" and (project := take("project")):
                one["project"] = project
        if known:
            put("tracking", known, "report_to")
        others = [one for one in listed_words(given.get("report_to")) if one not in TRACKERS]
        if known and others:
            self.notes.append(f"report_to: {', '.join(others)} is no tracker here")
        elif set(others) - {"none"}:
            self.theirs.judged.discard("report_to")
        self._engine()
        for name in ("assistant_only_loss", "completion_only_loss"):
            if given.get(name) is True:  # as here
                self.theirs.judged.add(name)
        output = str(given.get("output_dir") or "")
        name = str(given.get("run_name") or Path(output).name or self.stem)
        self.theirs.values.setdefault("run", {}).setdefault("name", name)
        if given.get("stage") == "sft":
            self.theirs.judged.add("stage")

    def _engine(self) -> None:
        values = self.theirs.values
        settings = read_deepspeed(self.theirs, self.trainer.name)
        scheduler = settings.get("scheduler") if settings else None
        if isinstance(scheduler, Mapping) and scheduler.get("type") in DEEPSPEED_SCHEDULES:
            self.theirs.put("optim.schedule", DEEPSPEED_SCHEDULES[scheduler["type"]], "deepspeed")
        # four bits are there on ddp alone
        four_bits = "base_dtype" in values.get("lora", {})
        for word in () if four_bits else ("deepspeed", "fsdp"):
            value = settings if word == "deepspeed" and settings else self.theirs.given.get(word)
            if value and "engine" not in values and (engine := sharding_engine(word, value)):
                self.theirs.judged.add(word)
                for name, setting in engine.items():
                    self.theirs.put(f"engine.{name}", setting, word)
        engine = values.setdefault("engine", {"kind": "ddp"})
        if engine["kind"] == "ddp" and is_whole(self.theirs.given.get("ddp_bucket_cap_mb")):
            self.put("engine.bucket_cap_mb", "ddp_bucket_cap_mb", lambda value: value)


def _family_of_word(word: Any) -> Any:
    """Return the family of a model's type, or of a template such as `qwen3_vl_nothink`."""
    return family_name(str(word).removesuffix("_nothink"))
