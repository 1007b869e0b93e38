"""Finds a trainer of preferences: its arguments, its reference, and which rows are which."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import torch

from .digests import digests, sampled_checksum
from .learnt import PassRecord
from .model import FoundModel, local_shard
from .rows import token_mask

_METHODS = {
    "DPOTrainer": "dpo",
    "KTOTrainer": "kto",
    "CPOTrainer": "cpo",
    "BCOTrainer": "bco",
    "ORPOTrainer": "orpo",
}
_OTHERS = ("OnlineDPOTrainer", "NashMDTrainer", "XPOTrainer")
"""Trainers that make their answers themselves: their pairs are not those of a data set."""
_ARGUMENTS = (
    "beta", "loss_type", "loss_weights", "label_smoothing", "gradient_accumulation_steps",
    "per_device_train_batch_size", "reference_free", "precompute_ref_log_probs", "sync_ref_model",
    "ld_alpha", "f_divergence_type", "use_weighting", "rpo_alpha", "desirable_weight",
    "undesirable_weight", "cpo_alpha", "simpo_gamma", "alpha", "discopop_tau", "padding_free",
    "prompt_sample_size", "use_liger_loss", "use_liger_kernel",
)  # fmt: skip
_OF_LLAMAFACTORY = {
    "pref_beta": "beta",
    "pref_loss": "loss_type",
    "pref_ftx": "ftx",
    "pref_bco_weight": "bco_weight",
    "ld_alpha": "ld_alpha",
    "simpo_gamma": "simpo_gamma",
    "dpo_label_smoothing": "label_smoothing",
    "kto_chosen_weight": "desirable_weight",
    "kto_rejected_weight": "undesirable_weight",
}
_TENSORS, _ROWS, _PASSES, _CANDIDATES = 64, 64, 4, 256
_FOLLOWS = ("SyncRefModelCallback", "BEMACallback")
"""Callbacks that move a reference on purpose."""


class PreferenceTrainer:
    """What is known of the trainer of a model, where it is one of preferences."""

    def __init__(self, found: FoundModel) -> None:
        self._found = found
        self._trainer: Any = None
        """A weak reference to it, once it has been looked for."""
        self._first: dict[str, str] = {}
        """Digests of the reference at the first look."""

    def look(self, watch: Any, optimizer: Any, records: list[PassRecord]) -> None:
        """Write a `preference` before a step, where such a trainer is alive."""
        try:
            if self._trainer is None:
                trainer = _find(self._found)
                self._trainer = (lambda: None) if trainer is None else weakref.ref(trainer)
            trainer = self._trainer()
            if trainer is None:
                return
            kind, method = _kind(type(trainer))
            watch.say(
                "preference",
                trainer=f"{kind.__module__}.{kind.__qualname__}",
                own=None if type(trainer) is kind else f"{type(trainer).__module__}",
                method=method,
                arguments=_arguments(trainer),
                reference=self._reference(trainer, optimizer),
                sides=_Sides(trainer).of(records) if watch.step == 0 else [],
            )
        except Exception as error:  # of a trainer of another kind: the rest is looked at
            watch.skip("preference", f"{type(error).__name__}: {error}"[:200])

    def _reference(self, trainer: Any, optimizer: Any) -> dict[str, Any]:
        """Return the facts about the reference: a model or an adapter of its own, or neither."""
        policy = dict(self._found.model.named_parameters())
        trained = {n: p for n, p in policy.items() if p.requires_grad}
        model = _unwrapped(getattr(trainer, "ref_model", None))
        if model is None:
            adapter = {n: p for n, p in policy.items() if ".ref." in n}
            kind = "adapter" if adapter else "adapter off" if _has_adapter(policy) else "none"
            own, names = adapter, {n: n.replace(".ref.", ".default.") for n in adapter}
        else:
            kind, own = "model", dict(model.named_parameters())
            bare = {_bare(n): n for n in policy}
            names = {n: bare[_bare(n)] for n in own if _bare(n) in bare}
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        memory = {where for p in trained.values() if (where := _memory(p)) is not None}
        learnt = [n for n, p in own.items() if id(p) in owned]
        same = [n for n, p in own.items() if _memory(p) in memory] if kind == "model" else []
        now = _digests(own)
        moved = [n for n, value in now.items() if self._first.get(n, value) != value]
        for name, value in now.items():
            self._first.setdefault(name, value)
        theirs = {n: names[n] for n in now if names.get(n) in trained}
        policies = _digests({n: policy[name] for n, name in theirs.items()})
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
        return {
            "kind": kind,
            "same": model is not None and (model is self._found.model or len(same) == len(own)),
            "shared": len(same),
            "owned": len(learnt),
            "tensors": len(now),
            "moved": len(moved),
            "compared": len(policies),
            "equal": sum(now[n] == value for n, value in policies.items()),
            "follows": [n for each in callbacks if (n := type(each).__name__) in _FOLLOWS],
        }


def _find(found: FoundModel) -> Any:
    """Return the trainer of preferences alive that trains this model."""
    if not any(name.startswith("trl.") and name.endswith("_trainer") for name in sys.modules):
        return None
    mine = {id(p) for p in found.model.parameters()}
    for each in gc.get_objects():
        if not _kind(type(each))[1]:
            continue
        model = getattr(each, "model", None)
        if isinstance(model, torch.nn.Module) and any(id(p) in mine for p in model.parameters()):
            return each
    return None


def _kind(own: type) -> tuple[type, str]:
    """Return the class of TRL's that a trainer is of, and its method; no method for any other."""
    for kind in own.__mro__ if "Trainer" in own.__name__ else ():
        if not str(kind.__module__).startswith("trl."):  # a metaclass may have another one
            continue
        if kind.__name__ in _OTHERS:
            break
        if method := _METHODS.get(kind.__name__):
            return kind, method
    return own, ""


