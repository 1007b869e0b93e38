"""Keys that rows of other projects have: those that say nothing, and those that mask the loss."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

KNOWN_KEYS = frozenset(
    {
        # what a row is called, and where it comes from
        *("id", "idx", "index", "uid", "uuid", "hash", "key", "name", "title", "version"),
        *("source", "data_source", "dataset", "dataset_name", "dataset_source", "subset", "origin"),
        *("url", "urls", "license", "author", "generator", "model", "model_name", "data_path"),
        *("split", "fold", "used_in_training", "created", "created_at", "updated_at", "timestamp"),
        *("date", "time", "country", "header", "user", "annotator", "avatarUrl", "views"),
        "skip_prompt_formatting",
        # what it is about
        *("category", "subcategory", "type", "topic", "full_topic", "domain", "subject", "field"),
        *("task", "tags", "tag", "keywords", "intent", "language", "lang", "langdetect", "locale"),
        *("channel", "ability", "metadata", "meta", "extra_info", "extra", "info", "stats"),
        # how large or how good it is
        *("width", "height", "width_list", "height_list", "length", "num_tokens", "num_turns"),
        *("turn", "turns", "tokens", "score", "scores", "rating", "ratings", "quality"),
        *("difficulty", "toxic", "redacted", "reward", "instruct_reward", "finish_reasons"),
        *("formatting_ratings", "formatting_min", "relevance_ratings", "relevance_min"),
        *("visual_dependency_ratings", "visual_dependency_min", "image_correspondence_ratings"),
        *("image_correspondence_min", "openai_moderation", "detoxify_moderation"),
        # of a message or a part
        *("role", "finish_reason", "stop_reason", "usage", "logprobs", "annotations", "state"),
        *("temperature", "top_p", "cache_control", "cost", "latency", "provider"),
    }
)
"""Keys that say where a row comes from, or how large it is: nothing that is shown or learnt."""
_KNOWN_WORDS = re.compile(
    r"_.*|.*(?:_|^)(?:ids?|idx|index|uuid|hash|md5|sha\d+|count|counts|counter|length|lengths"
    r"|tokens|score|scores|rating|ratings|quality|difficulty|category|language|license|timestamp"
    r"|date|time|version|source|dataset|model|metadata|moderation|distance|identifier|ip)"
    r"|(?:num|n|is|has|was)_.*|.*(?:Id|Ids|At)"
)
CARRIERS = {
    **dict.fromkeys(("functions", "tools"), 'the row\'s "tools"'),
    **dict.fromkeys(("function_calls", "function_call"), '"tool_calls"'),
}
"""Keys of a message that other projects' rows have tools and calls in, and what has them here."""
WRITE_TOOLS = (
    'a row has its tools as "tools": [{"type": "function", "function": {…}}], and a message its'
    ' calls as "tool_calls": [{"type": "function", "function": {"name": "…", "arguments": {…}}}];'
    " what a tool answers has the role tool"
)
TRAINED = {
    **dict.fromkeys(("loss", "loss_scale"), True),  # ms-swift, XTuner
    "loss_weight": True,  # LLaMA-Factory
    **dict.fromkeys(("train", "training"), True),  # Axolotl
    **dict.fromkeys(("trainable", "is_trainable", "learnable"), True),  # tinker, prime-rl
    **dict.fromkeys(("loss_mask", "step_loss_mask"), True),  # VeOmni, slime
    **dict.fromkeys(("train_on_turn", "supervised", "compute_loss", "calculate_loss"), True),
    **dict.fromkeys(("masked", "is_masked", "loss_masked"), False),  # torchtune
}
"""Keys of a message that say if it is learnt, and what `true` means there."""
_MASKING = frozenset(
    {"loss", "mask", "masks", "masked", "unmasked", "train", "training", "trained", "trainable"}
    | {"untrained", "learn", "learnt", "learned", "learnable", "supervise", "supervised"}
    | {"backprop", "finetune"}
)
"""Words in a message's key by which it can say what of the message is learnt."""
_MASKS_OF_ROWS = frozenset(
    {"loss_mask", "loss_masks", "label_mask", "label_masks", "assistant_mask", "assistant_masks"}
    | {"assistant_tokens_mask", "completion_mask", "response_mask", "target_mask", "turn_mask"}
    | {"turn_masks", "train_mask", "token_mask", "token_weights", "loss_weights", "train_turns"}
    | {"train_detail", "train_on_what", "mask_history", "mask_prompt", "mask_inputs", "mask_input"}
    | {"train_on_input", "train_on_inputs", "train_on_prompt", "train_on_last", "only_last"}
    | {"train_on_last_turn", "train_on_last_turn_only", "only_last_turn", "last_turn_only"}
    | {"train_last_turn", "last_only", "masked_turns", "loss_on_last", "only_last_turn_loss"}
)
"""Keys of a row that say what of it is learnt, unless they say no."""
_WEIGHTS_OF_ROWS = frozenset({"weight", "loss_weight", "loss_scale", "sample_weight"})
_SWITCHES_OF_ROWS = frozenset({"train", "training", "trainable", "learnable", "supervised", "loss"})
_PAIRS = "a pair of a preferred and a rejected answer: training on one of them is another task"
OTHER_TASKS = {
    "chosen": _PAIRS,
    "rejected": _PAIRS,
    "rejected_response": _PAIRS,
    "rejected_messages": _PAIRS,
    "rejected_images": _PAIRS,
    "kto_tag": "a judgement of an answer, and not an answer to learn",
    "label": "a judgement of an answer, or a class, and not an answer to learn",
    "reward_model": "a question with a reward in the place of an answer: reinforcement learning",
}
"""Keys of rows that are for another task than learning answers, and what such a row is."""
JUDGEMENTS = ("kto_tag", "label")
"""Keys of rows that say whether their answer is a good one."""

