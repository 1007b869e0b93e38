"""The writer of checkpoints while a run trains: the loop waits for it, or a thread writes."""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.checkpoint import (
    ALONE,
    Snapshot,
    print_warnings,
    save,
    tensors_to_write,
    write_share,
)


class CheckpointWriter:
    """A writer of checkpoints, one at a time.

    The loop waits for it or, `asynchronous`, a thread writes while the loop continues.

    A thread's failure is raised by the next `save` or `wait`. Leaving the context waits for what is
    being written, however it is left.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        *,
        asynchronous: bool,
        synced: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Prepare to write; every rank calls it."""
        self._to = folder
        self._ranks = ranks
        # the thread talks to those of other ranks while the loop computes
        self._how = (keep_last, synced, ranks.with_own_group() if asynchronous else ranks)
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._writing: Future[Path] | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> None:
        if kind is None:
            self.wait()
        elif self._writing is not None and isinstance(lost := self._writing.exception(), Findings):
            # a full disk stops the loop's own files too: it is reported once, with what it costs
            if isinstance(raised, Findings) and _same_fault(raised, lost):
                raise lost from raised
            if self._ranks.rank == 0:
                print_warnings(lost.diagnostics)  # in addition to what is being raised

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, or begin to; every rank calls it.

        Its tensors may be a model's own: if the loop continues, each rank copies its share first.

        Raises:
            Findings: `checkpoint-not-saved`, of this one or of the one before it.
        """
        self.wait()
        if self._thread is None:
            save(self._to, snapshot, *self._how)
        else:
            kept = replace(snapshot, visits=snapshot.visits.clone())
            # one by one, so that what an engine has gathered is freed on the way
            share = {
                kind: [_copy(pair) for pair in pairs]
                for kind, pairs in tensors_to_write(snapshot, self._ranks.world).items()
            }
            self._writing = self._thread.submit(write_share, self._to, kept, share, *self._how)

    def wait(self) -> None:
        """Wait until the checkpoint being written is on the disk.

        Raises:
            Findings: `checkpoint-not-saved`.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _copy(pair: tuple[str, Tensor]) -> tuple[str, Tensor]:
    name, tensor = pair
    return name, tensor.to("cpu", copy=True)


def _same_fault(one: Findings, other: Findings) -> bool:
    """Return whether both were raised of the same error of the operating system."""
    first, second = (_system_error(found.__cause__) for found in (one, other))
    return first is not None and first == second


def _system_error(cause: BaseException | None) -> int | None:
    if isinstance(cause, OSError):
        return cause.errno
    # safetensors and tokenizers say it in words
    found = re.search(r"\(os error (\d+)\)", str(cause))
    return int(found.group(1)) if found else None
