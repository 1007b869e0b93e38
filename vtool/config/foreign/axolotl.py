"""Recipes of axolotl's SFT, translated to ours and checked by our rules.

Read from the code of axolotl 0.21. Findings give places in axolotl's own file.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.config.compose import Composed
from vtool.config.foreign.axolotl_traps import find_axolotl_traps
from vtool.config.foreign.deepspeed_file import DEEPSPEED_SCHEDULES, read_deepspeed
from vtool.config.foreign.given import read_given
from vtool.config.foreign.hf_sharing import sharding_engine
from vtool.config.foreign.hf_translation import WITHOUT_WARM_UP
from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.named_model import look_at_model
from vtool.config.foreign.target_pattern import put_targets
from vtool.config.foreign.theirs import (
    LEFT_OPEN,
    ForeignFile,
    ForeignRecipe,
    absent_findings,
    listed_words,
)
from vtool.config.foreign.values import check_values, hangs_on, without_guesses
from vtool.config.foreign.verl_settings import SameSetting
from vtool.config.foreign.word import (
    NARROW_ADAMW,
    NO_COUNTERPART,
    adamw_name,
    attention_name,
    is_whole,
    positive_number,
    schedule_name,
)
from vtool.config.origins import Origins
from vtool.config.resources import RecipeFile
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.words import plural


def _share(value: Any) -> Any:
    """Return a share below 1; a rate that never falls has no counterpart."""
    return value if isinstance(value, int | float) and 0 <= value < 1 else NO_COUNTERPART


_GRADIENTS = (True, "true", "offload", "offload_disk")
_SAME = (
    SameSetting("model_revision", "model.revision"),
    SameSetting("revision_of_model", "model.revision"),
    SameSetting("learning_rate", "optim.lr"),
    SameSetting("weight_decay", "optim.weight_decay", default=0.0),
    SameSetting("optimizer", "optim.name", adamw_name, default="adamw_torch_fused"),
    SameSetting("lr_scheduler", "optim.schedule", schedule_name, default="cosine"),
    SameSetting("cosine_min_lr_ratio", "optim.min_lr_ratio", _share),
    SameSetting("adam_epsilon", "optim.eps"),
    SameSetting("max_grad_norm", "optim.clip_norm"),
    SameSetting("seed", "run.seed", default=42),
    SameSetting("output_dir", "run.dir", default="./model-out"),
    SameSetting("save_total_limit", "checkpoint.keep_last", lambda value: value or 4, default=4),
    SameSetting("dataloader_num_workers", "data.workers"),
    SameSetting(
        "gradient_checkpointing",
        "model.gradient_checkpointing",
        lambda value: value in _GRADIENTS,
        default=False,
    ),
)
_LORA = (
    SameSetting("lora_r", "lora.rank"),
    SameSetting("lora_alpha", "lora.alpha"),
    SameSetting("lora_dropout", "lora.dropout", default=0.0),
    SameSetting("peft_use_dora", "lora.dora"),
    SameSetting("peft_use_rslora", "lora.rslora"),
)
_LAYOUTS = {"chat_template": "messages", "alpaca": "alpaca", "sharegpt": "llava"}
"""By axolotl's kind of rows, ours."""
_HARMLESS = (
    *("strict", "plugins", "processor_type", "tokenizer_type", "logging_steps", "debug"),
    *("dataset_prepared_path", "dataset_num_proc", "dataset_processes", "shuffle_merged_datasets"),
    *("skip_prepare_dataset", "remove_unused_columns", "save_safetensors", "special_tokens"),
    *("pad_to_sequence_len", "trust_remote_code", "gradient_checkpointing_kwargs", "tf32"),
    *("chat_template", "model_type", "type_of_model", "resize_token_embeddings_to_32x"),
    *("wandb_entity", "wandb_watch", "wandb_log_model", "wandb_run_id", "save_only_model"),
    *("auto_resume_from_checkpoints", "hub_model_id", "hub_strategy", "eval_sample_packing"),
    *("early_stopping_patience", "loss_watchdog_threshold", "loss_watchdog_patience"),
)
"""Settings that are not converted, and change no number of a run: comments, and no finding."""