_OF_NUMBERS = ("num_", "n_", "is_", "has_", "was_")
_MEDIA_WORDS = frozenset({"image", "images", "img", "picture", "photo", "video", "frame", "frames"})
_MEDIA: tuple[str, ...] = (
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".webp",
    ".bmp",
    ".tif",
    ".tiff",
    ".mp4",
    ".mkv",
    ".avi",
)
_MEDIA += (".webm", ".mov")
_LEARNT_UNLESS_FALSE = frozenset({"target", "targets", "label", "labels", "grad", "gradient"})
_LEARNT_UNLESS_TRUE = frozenset(
    {"ignore", "ignored", "skip", "skipped", "context", "prompt", "frozen", "freeze", "eval"}
)
_SAID = {"yes": True, "true": True, "no": False, "false": False}
_TURNS = frozenset({"turn", "turns", "round", "rounds", "message", "messages"})
_LAST, _LEFT_OUT = frozenset({"last", "final"}), frozenset({"ignore", "ignored", "skip", "skipped"})
_MASKED = frozenset({"mask", "masks", "masked", "untrained", "unsupervised"})
_PARTS = frozenset(
    {"only", "last", "final", "history", "prompt", "prompts", "input", "inputs", "user", "system"}
)
_ANSWERS = frozenset({"assistant", "completion", "completions", "response", "answer", "answers"})
_ROLES = frozenset({"user", "assistant", "system", "tool", "human", "gpt", "model"})

_FEW_LETTERS = 20
"""Letters of a row's texts below which it is chance that another text has all of them."""


# What is read of a row and of a message: a key that differs in its case or its number only is a
# slip, and would be passed over.
KEYS_READ = {
    "row": ("messages", "images", "image", "videos", "video", "tools", "enable_thinking"),
    "message": ("role", "content", "weight", "tool_calls"),
}


def slip(read: tuple[str, ...], key: str, value: Any) -> str | None:
    """Return the key that is read, where this one differs from it in case or number only.

    A word in `tool` is that of a program, and no tool that the model is offered.
    """
    meant = _slip(read, key)
    word = meant == "tools" and isinstance(value, str) and value.lstrip()[:1] not in ("[", "{")
    return None if word else meant


@lru_cache(maxsize=1024)
def _slip(read: tuple[str, ...], key: str) -> str | None:
    if key in read:
        return None
    bare = key.casefold().strip("_").rstrip("s")
    return next((name for name in read if name.rstrip("s") == bare), None)


def is_known(key: str, value: Any = None) -> bool:
    """Return whether a key says, by its name, nothing that is shown or learnt.

    Args:
        value: its value, where that is there: a file of pictures is no number of a row.
    """
    if key in KNOWN_KEYS:
        return True
    if not _is_known_word(key):
        return False
    if key.startswith(_OF_NUMBERS) and not isinstance(value, bool | int | float | None):
        return False
    return _MEDIA_WORDS.isdisjoint(_words(key)) or not (
        isinstance(value, str) and value.lower().endswith(_MEDIA)
    )


