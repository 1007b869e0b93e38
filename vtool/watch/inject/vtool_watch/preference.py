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
from .sides import Sides

_METHODS = {
    "DPOTrainer": "dpo",
    "KTOTrainer": "kto",
    "CPOTrainer": "cpo",
    "BCOTrainer": "bco",
    "ORPOTrainer": "orpo",
}
_OTHERS = ("OnlineDPOTrainer", "NashMDTrainer", "XPOTrainer", "GRPOTrainer", "RLOOTrainer")
"""Trainers that make their answers themselves: their pairs are not those of a data set."""
_ONLINE = "online"
_ARGUMENTS = (
    "beta", "loss_type", "loss_weights", "label_smoothing", "gradient_accumulation_steps",
    "reference_free", "precompute_ref_log_probs", "sync_ref_model",
    "ld_alpha", "f_divergence_type", "use_weighting", "rpo_alpha", "desirable_weight",
    "undesirable_weight", "cpo_alpha", "simpo_gamma", "alpha", "discopop_tau",
)  # fmt: skip
_OF_TRAINER = (
    "beta", "label_smoothing", "desirable_weight", "undesirable_weight", "simpo_gamma", "cpo_alpha",
)  # fmt: skip
"""Arguments of which a trainer has a copy, which its loss reads."""
_LOSSES = (
    "compute_loss", "_compute_loss", "_compute_loss_liger", "get_batch_loss_metrics", "dpo_loss",
    "kto_loss", "cpo_loss", "bco_loss", "odds_ratio_loss", "forward",
    "concatenated_forward", "concatenated_inputs", "compute_reference_log_probs",
    "compute_ref_log_probs", "compute_preference_loss",
)  # fmt: skip
"""Methods that make the loss of a batch."""
_KNOWN = ("trl.", "llamafactory.", "transformers.", "builtins")
"""Packages whose losses are known, or that make none."""
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
_TENSORS = 64
_FOLLOWS = ("SyncRefModelCallback", "BEMACallback")
"""Callbacks that move a reference on purpose."""


class PreferenceTrainer:
    """The trainer of a model, where it is one of preferences."""

    def __init__(self, found: FoundModel) -> None:
        self._found = found
        self._trainer: Any = None
        """The optimizer's id, and a weak reference to its trainer, once that was looked for."""
        self._sides: Sides | None = None
        self._first: dict[str, str] = {}
        """Digests of the reference at the first look."""
        self._ran: int | None = None
        """Passes of a reference that is a model, since the last look; None: not counted."""
        self._handle: Any = None

    def look(self, watch: Any, optimizer: Any, records: list[PassRecord]) -> None:
        """Write a `preference` before a step, where such a trainer is alive."""
        try:
            if self._trainer is None or self._trainer[0] != id(optimizer):
                trainer, why = _find(self._found, optimizer)
                own = (lambda: None) if trainer is None else weakref.ref(trainer)
                self._trainer, self._sides = (id(optimizer), own), None
                if why:
                    watch.skip("preference", why)
            trainer = self._trainer[1]()
            if trainer is None:
                return
            kind, method = _kind(type(trainer))
            if method == _ONLINE:
                watch.skip("preference", f"{kind.__name__} makes its answers itself")
                return
            self._sides = self._sides or Sides(trainer)
            arguments = _arguments(trainer)
            watch.say(
                "preference",
                trainer=f"{kind.__module__}.{kind.__qualname__}",
                own=_own(type(trainer), kind),
                overridden=_overridden(trainer),
                method=method,
                arguments=arguments,
                changed=_changed(trainer, arguments),
                reference=self._reference(trainer, optimizer),
                sides=self._sides.of(records),
            )
            self._count(trainer, is_next=watch.settings.looks_at(watch.step + 1))
        except Exception as error:  # of a trainer of another kind: the rest is looked at
            watch.skip("preference", f"{type(error).__name__}: {error}"[:200])

    def _count(self, trainer: Any, *, is_next: bool) -> None:
        """Count the passes of the reference's own backbone until the next look."""
        from .capture import Hook

        if self._handle is not None:
            self._handle.remove()
        self._ran = self._handle = None
        model = _unwrapped(getattr(trainer, "ref_model", None))
        if model is None or not is_next:
            return
        names = {_bare(n) for n, m in self._found.model.named_modules() if m is self._found.base}
        backbone = next((m for n, m in model.named_modules() if _bare(n) in names), None)
        if backbone is None or backbone is self._found.base:
            return

        def run(*_: Any) -> None:
            self._ran = (self._ran or 0) + 1

        self._ran, self._handle = 0, backbone.register_forward_hook(Hook(run))

    def _reference(self, trainer: Any, optimizer: Any) -> dict[str, Any]:
        """Return the facts about the reference: a model or an adapter of its own, or neither."""
        policy = dict(self._found.model.named_parameters())
        trained = {n: p for n, p in policy.items() if p.requires_grad}
        model = _unwrapped(getattr(trainer, "ref_model", None))
        own: dict[str, Any] = {}
        names: dict[str, str] = {}
        if model is not None:
            kind, own = "model", dict(model.named_parameters())
            bare = {_bare(n): n for n in policy}
            names = {n: bare[_bare(n)] for n in own if _bare(n) in bare}
        elif any(".ref." in n for n in policy):
            kind, own = "adapter", {n: p for n, p in policy.items() if ".ref." in n}
            names = {n: n.replace(".ref.", ".default.") for n in own}
        elif _has_adapter(policy):  # what is left where they are turned off, and is trained
            adapters = set(getattr(self._found.model, "peft_config", None) or ()) | {"default"}
            kind = "adapter off"
            own = {n: p for n, p in trained.items() if not adapters & set(n.split("."))}
        else:
            kind = "none"
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
            "ran": self._ran,
            "follows": [n for each in callbacks if (n := type(each).__name__) in _FOLLOWS],
        }


