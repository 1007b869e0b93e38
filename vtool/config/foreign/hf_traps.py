"""Settings of these trainers that contradict each other, or do not do what they say.

Each was read in the code of the releases that `releases/` names.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from vtool.config.foreign.deepspeed_file import find_contradictions
from vtool.config.foreign.hf_translation import WITHOUT_WARM_UP
from vtool.config.foreign.llamafactory_traps import (
    find_unread_freezing,
    find_unread_rows,
    find_untrained_parts,
)
from vtool.config.foreign.swift_bounds import find_unread_bounds
from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.trainers import ForeignTrainer, looks_visual
from vtool.diagnostics import Diagnostic

_DEAD, _TRAP, _REFUSED = "setting-without-reader", "silent-trap", "refused-there"
_ADAPTERS = ("lora_r", "lora_rank", "lora_alpha", "lora_dropout", "use_dora", "use_rslora")
_BY_SCORE = ("reduce_lr_on_plateau", "greedy")
_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def find_traps(
    theirs: ForeignFile, trainer: ForeignTrainer, processes: int | None = None
) -> Iterator[Diagnostic]:
    """Yield findings about settings, without judging those that have a counterpart."""
    judged = set(theirs.judged)
    for check in (_of_all, find_contradictions, *_BY_TRAINER[trainer.name]):
        yield from check(TheirSettings(theirs, trainer, processes))
    theirs.judged |= judged


class TheirSettings:
    """Their settings by transformers' words, with the trainer's defaults."""

    words: ClassVar[Mapping[str, str]] = {}
    """The trainer's own words for those of transformers."""

    def __init__(self, theirs: ForeignFile, trainer: ForeignTrainer, processes: int | None) -> None:
        self.theirs, self.trainer, self.processes = theirs, trainer, processes

    def __getitem__(self, name: str) -> Any:
        name = self.word(name)
        value = self.theirs.given.get(name)
        return self.trainer.fields.get(name) if value is None else value

    def word(self, name: str) -> str:
        """Return the trainer's word for one of transformers'."""
        return self.words.get(name, name)

    def is_given(self, name: str) -> bool:
        """Return whether the recipe has it, with a value."""
        return self.theirs.given.get(self.word(name)) is not None

    def visual(self) -> bool:
        """Return whether the model sees images."""
        name = "model" if "model" in self.trainer.fields else "model_name_or_path"
        return looks_visual(self[name])

    def at(self, rule: str, name: str, message: str, help: str) -> Diagnostic:
        """Return a finding at a setting, or at the model's where that is not given."""
        name = self.word(name)
        if name not in self.theirs.places:
            models = ("model", "model_name_or_path", "base_model")
            named = [one for one in models if one in self.theirs.places]
            place = self.theirs.places[named[0]] if named else None
            return Diagnostic(rule, message, help, name, place.value if place else None)
        return self.theirs.find(rule, name, message, help)


