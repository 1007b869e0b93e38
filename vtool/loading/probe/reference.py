"""A subject after its first loads, with which every later load is compared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from torch import Tensor

from .errors import error_text
from .facts import Item, ValueDifference
from .held import RankTensors
from .sources import OwnedSource
from .state import MARKS, NamedState, compare_states, copy_state, fill_with_byte
from .subject import NamedTensor, Subject
from .uninitialized import uninitialized_memory_is


@dataclass(frozen=True)
class ReferenceTensors:
    """The tensors of a subject that was loaded rightly, and where they came from."""

    subject: Subject
    slots: int
    """Requests for which a reusable buffer stays valid."""
    sources: Sequence[str]
    """The sources of weights that the settings name."""
    state: NamedState
    unwritten: Mapping[str, Tensor]
    """For a parameter or buffer, which of its elements (a mask) no load has written."""
    came_from: Mapping[str, Sequence[str]]
    """For a parameter or buffer, the checkpoint tensors that went into it."""
    alone: RankTensors = field(default_factory=lambda: RankTensors({}))
    """The parameters and buffers of one rank, without what modules keep besides them."""
    memory: float = inf
    """Resident bytes that this process may take."""
    formats: Sequence[str] = ()
    """The formats that quantized twins are asked in; none where the settings name none."""

    def load(self, source: Iterable[NamedTensor]) -> Any:
        """Return a new object, marked and loaded."""
        return load_new(self.subject, source)

    def load_in_calls(self, calls: Iterable[Sequence[str]]) -> Any:
        """Return a new object, loaded in one call for each sequence of tensor names."""
        model = marked_object(self.subject)
        for names in calls:
            self.subject.load(model, OwnedSource(self.subject.checkpoint, names))
        return model

    def compare(
        self, load: Callable[[], Any], passed_on: tuple[type[Exception], ...] = ()
    ) -> tuple[Item, ...]:
        """Return the tensors that `load` leaves otherwise than the first load, or its exception.

        Args:
            passed_on: exceptions that are not caught.
        """
        try:
            state = copy_state(load(), held=True)
        except passed_on:
            raise
        except Exception as error:
            return (Item("raises", seen=error_text(error)),)
        return self.items(compare_states(self.state, state, self.unwritten))

    def items(self, differences: Mapping[str, ValueDifference]) -> tuple[Item, ...]:
        """Return an item for each tensor that differs, with the checkpoint tensors it is from."""
        return tuple(
            Item("differs", name, tuple(self.came_from.get(name, ())), *difference)
            for name, difference in differences.items()
        )


def marked_object(subject: Subject, byte: int = MARKS[0]) -> Any:
    """Return a new object whose parameters, and uninitialized buffers, are filled with one byte."""
    with uninitialized_memory_is(byte):
        model = subject.make()
    fill_with_byte(model, byte)
    return model


def load_new(subject: Subject, source: Iterable[NamedTensor]) -> Any:
    """Return a new object, marked and loaded from a source."""
    model = marked_object(subject)
    subject.load(model, source)
    return model
