"""Keeps the hidden states and their gradients, for the passes of a step that is looked at."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor

from .inner_norm import InnerNorm
from .kinds import kind_of_batch, own_mask, parted
from .learnt import PassRecord
from .model import FoundModel, has_dropout, is_recorded
from .norm import norm_gradient
from .places import evenly_spaced
from .rows import KeptBatch, keep_batch
from .settings import WatchSettings
from .twin import TwinPass

_OUTER = ("input_ids", "attention_mask", "position_ids", "pixel_values", "pixel_values_videos")


_MOST_SEEN, _MOST_PASSES = 256, 4096
"""Batches, and passes that are looked at, which wait for a step: some runs make none."""


def hooks_off() -> bool:
    """Return whether hooks do nothing here: while traced, recorded in a graph, or recomputed."""
    if torch.jit.is_tracing() or not torch.is_grad_enabled():
        return True
    if is_recorded():
        return True
    return is_in_backward()


def is_in_backward() -> bool:
    """Return whether a backward pass runs in this thread."""
    running = getattr(torch._C, "_current_graph_task_id", None)
    return running is not None and running() != -1


class Hook:
    """A module's hook, which a copy or a pickle of the module leaves out."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __call__(self, *given: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.call(*given)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, does nothing


def _rotaries(base: Any) -> list[Any]:
    """Return the modules that compute rotary embeddings from the positions of a text."""
    return [
        module
        for name, module in base.named_modules()
        if (kind := type(module).__name__).endswith("RotaryEmbedding")
        and "vis" not in name
        and "Vision" not in kind
    ]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


