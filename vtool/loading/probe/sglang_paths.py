"""Drives SGLang's own ways of loading, to see which of them hand a class tensors that do not stay valid."""

from collections.abc import Iterator
from typing import Any

from .audit import text_of
from .sources import Owned, ReusableBuffer
from .state import MARKS, compare, mark, snapshot
from .subject import Named, Subject


class Marked(ReusableBuffer):
    """As SGLang's Run:ai loader gives tensors: a buffer that is used again, each tensor with the mark by which classes may know it."""

    def __iter__(self) -> Iterator[Named]:
        from sglang.srt.model_loader.weight_utils import RUNAI_STREAMER_TENSOR_ATTR as MARK

        for name, tensor in super().__iter__():
            setattr(tensor, MARK, True)
            setattr(tensor.untyped_storage(), MARK, True)  # views do not inherit the first
            yield name, tensor


def drive(subject: Subject) -> dict[str, str]:
    """SGLang's two ways of handing over tensors that do not stay: marked, as its Run:ai loader does, and as weight updates do."""
    found = {}
    for path, source in (("load_format=runai_streamer", Marked), ("model.load_weights", ReusableBuffer)):
        try:
            expected, seen = (_loaded(subject, made) for made in (Owned(subject.checkpoint), source(subject.checkpoint, 1)))
            found[path] = "unprotected" if compare(expected, seen) else "protected"
        except Exception as error:
            found[path] = f"not run: {text_of(error)}"
    return found


def _loaded(subject: Subject, source: Owned) -> Any:
    model = subject.make()
    mark(model, MARKS[0])
    subject.load(model, source)
    return snapshot(model)