@lru_cache(maxsize=4096)
def _is_known_word(key: str) -> bool:
    return bool(_KNOWN_WORDS.fullmatch(key))


@lru_cache(maxsize=4096)
def _words(key: str) -> frozenset[str]:
    """Return the words of a key: `trainOnLast`, `train_on_last` and `Train-on-last` have three."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key).casefold()))


def may_mask(key: str, value: Any = None) -> bool:
    """Return whether an answer's key can say, by its name, what of the message is learnt.

    Args:
        value: its value, where only `"target": false` or `"skip": true` would say so.
    """
    words = _words(key)
    if key in TRAINED or not _MASKING.isdisjoint(words):
        return True
    left_out = _LEARNT_UNLESS_FALSE if value is False else _LEARNT_UNLESS_TRUE
    return isinstance(value, bool) and not left_out.isdisjoint(words)


def masks_row(key: str, value: Any) -> bool | None:
    """Return whether a row's key takes something of the row out of the loss, or adds to it.

    None where it says nothing about that.
    """
    if key in _MASKS_OF_ROWS:
        return bool(value)
    if key in _WEIGHTS_OF_ROWS:
        return bool(value != 1)
    if key in _SWITCHES_OF_ROWS and value in (0, 1):
        return not value
    of_tokens = isinstance(value, list) and all(isinstance(each, int) for each in value)
    if of_tokens and (key in ("mask", "masks") or (key == "labels" and -100 in value)):
        return True
    return None if key in KNOWN_KEYS else _masks_by_words(_words(key), value)


def _masks_by_words(words: frozenset[str], value: Any) -> bool | None:
    """Return the answer of `masks_row` for a key of any spelling, such as `trainOnLastTurn`."""
    if isinstance(value, str):
        value = _SAID.get(value.casefold(), value)
    of_turns = not _TURNS.isdisjoint(words)
    if _MASKING.isdisjoint(words):
        left_out = isinstance(value, list) and of_turns and not _LEFT_OUT.isdisjoint(words)
        last = value is True and "only" in words and not _LAST.isdisjoint(words)
        return True if left_out or last else None
    if isinstance(value, bool) and "only" in words and not _ANSWERS.isdisjoint(words):
        return not value
    if isinstance(value, bool):
        return value if not (_MASKED | _PARTS).isdisjoint(words) else not value
    if isinstance(value, list) and value:
        if all(isinstance(each, str) and each in _ROLES for each in value):
            return not set(value) <= {"assistant", "gpt", "model"}
        return (of_turns and all(isinstance(each, int) for each in value)) or None
    return None


def is_said(value: Any, texts: Collection[str]) -> bool:
    """Return whether a text is one of a row's texts, or has all of them, so that it says no more.

    UltraChat's `prompt` is the first message again; Alpaca's `text` is the whole row, rendered.
    """
    if not isinstance(value, str):
        return False
    several = sum(map(len, texts)) >= _FEW_LETTERS
    return value in texts or (several and all(text in value for text in texts))


def is_learnt(key: str, value: Any) -> bool | None:
    """Return whether a message's key says that it is learnt; None where it may say anything."""
    sense = TRAINED.get(key)
    return None if sense is None or value not in (0, 1) else bool(value) is sense


@lru_cache(maxsize=1024)
def carried(key: str) -> tuple[str, bool] | None:
    """Return the key to write for one with tools or calls, and whether that is a slip of it.

    `toolCalls` is a slip of `tool_calls`; `available_tools` may be anything, such as their names.
    """
    words, bare = _words(key), re.sub("[^a-z]", "", key.casefold())
    if key in CARRIERS or key in ("tool_calls", "tool_call_id", "tool_choice"):
        return None
    slips = {re.sub("[^a-z]", "", each): write for each, write in CARRIERS.items()}
    slips["toolcalls"] = slips["toolcall"] = '"tool_calls"'
    if bare in slips:
        return slips[bare], True
    if words.isdisjoint({"tools", "functions", "function", "tool"}):
        return None
    if not words.isdisjoint({"calls", "called"}):
        return '"tool_calls"', False
    of_tools = not words.isdisjoint({"tools", "functions", "definitions", "schemas"})
    return ('the row\'s "tools"', False) if of_tools else None