def _find(found: FoundModel, optimizer: Any) -> tuple[Any, str | None]:
    """Return the trainer of preferences that trains this model, or why it is not known which."""
    if not any(name.startswith("trl.") and name.endswith("_trainer") for name in sys.modules):
        return None, None
    mine = {id(p) for p in found.model.parameters()}
    known: dict[int, bool] = {}  # by the class's id: a metaclass may hash it in its own way
    fit = []
    for each in gc.get_objects():
        own = type(each)
        if id(own) not in known:
            known[id(own)] = bool(_kind(own)[1])
        if not known[id(own)]:
            continue
        model = getattr(each, "model", None)
        if isinstance(model, torch.nn.Module) and any(id(p) in mine for p in model.parameters()):
            fit.append(each)
    fit = [each for each in fit if _steps(each, optimizer)] or [
        each for each in fit if getattr(each, "is_in_train", False)
    ]
    if len(fit) > 1 and any(_arguments(each) != _arguments(fit[0]) for each in fit):
        return None, f"{len(fit)} trainers of preferences have this model, with other arguments"
    return (fit[0] if fit else None), None


def _steps(trainer: Any, optimizer: Any) -> bool:
    """Return whether a trainer has this optimizer, itself or wrapped."""
    mine, theirs = (
        {id(each) for each in _inner(one)}
        for one in (optimizer, getattr(trainer, "optimizer", None))
    )
    return bool(mine & theirs)


def _inner(optimizer: Any) -> list[Any]:
    found = []
    for _ in range(4):
        if optimizer is None:
            break
        found.append(optimizer)
        optimizer = getattr(optimizer, "optimizer", None)
    return found


def _kind(own: type) -> tuple[type, str]:
    """Return the class of TRL's that a trainer is of, and its method; no method for any other."""
    for kind in type.__getattribute__(own, "__mro__"):
        # an heir may have any name; a metaclass may have another module
        if not str(type.__getattribute__(kind, "__module__")).startswith("trl."):
            continue
        if kind.__name__ in _OTHERS:
            return kind, _ONLINE
        if method := _METHODS.get(kind.__name__):
            return kind, method
    return own, ""


def _own(own: type, kind: type) -> str | None:
    """Return the module of the first heir of TRL's class: a framework's, before a user's own."""
    heirs = [each for each in own.__mro__ if each is not kind and issubclass(each, kind)]
    return str(heirs[-1].__module__) if heirs else None


def _overridden(trainer: Any) -> list[str]:
    """Return the methods that make the loss and are not those known, wherever they are defined."""
    found = set(_LOSSES) & set(vars(trainer))
    for kind in type(trainer).__mro__:
        if not str(kind.__module__).startswith(_KNOWN):
            found |= set(_LOSSES) & set(vars(kind))
    return sorted(found)


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
    # TRL's later releases smooth other kinds alone
    given["smooths_sigmoid"] = any(hasattr(trainer, n) for n in ("dpo_loss", "cpo_loss"))
    other = getattr(trainer, "finetuning_args", None)
    for name, own in _OF_LLAMAFACTORY.items():
        if other is not None and hasattr(other, name):
            given[own] = _plain(getattr(other, name))
    return given


def _changed(trainer: Any, arguments: dict[str, Any]) -> dict[str, float]:
    """Return the numbers that the trainer has, and its loss reads, in place of its arguments."""
    found = {}
    for name in _OF_TRAINER:
        own, given = _plain(getattr(trainer, name, None)), arguments.get(name)
        if type(own) in (int, float) and type(given) in (int, float) and own != given:
            found[name] = own
    return found