class Capture:
    """Hooks of one model. What it gathers is taken at the optimizer's step."""

    def __init__(self, found: FoundModel, settings: WatchSettings, fail: Any) -> None:
        self.found, self.settings, self._fail = found, settings, fail
        self.looking = False
        self.want_alone = False
        self.done: set[str | None] = set()
        """Kinds of micro-batches of which no further one is kept."""
        self.records: list[PassRecord] = []
        self.ledger: list[KeptBatch] = []
        self.skipped: dict[str, str] = {}
        self.window = 0
        self.kept = 0
        self.share = 0
        """Positions for each micro-batch, once their number is known."""
        self.heard: dict[str, Any] = {}
        self.calls = self.entered = 0
        """Passes of the model, and of its backbone."""
        self._outer: dict[str, Any] = {}
        self._row_mask: Any = None
        """The mask of rows × positions, where the model makes one of four dimensions of it."""
        self._pending: tuple[dict[str, Any], dict[str, Any], KeptBatch | None] | None = None
        self._norm: tuple[Tensor, Tensor] | None = None
        self.inner = InnerNorm(found.base, found.norm if found.layout is None else None)
        self._micro = 0
        self._names = list(inspect.signature(type(found.base).forward).parameters)[1:]
        self.first_of_step: Any = None
        """Called before the first pass of a step."""
        self.zeroed: Any = None
        """Called between passes; whether the gradients so far were thrown away."""
        self.full: Any = None
        """Called where many batches wait for a step."""
        self._twin = TwinPass()
        self._handles = self._listen()

    def _listen(self) -> list[Any]:
        found = self.found
        wrap = self._guard if not self.settings.compiled else self._broken
        handles = [
            found.base.register_forward_pre_hook(wrap(self._enter), with_kwargs=True),
            found.base.register_forward_hook(wrap(self._leave)),
            found.base.register_forward_hook(self._twin.hook(self), with_kwargs=True),
        ]
        if found.base is not found.model:
            before = wrap(self._outside)
            # before hooks of the model's own: a pipeline's later stages take the ids away
            handles.append(
                found.model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            )
        if found.norm is not None:
            handles.append(found.norm.register_forward_hook(wrap(self._at_norm)))
        if self.inner.norm is not None:
            handles.append(self.inner.norm.register_forward_hook(wrap(self._at_inner)))
        for module in _rotaries(found.base):
            at_rotary = wrap(self._at_rotary)
            handles.append(module.register_forward_pre_hook(at_rotary, with_kwargs=True))
        return handles

    def listens_to(self) -> set[int]:
        """Return the modules (by `id`) that have hooks of this."""
        norms = self.found.norm, self.inner.norm
        hooked = {id(self.found.model), id(self.found.base), *map(id, norms)}
        return hooked | {id(module) for module in _rotaries(self.found.base)}

    def close(self) -> None:
        """Remove the hooks and drop every record."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.records, self.ledger = [], [], []
        self.looking = False
        self.first_of_step = self.zeroed = self.full = None
        self._outer, self._pending, self._norm, self.heard = {}, None, None, {}
        self._row_mask = None
        self._twin.forget()

    def _guard(self, call: Any) -> Hook:
        always = call in (self._outside, self._enter)

        def run(*given: Any) -> None:
            try:
                if (always or self.looking) and not hooks_off():
                    call(*given)
            except Exception as error:
                self._pending = None
                self._fail(call.__name__.strip("_"), error)

        return Hook(run)

    def _broken(self, call: Any) -> Any:
        """Return a hook that breaks a compiler's graph: asked for by VTOOL_WATCH_COMPILED=1."""
        inner = self._guard(call).call
        disable = torch._dynamo.disable
        return disable(inner)

    # ---- before and after the backbone
    def _outside(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.calls += 1
        self._outer = {name: kwargs.get(name) for name in _OUTER}
        if args and isinstance(args[0], Tensor) and self._outer["input_ids"] is None:
            self._outer["input_ids"] = args[0]

    def _enter(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.entered += 1
        self._pending = self._norm = self._row_mask = None
        given = own = {**dict(zip(self._names, args)), **kwargs}
        outer, self._outer = self._outer, {}
        ids = given.get("decoder_input_ids")
        ids = given.get("input_ids") if ids is None else ids
        if ids is None and outer.get("input_ids") is not None:  # it is given embeddings
            mask = given.get("attention_mask")
            if isinstance(mask, Tensor) and mask.dim() > 2:  # it has more than a mask of rows
                self._row_mask, outer["attention_mask"] = outer["attention_mask"], None
            given = {**given, **{k: v for k, v in outer.items() if v is not None}}
            given["embeddings_given"] = True
            ids = outer["input_ids"]
        if not self.records and self._micro == 0 and self.first_of_step is not None:
            self.first_of_step()
        if self.looking and self.records and self.zeroed is not None and self.zeroed():
            self.window += 1
        seen = None
        if isinstance(ids, Tensor) and ids.dim() == 2 and not hasattr(ids, "full_tensor"):
            seen = keep_batch(given, ids, self._micro)
            self.ledger.append(seen)
            if len(self.ledger) >= _MOST_SEEN and self.full is not None:
                self.full()
        else:
            self.skipped.setdefault("ledger", "the model is not given ids of rows × positions")
        self._micro += 1
        if self.looking and len(self.records) >= _MOST_PASSES:
            self.looking = False
            self.records.clear()
            self.skipped["learnt"] = f"{_MOST_PASSES} passes came without a step"
        if self.looking:
            self._pending = ({**given, "input_ids": ids}, own, seen)

    def _at_norm(self, module: Any, args: Any, output: Any) -> None:
        if self.looking and args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            self._norm = (args[0].detach(), output.detach())

    def _at_inner(self, module: Any, args: Any, output: Any) -> None:
        self.inner.at_forward(module, args, output)

    def _at_rotary(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        given = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(given, Tensor) and self.looking:
            self.heard["positions"] = given.detach()

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if self._pending is None:
            return
        (given, own, seen), self._pending = self._pending, None
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None:
            hidden = output[0] if isinstance(output, tuple) else output
        norm, self._norm = self._norm, None
        inner = self.inner.take()
        if not isinstance(hidden, Tensor) or hidden.shape[-1] != self.found.hidden:
            self.skipped.setdefault("learnt", "the backbone gives no last hidden state")
            return
        if hasattr(hidden, "full_tensor"):
            self.skipped.setdefault("learnt", "hidden states are split over ranks (DTensor)")
            return
        if not hidden.requires_grad:
            why = "no gradient comes back to the last hidden state: the backbone is frozen"
            self.skipped.setdefault("learnt", why)
            return
        layout = self.found.layout
        if layout is not None and layout.sizes["cp"] > 1:
            self.skipped.setdefault("learnt", "ranks share each row (context parallelism)")
            return
        device = hidden.device.type
        cast = torch.is_autocast_enabled(device)
        record = PassRecord(
            index=len(self.records),
            shape=self._shape(hidden, given.get("input_ids")),
            autocast=str(torch.get_autocast_dtype(device)) if cast else None,
            names=sorted(n for n, v in given.items() if isinstance(v, Tensor) or v is True),
            dropout=("on" if self.found.base.training else "off")
            if has_dropout(self.found.base)
            else None,
            seen=seen,
            inner=inner,
            window=self.window,
            version=sum(p._version for p in self.found.base.parameters() if p.requires_grad),
        )
        held = hidden.detach()
        try:
            self._keep(record, given, own, held)
        except Exception as error:
            record.alone = {}
            self._fail("alone", error)
        self._twin.note(record, held)
        self.records.append(record)
        if norm is not None and norm[1].data_ptr() != held.data_ptr():
            norm = None  # something is between the norm and the head
        version = hidden._version

        def read(gradient: Tensor | None) -> None:
            try:
                if gradient is None:  # a function of the loss gives its input none
                    record.why = "the loss gives the last hidden states no gradient"
                elif held._version != version:
                    record.why = "the hidden states were changed in place"
                else:
                    self._read(record, held, gradient, norm)
            except Exception as error:
                record.why = "an error"
                self._fail("read", error)

        hidden.register_hook(read)

    def _keep(
        self, record: PassRecord, given: dict[str, Any], own: dict[str, Any], held: Tensor
    ) -> None:
        """Note the kind of a micro-batch, and keep the first of each to be computed again."""
        ids = given.get("input_ids")
        if record.seen is None or not isinstance(ids, Tensor):
            return
        texts = {**record.seen.inputs, "attention_mask": own_mask(given)}
        if "decoder_input_ids" in given:  # the mask is an encoder's
            texts["attention_mask"] = given.get("decoder_attention_mask")
        apart = parted(texts, ids, self._row_mask)
        on_cpu = apart and {n: v.cpu() if isinstance(v, Tensor) else v for n, v in apart.items()}
        specials, ends = self.found.specials, self.found.ends
        pads = [token for token in specials.get("pad", []) if token not in ends]
        record.kind = kind_of_batch(on_cpu, ids.cpu(), pads)
        if not self.want_alone or record.kind in self.done:
            return
        same = (r for r in self.records if (r.kind, r.window) == (record.kind, record.window))
        if any(r.alone.get("inputs") for r in same):
            return
        inputs = {n: v for n, v in given.items() if isinstance(v, Tensor) or v is True}
        size = sum(v.nbytes for v in inputs.values() if isinstance(v, Tensor))
        if size > self.settings.budget // 4:
            return
        small = held.nbytes <= self.settings.budget // 4
        record.alone = {
            "inputs": inputs,
            "given": {n: _detached(v) for n, v in own.items() if n != "past_key_values"},
            "cached": own.get("past_key_values") is not None,
            "hidden": held.clone() if small else None,
            "positions": self.heard.get("positions"),
            "row_mask": self._row_mask,
            "parted": on_cpu or record.seen.inputs,
        }

    def _shape(self, hidden: Tensor, ids: Any) -> tuple[int, ...]:
        """Return rows × positions of the whole micro-batch."""
        layout = self.found.layout
        if layout is None:
            return tuple(hidden.shape[:-1])
        length = hidden.shape[0] * (layout.tensor if layout.shares_tokens else 1)
        return hidden.shape[1], ids.shape[-1] if isinstance(ids, Tensor) else length

    def _read(
        self,
        record: PassRecord,
        held: Tensor,
        gradient: Tensor,
        norm: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Keep the positions that have a gradient, or some of them."""
        places = None
        if self.found.layout is not None:  # [S, B, H], of which this rank may have a part of S
            begin = self.found.layout.begin(held.shape[0])
            gradient_of_rows, held = gradient.detach().transpose(0, 1), held.transpose(0, 1)
            columns = torch.arange(begin, begin + held.shape[1], device=held.device)
            rows = torch.arange(held.shape[0], device=held.device)[:, None] * record.shape[-1]
            inside = columns < record.shape[-1]  # rows may be padded to be shared out
            places = (rows + columns[inside]).flatten()
            flat = gradient_of_rows[:, inside].flatten(0, -2)
            h = held[:, inside].flatten(0, -2)
        else:
            flat, h = gradient.detach().flatten(0, -2), held.flatten(0, -2)
        live = (flat != 0).any(-1)
        here = live.nonzero()[:, 0]
        at = here if places is None else places[here]
        if record.g is not None:  # a second backward pass through the same graph
            record.why, record.g, record.h = "two backward passes", None, None
            return
        record.dtype, record.supervised = str(gradient.dtype), len(at)
        if len(record.shape) == 2:
            counts = torch.bincount(at // record.shape[-1], minlength=record.shape[0]).tolist()
            record.alone["row_counts"] = dict(enumerate(counts))
            live_places = torch.zeros(
                record.shape[0] * record.shape[1], dtype=torch.bool, device=at.device
            )
            record.live = live_places.index_fill_(0, at, True)
        room = self.settings.tokens - self.kept
        size = 2 * h.shape[-1] * max(h.element_size(), flat.element_size())
        room = min(room, self.settings.budget // 2 // size - self.kept)
        most = max(room // 2, min(room, self.share)) if len(at) > room // 2 else room
        if len(at) > max(most, 0):
            if most < 1:
                record.why = "no room for its positions (VTOOL_WATCH_TOKENS, VTOOL_WATCH_MIB)"
                return
            some = evenly_spaced(len(at), most, at.device)
            at, here = at[some], here[some]
        record.at, record.h, record.g = at, h[here], flat[here]
        self.kept += len(at)
        record.why = None if len(at) else "no position has a gradient"
        if norm is not None and self.found.norm is not None:
            try:
                record.norm_sum = norm_gradient(self.found.norm, norm[0], gradient.detach())
            except Exception as error:
                self.skipped.setdefault("engine", f"the final norm cannot be run again: {error!r}")

    def take(self) -> list[PassRecord]:
        """Return the step's records, and start an empty list."""
        records, self.records = self.records, []
        self.kept, self._micro = 0, 0
        self._twin.forget()
        if records:
            self.share = self.settings.tokens // len(records)
        return records

    def take_ledger(self) -> list[KeptBatch]:
        """Return the batches seen since."""
        seen, self.ledger = self.ledger, []
        return seen
