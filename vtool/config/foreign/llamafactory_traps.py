"""Settings that LLaMA-Factory does not read: parts without an adapter, rows that are tokens.

Read in `find_all_linear_modules`, `patch_target_modules` and `get_dataset` of LLaMA-Factory 0.9.5.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.config.foreign.theirs import ForeignFile, listed_words
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic
from vtool.families import FAMILIES

if TYPE_CHECKING:
    from vtool.config.foreign.hf_traps import TheirSettings

FREEZES = {
    "projector": "freeze_multi_modal_projector",
    "vision": "freeze_vision_tower",
    "language": "freeze_language_model",
}
_OF_FREEZING = ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
_UNREAD = (
    *("dataset", "eval_dataset", "val_size", "cutoff_len", "max_samples", "mix_strategy"),
    *("interleave_probs", "mask_history", "train_on_prompt"),
)
"""Settings that make rows out of files, and do nothing to rows that are made."""


def parts_without_adapter(theirs: ForeignFile, trainer: ForeignTrainer) -> tuple[str, ...]:
    """Return the parts that are not frozen, and get no adapter either.

    Names are compared as there: a target is any part of a layer's name.
    """
    family = FAMILIES.get(theirs.values.get("model", {}).get("family", ""))
    if family is None or not trainer.adapters(theirs.given):
        return ()

    def value(name: str) -> Any:
        given = theirs.given.get(name)
        return trainer.fields.get(name) if given is None else given

    layers = dict(family.linear_layers)
    # what Qwen3-VL adds in between is of the tower there
    apart = family.projector_modules[0]
    layers["vision"] += tuple(one for one in layers["projector"] if f".{apart}." not in one)
    layers["projector"] = tuple(one for one in layers["projector"] if f".{apart}." in one)
    targets = listed_words(value("lora_target"))
    if targets == ["all"]:
        looked_at = ("language",) if value(FREEZES["vision"]) else ("language", "vision")
        targets = [one.rpartition(".")[2] for part in looked_at for one in layers[part]]
    whole = listed_words(value("additional_target"))
    return tuple(
        part
        for part, word in FREEZES.items()
        if not value(word)
        and not any(target in one for target in targets for one in layers[part])
        and not any(each in one for each in whole for one in layers[part])
    )


def find_untrained_parts(look: "TheirSettings") -> Iterator[Diagnostic]:
    """Yield a finding for each part that the recipe does not freeze, and that is not trained."""
    targets = ", ".join(listed_words(look["lora_target"]))
    for part in parts_without_adapter(look.theirs, look.trainer):
        word = FREEZES[part]
        if not look.is_given(word):  # a default promises nothing
            continue
        yield look.at(
            "setting-without-reader",
            word,
            f"{word} is false, but with finetuning_type lora and lora_target {targets} no layer of"
            f" the {part} gets an adapter: nothing of it is trained",
            f"name its layers in additional_target, or set {word}: true",
        )


def find_unread_freezing(look: "TheirSettings") -> Iterator[Diagnostic]:
    """Yield findings about settings that finetuning_type freeze alone reads (model/adapter.py)."""
    kind = look["finetuning_type"]
    if kind == "freeze":
        return
    for word in _OF_FREEZING:
        if look.is_given(word) and look[word] != look.trainer.fields.get(word):
            yield look.at(
                "setting-without-reader",
                word,
                f"{word} is set, but finetuning_type is {kind}, and freeze alone reads it",
                "leave it out, or set finetuning_type: freeze",
            )


def tokens_on_disk(theirs: ForeignFile) -> Path | None:
    """Return the folder of rows that are tokens already, where there is one."""
    path = theirs.find_path(str(theirs.given.get("tokenized_path") or ""))
    return path if path is not None and path.is_dir() and any(path.iterdir()) else None


def find_unread_rows(look: "TheirSettings") -> Iterator[Diagnostic]:
    """Yield findings about settings of rows beside rows that are tokens already."""
    folder = tokens_on_disk(look.theirs)
    if folder is None:
        return
    path = look["tokenized_path"]
    unread = [name for name in _UNREAD if look.is_given(name) and look[name] is not False]
    if unread:
        are = "are" if len(unread) > 1 else "is"
        yield look.at(
            "setting-without-reader",
            unread[0],
            f"{', '.join(unread)} {are} not read: {path} is there, and its rows are taken as they"
            " were tokenized",
            f"delete {path} to make the rows again, or leave {', '.join(unread)} out",
        )
    splits = _splits(folder)
    scores = str(look["eval_strategy"]) in ("steps", "epoch")
    if scores and splits and not any(one.startswith("validation") for one in splits):
        yield look.at(
            "refused-there",
            "eval_strategy",
            f"eval_strategy is {look['eval_strategy']}, but {path} has no rows to evaluate on, only"
            f" {', '.join(splits)}: transformers refuses it",
            f"delete {path}, to make them by val_size, or leave eval_strategy out",
        )


def _splits(folder: Path) -> tuple[str, ...]:
    try:
        said = read_small_json(folder / "dataset_dict.json")
    except (OSError, ValueError):
        return ()
    splits = said.get("splits") if isinstance(said, Mapping) else None
    return tuple(map(str, splits)) if isinstance(splits, list) else ()