def _of_all(look: TheirSettings) -> Iterator[Diagnostic]:
    if look["bf16"] is True and look["fp16"] is True:
        yield look.at(
            _REFUSED, "fp16", "bf16 and fp16 are both true: transformers refuses it", "keep bf16"
        )
    steps = look["max_steps"]
    if look.is_given("num_train_epochs") and isinstance(steps, int) and steps > 0:
        yield look.at(
            _DEAD,
            "num_train_epochs",
            f"num_train_epochs is {look['num_train_epochs']}, but max_steps is {steps}: it alone"
            " is read",
            "leave one of them out",
        )
    if look.is_given("warmup_ratio") and look["warmup_ratio"] and look["warmup_steps"]:
        refused = look.trainer.name == "ms-swift"
        yield look.at(
            _REFUSED if refused else _DEAD,
            "warmup_steps",
            "warmup_ratio and warmup_steps are both set: "
            + ("ms-swift refuses it" if refused else "transformers takes the ratio"),
            "leave one of them out",
        )
    yield from find_unread_warm_up(look)
    scores = look["eval_strategy"] not in ("no", False)
    if look.trainer.name == "ms-swift":  # it turns the evaluation off where there are no rows
        scores = scores and _has_rows_to_score(look)
    yield from find_unscored_schedule(look, scores=scores)
    for name, strategy in (("eval_steps", "eval_strategy"), ("save_steps", "save_strategy")):
        chosen = look[strategy]
        if look.is_given(name) and chosen in ("no", "epoch", False):
            chosen = "no" if chosen is False else chosen
            yield look.at(
                _DEAD,
                name,
                f"{name} is set, but {strategy} is {chosen}: it is not read",
                f"leave it out, or set {strategy}: steps",
            )
    kinds = {name: str(look[f"{name}_strategy"]).lower() for name in ("save", "eval")}
    if (
        look["load_best_model_at_end"] is True
        and kinds["save"] not in ("best", kinds["eval"])
        and kinds["eval"] != "none"
    ):
        yield look.at(
            _REFUSED,
            "load_best_model_at_end",
            f"load_best_model_at_end is true, but save_strategy is {kinds['save']} and"
            f" eval_strategy {kinds['eval']}: transformers refuses it",
            "set both to the same",
        )
    if look["lr_scheduler_type"] == "cosine_with_min_lr" and not look["lr_scheduler_kwargs"]:
        yield look.at(
            _REFUSED,
            "lr_scheduler_type",
            "lr_scheduler_type is cosine_with_min_lr, without a rate to end at: transformers"
            " refuses it",
            "set lr_scheduler_kwargs: {min_lr_rate: 0.1}",
        )
    if str(look[look.trainer.kind_of_training]).lower() in ("full", "false", "none"):
        given = [name for name in _ADAPTERS if look.is_given(name)]
        kind = look.trainer.kind_of_training
        if given:
            yield look.at(
                _DEAD,
                given[0],
                f"{', '.join(given)}: set, but {kind} is {look[kind]!r}: every weight that is not"
                " frozen is trained, and there is no adapter",
                f"set {kind}: {'true' if kind == 'use_peft' else 'lora'}, or leave them out",
            )


def find_unread_warm_up(look: TheirSettings) -> Iterator[Diagnostic]:
    """Yield a finding about a warm-up beside a schedule that has none."""
    word, schedule = look.word("lr_scheduler_type"), look["lr_scheduler_type"]
    for name in ("warmup_ratio", "warmup_steps"):
        if schedule in WITHOUT_WARM_UP and (value := look.theirs.given.get(name)):
            other = "constant_with_warmup" if schedule == "constant" else "cosine"
            yield look.at(
                _DEAD,
                name,
                f"{name} is {value}, but {word} {schedule} has no warm-up ({other} has)",
                f"set {word}: {other}, or leave it out",
            )


def find_unscored_schedule(look: TheirSettings, *, scores: bool) -> Iterator[Diagnostic]:
    """Yield a finding about a schedule that waits for a score, where nothing is scored."""
    schedule = look["lr_scheduler_type"]
    if schedule in _BY_SCORE and not scores:
        yield look.at(
            _REFUSED,
            "lr_scheduler_type",
            f"{look.word('lr_scheduler_type')} is {schedule}, which follows the score of an"
            " evaluation, and there is none: transformers refuses it",
            "evaluate (eval_strategy: steps, with rows for it), or take another schedule",
        )


def _of_trl(look: TheirSettings) -> Iterator[Diagnostic]:
    if not look.visual():
        return
    known = look.theirs.values.get("model", {}).get("family")
    if known and look["use_peft"] is True and not look["lora_target_modules"]:
        yield look.at(
            _REFUSED,
            "use_peft",
            "use_peft is true without lora_target_modules: peft has no list of layers of"
            f" {known}, and refuses it",
            "set lora_target_modules: all-linear",
        )
    for name in ("packing", "padding_free"):
        if look[name] is True:
            yield look.at(
                _REFUSED,
                name,
                f"{name} is true, and the model sees images: TRL refuses rows with images then",
                "leave it out",
            )
    if not look["assistant_only_loss"] and look["completion_only_loss"] is None:
        yield look.at(
            _TRAP,
            "assistant_only_loss",
            "neither assistant_only_loss nor completion_only_loss is set: of rows with `messages`"
            " and images, TRL learns every token, the question's and the images' placeholders too",
            "set assistant_only_loss: true, or give rows of prompt and completion",
        )
    if not look.is_given("max_length") and "max_length" not in look.theirs.given:
        yield look.at(
            _TRAP,
            "max_length",
            "max_length is not given: TRL cuts rows at 1024 tokens, of which an image alone may"
            " take more; what is cut away is not learnt, and not counted",
            "set max_length: null, or the length of your rows",
        )


