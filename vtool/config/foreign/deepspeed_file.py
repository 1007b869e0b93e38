"""DeepSpeed's own file, which a recipe names: what it says, and what contradicts the recipe.

What must match is transformers' list (`HfTrainerDeepSpeedConfig`); "auto" always does.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vtool.config.foreign.theirs import ForeignFile
from vtool.contents import small_file
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near

if TYPE_CHECKING:
    from vtool.config.foreign.hf_traps import TheirSettings

_BUILT_IN = frozenset({f"zero{stage}" for stage in range(4)} | {"zero2_offload", "zero3_offload"})
"""Names by which ms-swift takes files of its own, in which everything is "auto"."""
DEEPSPEED_SCHEDULES = {
    "WarmupLR": "constant",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
}
"""DeepSpeed's schedules, each with a warm-up, by their names here."""
_EQUAL = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
)


def read_deepspeed(theirs: ForeignFile, trainer: str) -> Mapping[str, Any] | None:
    """Return the settings of the file that `deepspeed` names; None where none is read."""
    value = theirs.given.get("deepspeed")
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str) or (trainer == "ms-swift" and value in _BUILT_IN):
        return None
    try:
        text = value
        if not value.lstrip().startswith("{"):
            path = theirs.find_path(value)
            text = small_file(path).decode() if path else ""
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


def find_contradictions(look: "TheirSettings") -> Iterator[Diagnostic]:
    """Yield findings about DeepSpeed's file: it is not there, or says something else."""
    value = look.theirs.given.get("deepspeed")
    settings = read_deepspeed(look.theirs, look.trainer.name)
    if settings is None:
        yield from _unreadable(look, value)
        return
    name = value if isinstance(value, str) and not value.lstrip().startswith("{") else "deepspeed"
    if wrong := [
        f"{there} {_text(said)} for {look.word(word)} {_text(wanted)}"
        for there, said, word, wanted in _differences(look, settings)
    ]:
        yield look.at(
            "refused-there",
            "deepspeed",
            f"{name} contradicts the recipe: it has {', '.join(wrong)}; transformers refuses it",
            'write "auto" there: the recipe\'s values are then taken',
        )
    schedule = _at(settings, "scheduler.type")
    kind = look["lr_scheduler_type"]
    alike = {"constant": "constant_with_warmup"}.get(
        DEEPSPEED_SCHEDULES.get(str(schedule), ""), DEEPSPEED_SCHEDULES.get(str(schedule))
    )
    if schedule is not None and look.is_given("lr_scheduler_type") and kind != alike:
        yield look.at(
            "setting-without-reader",
            "lr_scheduler_type",
            f"{look.word('lr_scheduler_type')} is {kind}, but {name} has a scheduler, {schedule}:"
            " it alone is read",
            f"leave `scheduler` out of {name}, or {look.word('lr_scheduler_type')} out of the"
            " recipe",
        )
    optimizer = str(_at(settings, "optimizer.type") or "AdamW")
    if look.is_given("optim") and optimizer.lower() not in str(look["optim"]).lower():
        yield look.at(
            "setting-without-reader",
            "optim",
            f"{look.word('optim')} is {look['optim']}, but {name} has an optimizer, {optimizer}: it"
            " alone is read",
            f"leave `optimizer` out of {name}, or {look.word('optim')} out of the recipe",
        )


