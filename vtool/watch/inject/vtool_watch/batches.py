"""The first micro-batches of each kind, computed again: rows alone, and other tokens behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import alone, causal
from .learnt import PassRecord
from .model import FoundModel
from .mrope import mrope_facts

_NOT_KEPT = "the first micro-batch was not kept (VTOOL_WATCH_MIB)"


class BatchLooks:
    """Looks at the first plain, padded and packed micro-batch. None of its methods raises."""

    def __init__(
        self,
        found: FoundModel,
        say: Callable[..., None],
        skip: Callable[[str, str], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._found, self._say, self._skip, self._fail = found, say, skip, fail
        self._alone: set[str | None] = set()
        self._causal: set[str | None] = set()

    @property
    def done(self) -> set[str | None]:
        """The kinds of which no further micro-batch is needed."""
        return self._alone & self._causal

    def again(self) -> None:
        """Look at each kind once more."""
        self._alone.clear()
        self._causal.clear()

    def close(self) -> None:
        """Let go of the watch: no cycle keeps a model alive."""
        self._say = self._skip = self._fail = _nothing

    def look(self, records: list[PassRecord]) -> None:
        """Look at what was kept of a step's passes."""
        if records and not self.done and not any(r.alone.get("inputs") for r in records):
            self._skip("alone", _NOT_KEPT)
        for record in records:
            if record.alone.get("inputs"):
                self._rows_alone(record)
                self._replaced(record)
            record.alone = {}

    def _rows_alone(self, record: PassRecord) -> None:
        if record.kind in self._alone:
            return
        self._placed(record)
        self._ahead(record)
        try:
            if self._found.layout is not None:
                raise alone.NotComputedAlone("a pass through Megatron-core is of all ranks")
            fact = alone.compare_alone(self._found, record)
            if len(fact["documents"]) > (record.kind == "plain"):
                self._alone.add(record.kind)
            self._say("alone", batch=record.kind, micro=record.index, **fact)
        except alone.NotComputedAlone as why:
            self._skip("alone", str(why))
            self._alone.add(record.kind)
        except Exception as error:
            self._alone.add(record.kind)
            self._fail("alone", error)

    def _replaced(self, record: PassRecord) -> None:
        if record.kind in self._causal:
            return
        try:
            self._say("causal", **causal.compare_replaced(self._found, record))
            self._causal.add(record.kind)
        except alone.NotComputedAlone as why:  # a later one of this kind may do
            self._skip("causal", str(why))
        except Exception as error:
            self._causal.add(record.kind)
            self._fail("causal", error)

    def _placed(self, record: PassRecord) -> None:
        try:
            if texts := mrope_facts(self._found, record):
                self._say("placed", documents=texts)
        except Exception as error:
            self._fail("placed", error)

    def _ahead(self, record: PassRecord) -> None:
        try:
            if seen := alone.targets_seen(record, self._found.layout is not None):
                self._say("ahead", **seen)
        except Exception as error:
            self._fail("alone", error)


def _nothing(*_: Any, **__: Any) -> None:
    """Take a report of a model that is no longer watched."""