def _of_llama_factory(look: TheirSettings) -> Iterator[Diagnostic]:
    if look["packing"] is True and not look["neat_packing"]:
        yield look.at(
            _TRAP,
            "packing",
            "packing is true without neat_packing: rows that are put into one sequence see each"
            " other, and positions continue from one to the next",
            "set neat_packing: true",
        )
    passes = look["gradient_accumulation_steps"]
    if isinstance(passes, int) and passes > 1 and look.visual():
        yield look.at(
            _TRAP,
            "gradient_accumulation_steps",
            f"gradient_accumulation_steps is {passes}: for models with images the loss is a mean of"
            " each micro-batch's mean, so a token of a short answer counts for more than one of a"
            " long one",
            "raise per_device_train_batch_size instead where the memory has room; `vtool watch`"
            " measures how far the gradient is off",
        )
    if look["do_train"] is not True:
        yield look.at(
            _TRAP, "do_train", "do_train is not true: nothing is trained", "set do_train: true"
        )
    has_rows = look.is_given("eval_dataset") or bool(look["val_size"])
    if look.is_given("val_size") and look["val_size"] and look["eval_strategy"] == "no":
        yield look.at(
            _DEAD,
            "val_size",
            f"val_size is {look['val_size']}, but eval_strategy is no: these rows are neither"
            " trained on nor scored",
            "set eval_strategy: steps, or leave val_size out",
        )
    if str(look["eval_strategy"]) in ("steps", "epoch") and not has_rows:
        yield look.at(
            _REFUSED,
            "eval_strategy",
            f"eval_strategy is {look['eval_strategy']}, but there is neither eval_dataset nor"
            " val_size: LLaMA-Factory refuses it",
            "name one of them, or leave eval_strategy out",
        )
    if look.is_given("eval_dataset") and look["val_size"]:
        yield look.at(
            _REFUSED,
            "val_size",
            "val_size and eval_dataset are both set: LLaMA-Factory refuses it",
            "leave one of them out",
        )
    if look.is_given("interleave_probs") and look["mix_strategy"] == "concat":
        yield look.at(
            _REFUSED,
            "interleave_probs",
            "interleave_probs is set, but mix_strategy is concat: LLaMA-Factory refuses it",
            "set mix_strategy: interleave_over",
        )
    if look["mask_history"] and look["train_on_prompt"]:
        yield look.at(
            _REFUSED,
            "train_on_prompt",
            "mask_history and train_on_prompt are both true: LLaMA-Factory refuses it",
            "leave one of them out",
        )
    if look.is_given("quantization_bit") and look["finetuning_type"] not in ("lora", "oft"):
        yield look.at(
            _REFUSED,
            "quantization_bit",
            f"quantization_bit is set, but finetuning_type is {look['finetuning_type']}:"
            " LLaMA-Factory refuses it",
            "set finetuning_type: lora",
        )


def _has_rows_to_score(look: TheirSettings) -> bool:
    words = ("val_dataset", "eval_dataset", "split_dataset_ratio", "cached_val_dataset")
    return any(look[name] for name in words)


def _of_swift(look: TheirSettings) -> Iterator[Diagnostic]:
    for name in ("packing", "padding_free"):
        if look[name] is True and look["attn_impl"] not in _FLASH:
            yield look.at(
                _REFUSED,
                name,
                f"{name} is true, but attn_impl is {look['attn_impl'] or 'not given'}: ms-swift"
                " refuses it without flash attention",
                "set attn_impl: flash_attn",
            )
            break
    if not look["dataset"] and not look.is_given("cached_dataset"):
        yield look.at(
            _REFUSED, "dataset", "no dataset is given: ms-swift refuses it", "name one: dataset"
        )
    given = [name for name in ("eval_steps", "eval_strategy") if look.is_given(name)]
    if given and not _has_rows_to_score(look) and look["eval_strategy"] not in ("no", False):
        yield look.at(
            _DEAD,
            given[0],
            f"{given[0]} is set, but there are no rows to evaluate on: ms-swift sets eval_strategy"
            " to no, and says nothing",
            "name val_dataset, or set split_dataset_ratio: 0.01",
        )
    if look.is_given("fsdp") and look.is_given("deepspeed"):
        yield look.at(
            _REFUSED,
            "fsdp",
            "fsdp and deepspeed are both set: ms-swift refuses it",
            "leave one of them out",
        )


_BY_TRAINER = {
    "trl": (_of_trl,),
    "llamafactory": (
        _of_llama_factory,
        find_untrained_parts,
        find_unread_rows,
        find_unread_freezing,
    ),
    "ms-swift": (_of_swift, find_unread_bounds),
}