def _unreadable(look: "TheirSettings", value: Any) -> Iterator[Diagnostic]:
    swift = look.trainer.name == "ms-swift"
    if not isinstance(value, str) or (swift and value in _BUILT_IN):
        return
    path = None if value.lstrip().startswith("{") else look.theirs.find_path(value)
    if path is not None or value.lstrip().startswith("{"):
        yield look.at(
            "refused-there",
            "deepspeed",
            f"{value} is no JSON of DeepSpeed's settings: transformers refuses it",
            "write it as JSON, without comments",
        )
    elif close := near(value, sorted(_BUILT_IN)):
        own = "ms-swift has no file of its own by that name" if swift else "ms-swift alone has it"
        yield look.at(
            "refused-there",
            "deepspeed",
            f"deepspeed is {value}, and there is no such file: {own}",
            str(did_you_mean(close)) if swift else "give the path of a JSON file",
        )
    elif value:
        folder = look.theirs.folder
        there = sorted(one.name for one in folder.glob("*.json"))
        yield look.at(
            "not-on-this-machine",
            "deepspeed",
            f"deepspeed: there is no {value} here; what it says is not checked",
            did_you_mean(near(value.rpartition("/")[2], there)) or "give it next to the recipe",
        )


def _differences(
    look: "TheirSettings", settings: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield each difference: its name there, its value, the recipe's word for it, and its value."""
    finds_size = look["auto_find_batch_size"] is True
    wanted: list[tuple[str, str, Any]] = [
        (there, word, _number(look, word))
        for there, word in _EQUAL
        if not (finds_size and there == "train_micro_batch_size_per_gpu")
    ]
    betas = [_number(look, "adam_beta1"), _number(look, "adam_beta2")]
    wanted.append(("optimizer.params.betas", "adam_beta1 and adam_beta2", betas))
    wanted += [(f"{kind}.enabled", kind, _precision(look, kind)) for kind in ("fp16", "bf16")]
    steps = _number(look, "max_steps")
    total = int(steps) if steps is not None and steps > 0 else None
    wanted.append(("scheduler.params.total_num_steps", "max_steps", total))
    wanted.append(("scheduler.params.warmup_num_steps", "warmup_steps", _warm_up(look, total)))
    for there, word, value in wanted:
        said = _at(settings, there)
        unknown = value is None or (isinstance(value, list) and None in value)
        if said not in (None, "auto") and not unknown and said != value:
            yield there, said, word, value
    size, passes = _number(look, _EQUAL[0][1]), _number(look, _EQUAL[1][1])
    rows = _at(settings, "train_batch_size")
    if finds_size or size is None or passes is None or rows in (None, "auto"):
        return
    processes = look.processes
    one = int(size * passes)
    fits = isinstance(rows, int) and one > 0 and rows % one == 0
    if not (rows == one * processes if processes else fits):
        meant = f"{one * processes}" if processes else f"a multiple of {one}"
        yield "train_batch_size", rows, "the rows of a step,", meant


def _number(look: "TheirSettings", name: str) -> float | None:
    """Return the number in force; None where it is not known."""
    if name == "learning_rate" and look[name] is None:
        value = look.theirs.values.get("optim", {}).get("lr")  # ms-swift's own
    elif look.theirs.given.get(look.word(name), 0) is None:
        return None  # a variable of a script
    else:
        value = look[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else number


def _precision(look: "TheirSettings", kind: str) -> bool | None:
    """Return whether a run computes in a kind of half precision; None where it is not known."""
    if look[f"{kind}_full_eval"] is True or look["pure_bf16"]:
        return None
    if isinstance(look[kind], bool):
        return bool(look[kind])
    if look.trainer.name == "trl" and kind == "bf16":
        return look["fp16"] is not True
    dtypes = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
    chosen = dtypes.get(str(look["torch_dtype"]).removeprefix("torch."))
    return None if chosen is None else chosen == kind


def _warm_up(look: "TheirSettings", total: int | None) -> int | None:
    steps = _number(look, "warmup_steps")
    share = _number(look, "warmup_ratio") if look["warmup_ratio"] else None
    if share is None and steps is not None and 0 < steps < 1:
        share = steps
    if share is not None:
        return None if total is None else max(1, math.ceil(share * total))
    if steps is None:
        return None
    least = 0 if look.trainer.name == "llamafactory" else 1  # of transformers 5.6, and of later
    return max(least, int(steps))


def _at(settings: Mapping[str, Any], name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
