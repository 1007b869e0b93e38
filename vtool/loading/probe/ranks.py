"""Two ranks of tensor parallelism over gloo:

what they have loaded together is the checkpoint, no part left out and none strange.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .sources import Owned
from .state import MARKS, State, as_words, mark, marked, snapshot
from .subject import Subject

RANKS = 2
SECONDS = 30.0
TICK = 0.01


def on_ranks(run: Callable[[int], Any], folder: Path) -> list[Any] | str:
    """What each of two ranks, in processes of their own, has to say; or, as a text, why one of them
    has not.

    Args:
        run: given a rank's number; what it returns must be what torch can save.
        folder: an empty one, for this call alone.
    """
    folder.mkdir(parents=True)
    processes = [_forked(run, rank, folder) for rank in range(RANKS)]
    ends = time.monotonic() + SECONDS
    waiting = set(processes)
    while waiting and time.monotonic() < ends and not list(folder.glob("failed*")):
        waiting -= {process for process in waiting if os.waitpid(process, os.WNOHANG)[0]}
        time.sleep(TICK)
    for process in waiting:  # where one has failed, the other waits for it
        os.kill(process, 9)
        os.waitpid(process, 0)
    if failed := sorted(folder.glob("failed*")):
        return f"it does not load on {RANKS} ranks: {failed[0].read_text()}"
    files = [folder / f"rank{rank}.pt" for rank in range(RANKS)]
    if not all(file.exists() for file in files):
        return f"{RANKS} ranks did not load it within {SECONDS:.0f} seconds"
    return [torch.load(file) for file in files]


def sharded(
    subject: Subject,
    start: Callable[[int, Path], None],
    reference: Mapping[str, Tensor],
    folder: Path,
) -> dict[str, Any]:
    """Load the checkpoint on each of two ranks and compare with what one rank alone has loaded.

    Args:
        start: makes this process the rank of that number; the ranks meet at the file.
        reference: parameters and buffers after a load without parallelism.
    """

    def load(rank: int) -> State:
        start(rank, folder / "meeting")
        model = subject.make()
        mark(model, MARKS[0])
        subject.load(model, Owned(subject.checkpoint))
        return snapshot(model)

    states = on_ranks(load, folder / "ranks")
    if isinstance(states, str):
        return {"reason": states}
    items = [
        {"kind": "differs", "parameter": name, **found}
        for name in reference
        if (found := unlike(name, reference, states))
    ]
    return {
        "items": items,
        "measured": {
            "ranks": RANKS,
            "parted": sum(_parted(name, reference, states) for name in reference),
        },
    }


def leave_groups() -> None:
    """Of a fork:

    forget the process groups of before, which have no threads here. Ending them would wait for
    these.
    """
    import torch.distributed.distributed_c10d as c10d

    _KEPT.append(c10d._world)
    c10d._world = c10d._World()
    torch._C._distributed_c10d._unregister_all_process_groups()


_KEPT: list[Any] = []  # what nothing refers to any more would be ended


def _forked(run: Callable[[int], Any], rank: int, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        said = run(rank)
        part = folder / f"part{rank}"
        torch.save(said, part)
        part.rename(folder / f"rank{rank}.pt")
    except BaseException as error:
        (folder / f"part{rank}").write_text(
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )
        (folder / f"part{rank}").rename(folder / f"failed{rank}")
    finally:
        os._exit(0)


def _parted(name: str, reference: Mapping[str, Tensor], states: list[State]) -> bool:
    return any(name in state and state[name].shape != reference[name].shape for state in states)


def unlike(
    name: str, reference: Mapping[str, Tensor], states: list[State]
) -> dict[str, str] | None:
    """How the ranks' shards of a parameter are not the whole: values that no rank has, and values
    that are not in the whole.

    Parts that every rank has, as of norms and of shared key heads, are allowed, and so are zeros:
    of a bias whose sum the ranks take, one rank has the values and the others none. Elements that
    nothing was loaded into are not looked at.
    """
    if not all(name in state for state in states):
        return {"expected": "there on every rank", "seen": "not there"}
    whole = _loaded(reference[name])
    values, counts = torch.unique(whole, return_counts=True)
    together = torch.cat([_loaded(state[name]) for state in states])
    seen, seen_counts = torch.unique(together, return_counts=True)
    position = torch.searchsorted(seen, values).clamp(max=max(len(seen) - 1, 0))
    there = (
        torch.where(seen[position] == values, seen_counts[position], 0)
        if len(seen)
        else torch.zeros_like(counts)
    )
    missing = int((counts - there).clamp(min=0).sum())
    strange = int((~torch.isin(seen, values) & (seen != 0)).sum())
    if not missing and not strange:
        return None
    return {
        "expected": f"all {len(whole)} elements, on one rank or the other",
        "seen": f"{missing} on none; {strange} values are strange",
    }


def _loaded(tensor: Tensor) -> Tensor:
    """The bits of the elements that something was loaded into, as integers."""
    written = tensor.detach().contiguous().reshape(-1)
    written = written[~marked(written, MARKS[0])] if written.numel() else written
    return as_words(written)
