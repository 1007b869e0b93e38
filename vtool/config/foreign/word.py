"""A setting of another trainer, and how its value becomes ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vtool.families import FAMILIES

NO_COUNTERPART = object()
"""Stands in the place of a value that has no counterpart."""


@dataclass(frozen=True, slots=True)
class Word:
    """A setting of other trainers."""

    ours: str | None
    """The setting that means the same here, or the nearest to it; None where there is none."""
    how: str = ""
    """A note of what is to be known of it, or why there is none."""
    convert: Callable[[Any], Any] | None = None
    """To our value: None where theirs says nothing, `NO_COUNTERPART` where we have none for it.

    None in the place of the function where several settings together make one.
    """


def as_it_is(value: Any) -> Any:
    """Return a value that is written here as there."""
    return value


def positive_number(value: Any) -> Any:
    """Return a number of steps; 0 and below is off."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NO_COUNTERPART
    return value if value > 0 else None


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def whole_steps(value: Any) -> Any:
    """Return steps as a whole number; a share of all steps is none."""
    if not isinstance(value, int | float) or 0 < value < 1:
        return NO_COUNTERPART
    return int(value) if value > 0 else None


def one_of_these(words: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a conversion by a table; a value that is not in it has no counterpart."""
    return lambda value: words.get(str(value).lower(), NO_COUNTERPART)


schedule_name = one_of_these(
    {
        "cosine": "cosine",
        "linear": "linear",
        "constant": "constant",
        "constant_with_warmup": "constant",
        "warmup_stable_decay": "wsd",
        "cosine_with_min_lr": "cosine",
    }
)
attention_name = one_of_these(
    {
        "auto": None,
        "none": None,
        "sdpa": "sdpa",
        "eager": "eager",
        "disabled": "eager",
        **dict.fromkeys(("fa2", "flash_attn", "flash_attention_2"), "flash_attention_2"),
        **dict.fromkeys(("fa3", "flash_attention_3"), "flash_attention_3"),
    }
)
family_name = one_of_these({name: name for name in FAMILIES})

NARROW_ADAMW = ("adamw_torch_8bit", "adamw_8bit", "adamw_bnb_8bit")
"""Names of AdamW with states of 8 bit: torchao's, and twice bitsandbytes'."""
adamw_name = one_of_these(
    dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", *NARROW_ADAMW), "adamw")
)
best_score = one_of_these(
    {
        **dict.fromkeys(("loss", "eval_loss"), "validation_nll"),
        **dict.fromkeys(
            ("mean_token_accuracy", "token_acc", "accuracy"), "validation_token_accuracy"
        ),
        **dict.fromkeys(
            ("eval_mean_token_accuracy", "eval_token_acc", "eval_accuracy"),
            "validation_token_accuracy",
        ),
    }
)
"""The score by which the best checkpoint is known."""