def read_axolotl(path: Path) -> ForeignRecipe:
    """Read a YAML file of axolotl's.

    Raises:
        Findings: `fatal`, where it cannot be read.
    """
    if not path.is_file():
        message = f"`{path}` is not a file"
        raise Findings(
            Diagnostic("unreadable-file", message, "give the YAML file of a run of axolotl"),
            fatal=True,
        )
    known = known_words("axolotl")
    words = known.fields.keys() | {word for names in known.plugins.values() for word in names}
    given, places = read_given(read_yaml(path), whole=words)
    if not given.keys() & {"base_model", "datasets", "pretraining_dataset"}:
        message = f"{path.name} names neither a base_model nor datasets: it is no recipe of axolotl"
        raise Findings(Diagnostic("unknown-recipe", message), fatal=True)
    checked = check_values("axolotl", "axolotl", given, places)
    given = checked.given
    theirs = ForeignFile(given, places, path.parent, checked.refused)
    theirs.values["kind"] = "sft"
    notes = list(_translate(theirs, path.stem))
    traps = without_guesses(find_axolotl_traps(theirs), checked.refused)
    findings = [*_unread(theirs), *checked.findings, *traps, *absent_findings(theirs)]
    left = tuple(
        (name, value)
        for name, value in (given | checked.refused).items()
        if name in checked.refused
        or (hangs_on(name, checked.refused) and name not in theirs.names.values())
        or (
            name not in theirs.judged
            and value not in (None, {}, [], False)
            and value != known.fields.get(name)
        )
    )
    said = {*theirs.absent, *_HARMLESS, *checked.refused}
    unread = {*checked.refused, *theirs.absent}
    unsaid = [name for name, _ in left if name not in said and not hangs_on(name, unread)]
    if unsaid:
        some = f"{len(unsaid)} setting{'s have' if len(unsaid) > 1 else ' has'}"
        findings.append(
            theirs.find(
                "no-counterpart",
                unsaid[0],
                f"{some} no counterpart here, or a value without one: {', '.join(unsaid)}",
                "nothing is reported on these; `vtool explain WORD` describes each",
            )
        )
    return ForeignRecipe(
        Composed(RecipeFile(path), theirs.values, Origins(theirs.origins)),
        tuple(findings),
        theirs.names,
        left,
        tuple(notes),
        refused=checked.refused,
    )


def _translate(theirs: ForeignFile, stem: str) -> Iterator[str]:
    """Put what has a counterpart into our settings, and yield notes about the recipe."""
    theirs.map(_SAME)
    _model(theirs)
    _optimizer(theirs)
    yield from _batches(theirs)
    steps, epochs = theirs.take("max_steps"), theirs.take("num_epochs", 1.0)
    by_steps = is_whole(steps)
    if by_steps or theirs.refused.keys().isdisjoint(("max_steps", "num_epochs")):
        theirs.put("train.steps", steps if by_steps else None, "max_steps")
        theirs.put("train.epochs", None if by_steps else epochs, "num_epochs")
    _adapters(theirs)
    yield from _rows(theirs)
    _run(theirs, stem)


def _model(theirs: ForeignFile) -> None:
    path, put = theirs.given.get("base_model"), theirs.put
    if path is not None:
        look = look_at_model(path, theirs.given.get("model_revision"))
        if look.family is not None:
            put("model.family", look.family, "base_model")
        if look.is_known and look.family is not None:
            theirs.judged.add("base_model")
            put("model.path", look.path, "base_model")
        else:
            theirs.judged.discard("base_model")
        if look.absent is not None:
            theirs.absent["base_model"] = look.absent
    half, other = theirs.take("bf16", "auto"), theirs.given.get("fp16")
    if str(half).lower() in ("true", "auto", "full") and not other:
        put("model.dtype", "bfloat16", "bf16")
    elif not half and not other and not theirs.given.get("bfloat16"):
        put("model.dtype", "float32", "bf16")
    kernels = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa"}
    kernels["eager_attention"] = "eager"
    chosen = next((word for word in kernels if theirs.given.get(word) is True), None)
    theirs.judged |= {word for word in kernels if not theirs.given.get(word)}
    if chosen:
        theirs.judged.add(chosen)
        put("model.attention", kernels[chosen], chosen)
    theirs.map([SameSetting("attn_implementation", "model.attention", attention_name)])
    if theirs.take("freeze_mm_modules") is True:
        put("model.freeze.vision", True, "freeze_mm_modules")
        put("model.freeze.projector", True, "freeze_mm_modules")


def _optimizer(theirs: ForeignFile) -> None:
    name, put = theirs.given.get("optimizer"), theirs.put
    if name in NARROW_ADAMW:
        put("optim.states", "8bit", "optimizer")
    betas = [theirs.take("adam_beta1", 0.9), theirs.take("adam_beta2", 0.999)]
    if any(theirs.given.get(word) is not None for word in ("adam_beta1", "adam_beta2")):
        put("optim.betas", betas, "adam_beta2" if "adam_beta2" in theirs.given else "adam_beta1")
    steps, share = theirs.take("warmup_steps"), theirs.take("warmup_ratio")
    if theirs.given.get("lr_scheduler") in WITHOUT_WARM_UP:
        theirs.values.setdefault("optim", {})["warmup_steps"] = 0
    elif isinstance(steps, int):
        put("optim.warmup_steps", 2 if steps == 1 else steps, "warmup_steps")
    elif isinstance(share, int | float) or share is None:
        put("optim.warmup_ratio", 0.03 if share is None else share, "warmup_ratio")


