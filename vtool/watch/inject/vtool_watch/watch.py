"""One watched model: what is written before and after each step of its optimizer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from . import arrival
from .alive import is_accumulating, loss_scale, scales, trainer_facts
from .batches import BatchLooks
from .capture import Capture, is_in_backward
from .embeddings import EmbeddingRows
from .end_rate import RateFollower
from .facts import FactWriter, rank_and_world
from .frozen import Frozen
from .hooked import hooked_gradients
from .inner_norm import sum_of
from .kept_gradients import KeptGradients, gradient_of
from .learnt import PassRecord, micro_facts, next_ids, rounding, thrown_away
from .left import GradSamples
from .megatron import is_shared_out
from .model import (
    FoundModel,
    Unreadable,
    as_head,
    head_tensors,
    is_compiled,
    is_in_pieces_of_fsdp1,
    model_facts,
    unshard,
)
from .preference import PreferenceTrainer
from .ranks import Agreement, agreement, ranks_of
from .rows import KeptBatch, ledger
from .settings import WatchSettings
from .solve import precision_for, solve
from .trail import WeightTrail

_MOST_ERRORS = 3
_LEDGER_SECONDS, _LEDGER_BATCHES = 1.0, 64
"""Batches wait so long, or so many of them, for the ledger: few steps wait for a device or file."""


class Watch:
    """Looks at a model's steps. None of its methods raises."""

    def __init__(
        self,
        found: FoundModel,
        optimizer: Any,
        settings: WatchSettings,
        writer: FactWriter,
        number: int,
    ) -> None:
        self.found, self.settings, self.writer, self.number = found, settings, writer, number
        self.driver, self._name = id(optimizer), type(found.model).__name__
        self.step = self._errors = 0
        self.stepping = False
        """A step of its optimizer is being made; others may be made within, as in ZeRO's."""
        self.seconds = 0.0
        self._described = self._shared_out = False
        self.off = self._asked = self._given_up = False
        self._reported: set[tuple[str, str]] = set()
        self._waiting: list[tuple[int, KeptBatch]] = []
        self._written = time.monotonic()
        self._agreement: Agreement | None = None
        self._frozen = Frozen(found, self.skip)
        self._reference: arrival.AdamWReference | None = None
        self._weights = arrival.WeightDigests()
        self._pushed: set[str] = set()
        """Trained parameters whose gradient is not 0 before the step."""
        self._moving: set[str] | None = None
        self._before: list[str] | None = None
        self._kept, self._rows = KeptGradients(found), EmbeddingRows(found)
        self._trail, self._rate = WeightTrail(), RateFollower()
        self._preference = PreferenceTrainer(found)
        self._passes = 0, 0
        """Passes of the model before the last step but one, and before the last."""
        self._others: list[tuple[int, str, int]] = []
        """Steps of other optimizers: passes before them, name, parameters that both have."""
        self._undone: dict[str, Any] | None = None
        self._left = GradSamples(found, self.fail)
        self._batches = BatchLooks(found, self.say, self.skip, self.fail)
        self.capture = Capture(found, settings, self.fail)
        self.capture.first_of_step = self._first_of_step
        self.capture.zeroed = self._zeroed
        self.capture.full = self._write_ledger
        self._aim()

    def _aim(self) -> None:
        """Set what the next step's passes are to keep."""
        stop = self.settings.stop
        look = not self.off and not self.writer.failed and self.settings.looks_at(self.step)
        self.capture.looking = look and not (stop and os.path.exists(stop))
        if self.step >= self.settings.steps:
            self._batches.again()
        if not self.capture.looking:
            self._left.detach()
        self.capture.want_alone, self.capture.done = self.settings.alone, self._batches.done

    # ---- reports
    def say(self, kind: str, **fact: Any) -> None:
        """Write a fact of this model."""
        self.writer.write(kind, step=self.step, model=self.number, **fact)

    def skip(self, what: str, why: str) -> None:
        """Report once that something could not be looked at."""
        if (what, why) not in self._reported:
            self._reported.add((what, why))
            self.say("skipped", what=what, why=why)

    def fail(self, where: str, error: BaseException) -> None:
        """Report an error; out of memory, or too many errors, ends the watch of the model."""
        if self.off:
            return
        out = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        out = out or "out of memory" in str(error).lower()
        self._errors += 1
        self.off = self.off or out or self._errors >= _MOST_ERRORS
        self.say("error", where=where, error=f"{type(error).__name__}: {error}"[:300], off=self.off)
        if self.off:
            self.capture.close()
            self._left.detach()

    # ---- gradients between steps
    def _first_of_step(self) -> None:
        self._kept.forget()
        if self.capture.looking:
            self._left.attach()
        if self.capture.looking and self.step > 0:
            self._before = self._kept.nonzero(8)

    def _zeroed(self) -> bool:
        """Return whether gradients were thrown away since the last pass: no step will have them."""
        records = self.capture.records
        if any(r.g is None and r.why == "no backward pass" for r in records):
            return False
        last = [r for r in records if r.window == self.capture.window]
        if not self._kept.are_gone(any(r.supervised for r in last)):
            return False
        self._left.forget()
        return True

    # ---- before the step: weights are still those of the passes, and all ranks meet
    def before_step(self, optimizer: Any, owned: Callable[[], set[int]]) -> None:
        """Look at a step's passes and gradients."""
        looked = self.settings.looks_at(self.step)
        unseen = looked and self._is_unseen()
        self._passes = self._passes[1], self.capture.entered
        self._given_up = False
        try:
            if not self.off:
                self._describe(optimizer, owned)
                self._write_ledger(self._is_due() or looked)
                self._given_up = looked and arrival.is_given_up(optimizer)
        except Exception as error:
            self.fail("ledger", error)
        if not looked or unseen or self._given_up:
            self.capture.take()
            self._follow(optimizer)
            return
        begin = time.perf_counter()
        head = self._whole_head()  # ranks agree on it: also where this rank's watch is off
        records = self.capture.take()
        if self.off or not self.capture.looking:
            return
        try:
            with torch.no_grad():
                self._look(optimizer, records, head, owned())
        except Exception as error:
            self.fail("before_step", error)
        self.seconds += time.perf_counter() - begin

    def _follow(self, optimizer: Any) -> None:
        """Look whether weights were written since the last step, and at nothing else."""
        if self.off or not self._trail.follows(self.step):
            return
        try:
            with torch.no_grad():
                self.say("followed", undone=self._trail.before(self.step, self.found, optimizer))
        except Exception as error:
            self.fail("before_step", error)

    def other_step(self, name: str, tensors: int) -> None:
        """Note that another optimizer steps with parameters of this one's."""
        self._others.append((self.capture.entered, name, tensors))

    def _by_others(self) -> dict[str, int]:
        """Return the other optimizers that made a step with the gradients of one of this one's."""
        others, self._others = self._others, []
        same = {passes for passes in self._passes if passes and self._passes[0] < self._passes[1]}
        return {name: tensors for passes, name, tensors in others if passes in same}

    def _is_unseen(self) -> bool:
        """Return whether nothing of a step can be looked at, and say why."""
        try:
            if is_in_pieces_of_fsdp1(self.found):
                self.skip("learnt", "weights are kept in pieces by FSDP1; FSDP2's are read")
            elif is_in_backward():
                self.skip("learnt", "optimizers step within the backward pass, tensor by tensor")
            else:
                return False
        except Exception as error:
            self.fail("before_step", error)
        return True

    def _whole_head(self) -> Any:  # noqa: PLR0911
        """Return the head's whole tensors, or None where they cannot be read."""
        try:
            tensors = head_tensors(self.found)
            layout = self.found.layout
            cut = layout is not None and layout.tensor > 1
            sharded = [t for t in tensors if cut or hasattr(t, "full_tensor")]
            size = sum(t.numel() * t.element_size() for t in sharded)
            size *= layout.tensor if layout is not None else 1
        except Unreadable as why:
            self.skip("head", str(why))
            return None
        except Exception as error:
            self.fail("head", error)
            return None
        if not sharded:
            return tensors if layout is None else [layout.whole_head()]
        ready = not self.off and self.capture.looking and not self.writer.failed
        if ready and size > self.settings.budget:
            ready = False
            self.skip("head", f"its {size >> 20} MiB are more than VTOOL_WATCH_MIB")
        try:
            if self._agreement is None and not self._asked:
                self._asked = True
                self._agreement = agreement(self.settings.wait, f"vtool_watch/{self.number}")
            if self._agreement is None:
                self.skip("head", "it is sharded, and the ranks have no store to agree by")
                return None
            if layout is not None:
                ranks = layout.ranks
            else:
                ranks = sorted({rank for t in sharded for rank in ranks_of(t)})
            if not self._agreement.decide(f"head/{ranks[0]}/{self.step}", ranks, ready):
                self.skip("ranks", self._agreement.over or "a rank does not look at this step")
                return None
            return [unshard(t) for t in tensors] if layout is None else [layout.whole_head()]
        except Exception as error:
            self.fail("head", error)
            return None

    def _describe(self, optimizer: Any, owned: Callable[[], set[int]]) -> None:
        if self._described:
            return
        self._described = True
        self._shared_out = self.found.layout is not None and is_shared_out(optimizer)
        described = model_facts(self.found, optimizer, owned(), self.seconds, self._shared_out)
        self.say("model", **described)
        if is_compiled(self.found) and not self.settings.compiled:
            why = "the model is compiled; hooks inside would change what the compiler makes"
            self.skip("learnt", why + " (VTOOL_WATCH_COMPILED=1 allows it)")

    def _is_due(self) -> bool:
        late = time.monotonic() - self._written >= _LEDGER_SECONDS
        return late or self.step == 0 or len(self._waiting) >= _LEDGER_BATCHES

    def _write_ledger(self, now: bool = True) -> None:
        """Write the batches that wait, or keep those of this step for later."""
        batches = self.capture.take_ledger()
        for what, why in self.capture.skipped.items():
            self.skip(what, why)
        if not now:
            self._waiting += [(self.step, seen) for seen in batches]
            return
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic()
        config, facts = self.found.model.config, []
        try:
            for step, seen in waiting:
                facts.append((step, ledger(seen, config)))
            for number, seen in enumerate(batches):
                fact = ledger(seen, config)
                if number == 0 and self.step == 0:
                    fact.update(trainer_facts(), mask_axes=seen.mask_axes)
                if number == 0 and self.settings.looks_at(self.step) and self.settings.text:
                    fact["inputs"] = seen.ids[:8, :4096].cpu().tolist()
                facts.append((self.step, fact))
        finally:  # those before one that cannot be read
            self.writer.write_all("rows", facts, self.number)

    def _look(self, optimizer: Any, records: list[PassRecord], head: Any, owned: set[int]) -> None:
        half = any("torch.float16" in (r.dtype, r.autocast) for r in records)
        scale = loss_scale(optimizer) if half else 1.0
        last = max((r.window for r in records), default=0)
        visible = self._kept.is_anywhere()
        dropped = [r for r in records if r.window != last] if visible else []
        moved = len({r.version for r in records}) > 1
        if dropped:
            records = [r for r in records if r.window == last]
        if moved:
            self.skip("learnt", "weights change between the passes of a step, as in SAM")
            for record in records:
                record.why, record.alone, record.g = "weights changed before the step", {}, None
        elif dropped:
            self.skip("learnt", thrown_away(dropped))
        if not records:
            self.skip("learnt", self._why_no_pass())
        self._preference.look(self, optimizer, records)
        total = self._learnt(records, head, scale)
        self._undone = self._trail.before(self.step, self.found, optimizer)
        self._pushed = set()
        try:
            divisor = arrival.left_to_divide(optimizer)
            off = half or not 0.5 < total < 2  # else the loss is a mean, as it is
            self._arrived(optimizer, records, scale, divisor, scales() if off else [])
        except Exception as error:
            self.fail("arrived", error)
        if self.capture.want_alone:
            self._batches.look(records)
        later = self.step >= self.settings.steps
        self._frozen.look(optimizer, owned, shared_out=self._shared_out, anew=later)
        self._reference = arrival.AdamWReference(self.found, optimizer)
        if self._reference.why is not None:
            self.skip("reference", self._reference.why)

    def _why_no_pass(self) -> str:
        if self.capture.calls and not self.capture.entered:
            return (
                f"{self._name} does not call its {type(self.found.base).__name__} but a part of it,"
                " as OPT does: no last hidden state was seen"
            )
        return (
            "no pass of the model was seen: it is compiled (VTOOL_WATCH_COMPILED=1 looks into it),"
            " or its hooks are not called"
        )

    def _learnt(self, records: list[PassRecord], head: Any, scale: float) -> float:
        """Write what each pass taught, and return the sum of all weights."""
        begin, tokens, precision, total = time.perf_counter(), 0, None, 0.0
        for number, record in enumerate(records):
            record.index, solved, u = number, None, 0.0
            if record.g is not None and len(record.g) and head is not None:
                assert record.at is not None
                assert record.h is not None
                u = rounding(record, head[0].dtype, torch.float64)
                dtype = precision_for(head[0], u)
                u = rounding(record, head[0].dtype, dtype)
                guess = None
                if record.seen is not None and tuple(record.seen.ids.shape) == record.shape:
                    guess = next_ids(record.seen.ids, record.at).to(head[0].device)
                room = max(16 << 20, min(192 << 20, self.settings.budget // 4))
                h, g = (each.to(head[0].device) for each in (record.h, record.g))
                solved = solve(h, g, as_head(self.found, head), guess, u, dtype, room)
                tokens, precision = tokens + len(record.g), str(dtype)
            elif head is None and record.why is None:
                record.why = "the head could not be read"
            fact = micro_facts(record, solved, self.found, u, text=self.settings.text, scale=scale)
            if record.alone.get("inputs"):
                record.alone["h"] = record.h
            record.h = record.g = None
            total += fact.get("sum", 0.0)
            self.say("micro", **fact)
        seconds = round(time.perf_counter() - begin, 3)
        self.say("solved", seconds=seconds, tokens=tokens, precision=precision)
        return total

    def _arrived(
        self,
        optimizer: Any,
        records: list[PassRecord],
        scale: float,
        divisor: float,
        scalers: list[float],
    ) -> None:
        fact, self._pushed = arrival.gradient_facts(self.found, divisor, self._rows)
        fact.update(self._kept.facts(optimizer, fact), left=self._left.lost(optimizer))
        fact["scalers"], fact["accumulating"] = scalers, is_accumulating()
        fact["tokens"] = self._rows.tokens(records)
        if self._shared_out:
            fact["sharded"], fact["whole"], fact["largest"] = True, None, None
        fact["gradients_before"], self._before = self._before, None
        fact["undone"], fact["hooked"] = self._undone, hooked_gradients(self.found)
        fact["layers"], fact["changes"] = self._left.facts(divisor), self._left.changes()
        none = ("norm_name", "norm_at", "norm_sum", "norm_gradient")
        fact.update(dict.fromkeys((*none, "engine_factor", "engine_misfit", "inner")))
        norm = self.found.norm
        back = [r for r in records if r.supervised]
        sums = [r.norm_sum for r in back if r.norm_sum is not None]
        if norm is None:
            self.skip("engine", "no final norm was found")
        elif not norm.weight.requires_grad:
            self.skip("engine", f"{self.found.norm_name}.weight is not trained")
        elif gradient_of(norm.weight) is None:
            self.skip("engine", f"{self.found.norm_name}.weight has no gradient at the step")
        elif self._shared_out:
            self.skip("engine", "the optimizer has shares of gradients (distributed optimizer)")
        elif not sums or len(sums) < len(back):
            self.skip("engine", "not every pass was seen at the final norm")
        else:
            try:
                world = rank_and_world()[1]
                name = self.found.norm_name
                fact.update(arrival.norm_facts(name, norm, sums, scale, divisor, world))
                fact["inner"] = self._inner(back, scale, divisor, world)
            except Exception as error:
                self.skip("engine", f"{type(error).__name__}: {error}"[:200])
        self.say("arrived", **fact)

    def _inner(
        self, back: list[PassRecord], scale: float, divisor: float, world: int
    ) -> dict[str, Any] | None:
        inner = self.capture.inner
        weight = getattr(inner.norm, "weight", None)
        if weight is None or not weight.requires_grad or gradient_of(weight) is None:
            return None
        sums = sum_of([record.inner for record in back])
        if sums is None:
            return None
        return arrival.norm_facts(inner.name, inner.norm, sums, scale, divisor, world)

    def end(self) -> None:
        """Write what is left of the ledger, and release the model."""
        try:
            if not self.off:
                if self.capture.ledger and not self._described:
                    why = "its optimizer made no step that could be seen (a compiled one is not)"
                    self.writer.write("blind", why=f"{self._name} was run, but {why}")
                self._write_ledger()
                if (rate := self._rate.fact(self.step)) is not None:
                    self.say("rate_ended", **rate)
        except Exception as error:
            self.fail("ledger", error)
        self.capture.close()
        self._left.detach()
        self._batches.close()
        self.capture._fail = self._left._fail = self._frozen._skip = _nothing

    def leave_out(self, why: str) -> None:
        """Drop the passes of a step that cannot be looked at."""
        try:
            if not self.off:
                self._write_ledger()
                self.skip("learnt", why)
        except Exception as error:
            self.fail("ledger", error)

    # ---- after the step
    def after_step(self, optimizer: Any) -> None:
        """Look at what a step did to the weights."""
        self._left.forget()
        self.capture.take()  # passes within the step: a closure that is called again
        if self._given_up:
            return
        reference, self._reference = self._reference, None
        try:
            if reference is not None and not self.off:
                with torch.no_grad():
                    self._stepped(optimizer, reference)
            elif self._trail.follows(self.step) and not self.off:
                with torch.no_grad():
                    self._trail.behind_followed(self.step, self.found, optimizer)
        except Exception as error:
            self.fail("after_step", error)
        self.step += 1
        try:
            self._rate.count(optimizer)
            self._aim()
        except Exception as error:
            self.fail("aim", error)

    def _stepped(self, optimizer: Any, reference: arrival.AdamWReference) -> None:
        frozen, groups = self._frozen.facts(), arrival.group_facts(self.found, optimizer)
        now = arrival.weight_digests(self.found)
        self.say(
            "stepped",
            moved=self._trail.behind(self.step, self.found, now),
            reference=reference.facts(),
            groups=groups,
            schedule=self._rate.look(optimizer),
            others=self._by_others(),
            **frozen,
        )
        moving = self._pushed & arrival.with_a_rate(self.found, optimizer)
        since = moving if self._moving is None else moving & self._moving
        drift = self._weights.facts(self.found, now, since)
        drift["sharded"] = drift["sharded"] or self._shared_out
        self.say("drift", **drift)
        self._moving = moving


def _nothing(*_: Any) -> None:
    """Ignore the reports of a model that is no longer watched."""