def _unwrapped(model: Any) -> Any:
    for _ in range(4):
        inner = getattr(model, "module", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    return model if isinstance(model, torch.nn.Module) else None


def _bare(name: str) -> str:
    for part in ("module.", "base_model.model.", "_fsdp_wrapped_module.", "_orig_mod."):
        name = name.replace(part, "")
    return name.replace(".base_layer.", ".")


def _memory(parameter: Any) -> int | None:
    """Return where a parameter's values are, which two parameters may share."""
    try:
        return int(local_shard(parameter).untyped_storage().data_ptr()) or None
    except Exception:  # no storage of its own
        return None


def _has_adapter(parameters: dict[str, Any]) -> bool:
    return any("lora_" in name or ".default" in name for name in parameters)


def _digests(named: dict[str, Any]) -> dict[str, str]:
    """Return digests of some tensors, evenly taken, that this process has whole."""
    names = list(named)[:: max(1, -(-len(named) // _TENSORS))]
    parts = {n: local_shard(named[n]) for n in names}
    parts = {n: p for n, p in parts.items() if p.numel()}
    return dict(zip(parts, digests([sampled_checksum(p, 1 << 16) for p in parts.values()])))


def _plain(value: Any) -> Any:
    """Return an argument as JSON can hold it; a kind of loss may be an enumeration's."""
    value = getattr(value, "value", value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value][:16]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _arguments(trainer: Any) -> dict[str, Any]:
    """Return the arguments that the loss depends on."""
    arguments = getattr(trainer, "args", None)
    given = {n: _plain(getattr(arguments, n)) for n in _ARGUMENTS if hasattr(arguments, n)}
    for name in ("beta", "loss_type", "label_smoothing"):
        if given.get(name) is None and getattr(trainer, name, None) is not None:
            given[name] = _plain(getattr(trainer, name))
    other = getattr(trainer, "finetuning_args", None)
    for name, own in _OF_LLAMAFACTORY.items():
        if other is not None and hasattr(other, name):
            given[own] = _plain(getattr(other, name))
    return given


class _Sides:
    """The answers of a trainer's data set, by which rows of a batch are told apart.

    Of each column only the lengths are read, and the few rows that are as long as one of the
    batch's. What the data set makes of its rows is not run.
    """

    def __init__(self, trainer: Any) -> None:
        self._table: Any = getattr(getattr(trainer, "train_dataset", None), "data", None)
        self._names = set(getattr(self._table, "column_names", ()))
        self._lengths: dict[str, list[int]] = {}

    def of(self, records: list[PassRecord]) -> list[dict[str, Any]]:
        """Return, for the first passes, each row's side and the length of its prompt.

        The side is 1 for a chosen or desirable answer, −1 for the other, and 0 where it is not
        known; the length is null then.
        """
        found = []
        for number, record in enumerate(records[:_PASSES]):
            if self._table is None or record.seen is None:
                continue
            ids = record.seen.ids.cpu()
            keep = token_mask(record.seen.inputs, ids)
            rows = [row[mask].tolist() for row, mask in zip(ids[:_ROWS], keep)]
            known = [self._of_row(row) for row in rows]
            if any(side for side, _ in known):
                fact = {"micro": number, "side": [side for side, _ in known]}
                found.append({**fact, "prompt": [prompt for _, prompt in known]})
        return found

    def _first_of(self, *names: str) -> str | None:
        return next((name for name in names if name in self._names), None)

    def _of_row(self, row: list[int]) -> tuple[int, int | None]:
        prompt = self._first_of("prompt_ids", "prompt_input_ids")
        answers = {
            1: self._first_of("chosen_ids", "chosen_input_ids"),
            -1: self._first_of("rejected_ids", "rejected_input_ids"),
        }
        if answers[1] and answers[-1]:
            sides = {side: self._prompt(name, prompt, row) for side, name in answers.items()}
            there = [side for side, at in sides.items() if at is not None]
            return (there[0], sides[there[0]]) if len(there) == 1 else (0, None)
        answer = self._first_of("completion_ids", "completion_input_ids", "input_ids")
        label = self._first_of("label", "kto_tags")
        if answer and label:
            labels: set[bool] = set()
            at = self._prompt(answer, prompt, row, label, labels)
            if at is not None and len(labels) == 1:
                return (1 if labels.pop() else -1), at
        return 0, None

    def _prompt(
        self,
        name: str | None,
        prompt: str | None,
        row: list[int],
        label: str | None = None,
        labels: set[bool] | None = None,
    ) -> int | None:
        """Return the length of the prompt of a row, as the table has it; None: it has no such row.

        Args:
            name: the column of answers, with or without their prompts.
            prompt: the column of prompts.
            row: ids of a row of a batch.
            label: the column that says whether an answer is a good one.
            labels: where the labels of the rows found are put.
        """
        assert name is not None
        masks = self._first_of(name.replace("input_ids", "labels"), "labels")
        masks = masks if masks != label and name.endswith("input_ids") else None
        answer, before = self._sizes(name), self._sizes(prompt) if prompt else None
        found, tried = None, 0
        for at, size in enumerate(answer):
            whole = size + (before[at] if before else 0)
            if len(row) not in (size, whole, size + 1, whole + 1, whole + 2):
                continue
            tried += 1
            if tried > _CANDIDATES:
                break
            ids = list(self._value(name, at))
            asked = list(self._value(prompt, at)) if prompt else []
            length = self._begin(row, ids, asked)
            if length is None:
                continue
            if masks:  # whole rows: what is learnt of them is in their labels
                given = list(self._value(masks, at))
                if len(given) == len(ids):
                    length = len(row) - sum(each != -100 for each in given)
            found = length if found is None else min(found, length)
            if labels is not None:
                labels.add(bool(self._value(label or "", at)))
        return found

    @staticmethod
    def _begin(row: list[int], ids: list[int], asked: list[int]) -> int | None:
        """Return where the answer begins in a row that ends with it, or is it; None: it is not."""
        if not ids:
            return None
        for text in (asked + ids, ids):
            off = len(row) - len(text)
            if 0 <= off <= 2 and row[off:] == text:  # a begin token may be added
                return off + (len(asked) if text[: len(asked)] == asked else 0)
        return None

    def _sizes(self, name: str) -> list[int]:
        if name not in self._lengths:
            sizes: list[int] = []
            for chunk in self._table.column(name).chunks:
                ends = chunk.offsets.to_pylist()
                sizes += [end - begin for begin, end in zip(ends, ends[1:])]
            self._lengths[name] = sizes
        return self._lengths[name]

    def _value(self, name: str, at: int) -> Any:
        return self._table.column(name)[at].as_py()