def _batches(theirs: ForeignFile) -> Iterator[str]:
    size = theirs.take("micro_batch_size", 1)
    passes = theirs.take("gradient_accumulation_steps")
    whole = theirs.given.get("batch_size")
    if passes is None and is_whole(whole) and is_whole(size):
        theirs.judged.add("batch_size")
        passes = whole // size
    passes = 1 if passes is None else passes
    theirs.values.setdefault("data", {})["micro_batch_size"] = "auto"
    if theirs.given.get("auto_find_batch_size") is True:
        theirs.put("data.micro_batch_size", "auto", "auto_find_batch_size")
    elif is_whole(size):
        theirs.put("data.micro_batch_size", size, "micro_batch_size")
    if is_whole(size) and is_whole(passes):
        theirs.put("data.global_batch_size", size * passes, "gradient_accumulation_steps")
        yield (
            f"data.global_batch_size is that of one process: {plural(size, 'row')}"
            f" × {plural(passes, 'pass', 'passes')}."
            " Multiply it by the number of processes that you ran"
        )


def _adapters(theirs: ForeignFile) -> None:
    kind, put, given = theirs.take("adapter"), theirs.put, theirs.given
    if kind not in ("lora", "qlora"):
        if kind:
            theirs.judged.discard("adapter")
        return
    theirs.values.setdefault("lora", {})
    theirs.map(_LORA)
    targets = given.get("lora_target_modules")
    saved = given.get("lora_modules_to_save")
    if theirs.take("lora_target_linear") is True:
        pass  # all linear layers, as here
    elif isinstance(targets, list):
        theirs.judged.add("lora_target_modules")
        put("lora.targets", targets, "lora_target_modules")
    elif isinstance(targets, str) and targets not in ("all-linear", ""):
        put_targets(theirs, targets, "lora_target_modules", listed_words(saved))
    if isinstance(saved, list) and saved:
        theirs.judged.add("lora_modules_to_save")
        put("lora.modules_to_save", saved, "lora_modules_to_save")
    if kind == "qlora" and given.get("load_in_4bit") is not False:
        theirs.judged.add("load_in_4bit")
        put("lora.base_dtype", "nf4", "load_in_4bit" if "load_in_4bit" in given else "adapter")
    if (adapter := given.get("lora_model_dir")) is not None:
        folder = Path(str(adapter)).expanduser()
        if folder.exists():
            theirs.judged.add("lora_model_dir")
            put("train.from", str(folder), "lora_model_dir")
        else:
            why = f"{adapter} is no folder here"
            theirs.absent["lora_model_dir"] = (why, "train.from=FOLDER")


def _rows(theirs: ForeignFile) -> Iterator[str]:
    put, given = theirs.put, theirs.given
    for word, ours in (("datasets", "data.train"), ("test_datasets", "data.validation")):
        listed = given.get(word)
        if not isinstance(listed, list) or not listed:
            continue
        made = [_source(one) for one in listed]
        sources = [one for one in made if one is not None]
        if len(sources) == len(listed):
            theirs.judged.add(word)
            put(ours, sources, word)
            continue
        gone = next(
            str(entry.get("path")) if isinstance(entry, Mapping) else str(entry)
            for entry, one in zip(listed, made, strict=True)
            if one is None
        )
        why = f"{gone} is no file or folder here"
        theirs.absent[word] = (why, f"{ours}=[{{format: …, path: …}}]")
        if ours == "data.validation":
            put(ours, LEFT_OPEN, word)
    share = given.get("val_set_size")
    if isinstance(share, float) and 0 < share < 1:
        theirs.judged.add("val_set_size")
        put("data.split.validation", share, "val_set_size")
    longest = theirs.take("sequence_len", 512)
    if given.get("skip_prepare_dataset") is True:
        yield "axolotl reads no sequence_len where skip_prepare_dataset is true: no row is left out"
        return
    put("data.max_length", longest, "sequence_len")
    treatment = theirs.take("excess_length_strategy", "drop")
    overlong = {"drop": "drop", "truncate": "truncate", "raise": "error"}.get(str(treatment))
    if overlong:
        put("data.on_overlong", overlong, "excess_length_strategy")
    if theirs.take("sample_packing") is True and is_whole(longest):
        size = theirs.values["data"].pop("micro_batch_size", 1)
        theirs.origins.pop(("data", "micro_batch_size"), None)
        put("data.packing", "token_budget", "sample_packing")
        size = size if is_whole(size) else 1
        put("data.micro_batch_tokens", size * longest, "sample_packing")


def _source(entry: Any) -> dict[str, Any] | None:
    """Return an entry of `data.train`, where its rows are on this machine."""
    if not isinstance(entry, Mapping) or entry.get("path") is None:
        return None
    named = entry.get("data_files")
    names = named if isinstance(named, list) else [named or entry["path"]]
    path = Path(str(names[0])).expanduser()
    if len(names) > 1 or not path.exists():
        return None
    return {"format": _LAYOUTS.get(str(entry.get("type")), "auto"), "path": str(path)}


def _run(theirs: ForeignFile, stem: str) -> None:
    put, given = theirs.put, theirs.given
    has_rows = theirs.values.get("data", {}).keys() & {"validation", "split"}
    theirs.map([SameSetting("save_steps", "checkpoint.every_steps", _whole_steps)])
    if has_rows:
        theirs.map(
            [
                SameSetting("eval_steps", "evaluation.every_steps", _whole_steps),
                SameSetting("eval_batch_size", "evaluation.batch_size", positive_number),
            ]
        )
    if given.get("save_strategy") in ("steps", "epoch", "no"):
        theirs.judged.add("save_strategy")
    trackers: list[dict[str, Any]] = []
    if project := theirs.take("wandb_project"):
        trackers.append({"kind": "wandb", "project": str(project)})
    if theirs.take("use_tensorboard") is True:
        trackers.append({"kind": "tensorboard"})
    if theirs.take("use_mlflow") is True or given.get("mlflow_experiment_name"):
        experiment = theirs.take("mlflow_experiment_name")
        trackers.append(
            {"kind": "mlflow"} | ({"experiment": str(experiment)} if experiment else {})
        )
    if trackers:
        word = next(
            one
            for one in ("wandb_project", "use_tensorboard", "use_mlflow", "mlflow_experiment_name")
            if given.get(one)
        )
        put("tracking", trackers, word)
    theirs.values.setdefault("run", {})["name"] = stem
    theirs.map(
        [
            SameSetting("output_dir", "run.name", lambda value: Path(str(value)).name or None),
            SameSetting("wandb_name", "run.name", lambda value: str(value) or None),
        ]
    )
    engine, settings = None, read_deepspeed(theirs, "axolotl") or {}
    scheduler = settings.get("scheduler")
    if isinstance(scheduler, Mapping) and scheduler.get("type") in DEEPSPEED_SCHEDULES:
        put("optim.schedule", DEEPSPEED_SCHEDULES[scheduler["type"]], "deepspeed")
    if "base_dtype" not in theirs.values.get("lora", {}):  # four bits are there on ddp alone
        if given.get("deepspeed"):
            theirs.judged.add("deepspeed")
            engine = sharding_engine("deepspeed", settings or given["deepspeed"])
        elif given.get("fsdp_config") and str(given.get("fsdp_version")) == "2":
            theirs.judged |= {"fsdp_version"}
            engine = {"kind": "fsdp2"}
    theirs.values["engine"] = {"kind": "ddp"}
    for setting, value in (engine or {}).items():
        put(f"engine.{setting}", value, "deepspeed" if given.get("deepspeed") else "fsdp_config")


def _unread(theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Yield findings on settings that nothing reads: axolotl drops what it does not know."""
    known = known_words("axolotl")
    listed = listed_words(theirs.given.get("plugins"))
    foreign = [one for one in listed if not one.startswith("axolotl.integrations.")]
    of_plugins = {word: name for name, words in known.plugins.items() for word in words}
    names = sorted(known.fields.keys() | of_plugins.keys())
    for name, value in theirs.given.items():
        head = name.partition(".")[0]
        if head in known.fields or value in (None, [], {}):
            continue
        plugin = of_plugins.get(head)
        if plugin and not any(f".{plugin}." in f"{one}." for one in listed) and not foreign:
            yield theirs.find(
                "setting-without-reader",
                name,
                f"{name} is read by the plug-in axolotl.integrations.{plugin} alone, which"
                " `plugins` does not list: axolotl drops it without a word",
                "list the plug-in, or leave the setting out",
            )
        elif not plugin and not foreign:
            others = known.other_releases(head)
            theirs.judged.add(name)
            then = "does not start with it" if head == "fsdp" else "drops it without a word"
            yield Diagnostic(
                "unknown-key",
                f"axolotl {known.release} has no setting `{name}`"
                f"{f' ({others})' if others else ''}, and {then}",
                _INSTEAD.get(head) or did_you_mean(near(head, names)),
                name,
                theirs.places[name].key,
            )


_INSTEAD = {"adam_eps": "write `adam_epsilon`", "fsdp": "write `fsdp_config`"}


def _whole_steps(value: Any) -> Any:
    return value if is_whole(value) else NO_COUNTERPART
