"""Two ranks over gloo: together they must have loaded what one rank loads alone."""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .facts import CheckFacts, Item, ValueDifference
from .held import RankTensors
from .reference import load_new
from .sources import OwnedSource
from .state import MARKS, NamedState, as_words, marked, same_bits
from .subject import Subject

RANKS = 2
LIMIT_SECONDS = 30.0
_TICK_SECONDS = 0.01


def run_on_ranks(
    run: Callable[[int], Any], folder: Path, seconds: float = LIMIT_SECONDS
) -> list[Any] | str:
    """Run a function on two ranks, each a process of its own.

    Args:
        run: is given a rank's number; what it returns must be what torch can save.
        folder: one that is not there yet, for this call alone.
        seconds: the time that it may take.

    Returns:
        What each rank has returned; or, as a text, why one has not.
    """
    folder.mkdir(parents=True)
    waiting = {_fork(run, rank, folder) for rank in range(RANKS)}
    ends = time.monotonic() + seconds
    while waiting and time.monotonic() < ends and not list(folder.glob("failed*")):
        waiting -= {process for process in waiting if os.waitpid(process, os.WNOHANG)[0]}
        time.sleep(_TICK_SECONDS)
    for process in waiting:  # where one has failed, the other waits for it
        os.kill(process, 9)
        os.waitpid(process, 0)
    if failed := sorted(folder.glob("failed*")):
        return f"it does not load on {RANKS} ranks: {failed[0].read_text()}"
    files = [folder / f"rank{rank}.pt" for rank in range(RANKS)]
    if not all(file.exists() for file in files):
        return f"{RANKS} ranks did not load it within {seconds:.0f} seconds"
    return [torch.load(file) for file in files]


@dataclass(frozen=True)
class RankLayout:
    """A way of sharing a model out among two ranks."""

    start: Callable[[int, Path], None]
    """Makes this process the rank of that number; the ranks meet at the file."""
    look: Callable[[Any], RankTensors]
    """Returns what a rank's loaded model holds."""
    compare: Callable[[RankTensors, Sequence[RankTensors]], CheckFacts]
    """Compares what one rank holds that is alone with what two ranks hold."""


def on_two_ranks(
    subject: Subject,
    layouts: Mapping[str, RankLayout],
    reference: RankTensors,
    folder: Path,
) -> dict[str, CheckFacts]:
    """Load the checkpoint on two ranks in every layout, and compare with what one rank has loaded.

    The same two processes take one layout after the other; after one that fails, new ones continue.

    Args:
        layouts: by the rule that asks for it.
        reference: what one rank that is alone holds after a load.
        folder: one that is not there yet, for this call alone.

    Returns:
        For each rule an item for each parameter that differs; or the reason why it was not run.
    """
    found: dict[str, CheckFacts] = {}
    while waiting := {rule: one for rule, one in layouts.items() if rule not in found}:
        part = folder / str(len(found))
        failed = run_on_ranks(
            partial(_load_on_rank, subject, waiting, part),
            part / "ranks",
            LIMIT_SECONDS * len(waiting),
        )
        for rule, layout in waiting.items():
            files = [_file(part, rule, rank) for rank in range(RANKS)]
            if not all(file.exists() for file in files):
                break
            # one after the other: each has the model twice
            ranks = [torch.load(file, weights_only=False) for file in files]
            found[rule] = layout.compare(reference, ranks)
            for file in files:
                file.unlink()
        missed = [rule for rule in waiting if rule not in found]
        if missed and isinstance(failed, str):
            raised = [rule for rule in missed if (part / f"{rule}.failed").exists()]
            found[(raised or missed)[0]] = CheckFacts(reason=failed)
    return found


def _load_on_rank(
    subject: Subject, layouts: Mapping[str, RankLayout], folder: Path, rank: int
) -> None:
    """Load in every layout, and leave a file with what this rank holds then."""
    for rule, layout in layouts.items():
        try:
            layout.start(rank, folder / "meeting")
            held = layout.look(load_new(subject, OwnedSource(subject.checkpoint)))
        except Exception:
            (folder / f"{rule}.failed").touch()
            raise
        torch.save(held, folder / f"part{rank}")
        (folder / f"part{rank}").rename(_file(folder, rule, rank))


def _file(folder: Path, rule: str, rank: int) -> Path:
    return folder / f"{rule}{rank}.pt"


def compare_all_shards(reference: RankTensors, ranks: Sequence[RankTensors]) -> CheckFacts:
    """Compare what two ranks of tensor parallelism hold with the whole."""
    states = [rank.state for rank in ranks]
    items = tuple(
        Item("differs", name, (), *difference)
        for name in reference.state
        if (difference := compare_shards(name, reference.state, states))
    )
    parted = sum(
        any(name in state and state[name].shape != whole.shape for state in states)
        for name, whole in reference.state.items()
    )
    return CheckFacts(items, {"ranks": RANKS, "parted": parted})


def leave_groups(*kept: Any) -> None:
    """Forget the process groups from before a fork, which have no threads in this process.

    Ending them would wait for these threads, so nothing that refers to them is let go of.

    Args:
        kept: further objects that refer to groups.
    """
    import torch.distributed.distributed_c10d as c10d

    _KEPT.extend((c10d._world, *kept))
    c10d._world = c10d._World()
    torch._C._distributed_c10d._unregister_all_process_groups()


_KEPT: list[Any] = []


def _fork(run: Callable[[int], Any], rank: int, folder: Path) -> int:
    """Run the function in a new process, which leaves `rankN.pt` or `failedN`; return its id."""
    process = os.fork()
    if process:
        return process
    part = folder / f"part{rank}"
    gc.freeze()  # what was there before the fork is no garbage of this process
    try:
        torch.save(run(rank), part)
        part.rename(folder / f"rank{rank}.pt")
    except BaseException as error:
        part.write_text(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        part.rename(folder / f"failed{rank}")
    finally:
        os._exit(0)


def compare_shards(
    name: str, reference: Mapping[str, Tensor], states: Sequence[NamedState]
) -> ValueDifference | None:
    """Compare the ranks' shards of a parameter with the whole.

    Parts that every rank has, as of norms and of shared key heads, are allowed, and so are zeros:
    of a bias whose sum the ranks take, one rank has the values and the others none. Elements that
    nothing was loaded into are left out.

    Returns:
        The difference where values are on no rank, or are not in the whole; else None.
    """
    if not all(name in state for state in states):
        return ValueDifference("there on every rank", "not there")
    if _copied_or_cut(reference[name], [state[name] for state in states]):
        return None
    whole = _loaded_words(reference[name])
    values, counts = _tally(whole)
    present, present_counts = _tally(torch.cat([_loaded_words(state[name]) for state in states]))
    found = torch.zeros_like(counts)
    if len(present):
        position = torch.searchsorted(present, values).clamp(max=len(present) - 1)
        found = torch.where(present[position] == values, present_counts[position], 0)
    missing = int((counts - found).clamp(min=0).sum())
    strange = int((~torch.isin(present, values) & (present != 0)).sum())
    if not missing and not strange:
        return None
    return ValueDifference(
        f"all {len(whole)} elements, on one rank or the other",
        f"{missing} on none; {strange} values are strange",
    )


def _copied_or_cut(whole: Tensor, shards: Sequence[Tensor]) -> bool:
    """Return True if every rank has the whole, or if all of it is cut along one dimension.

    Most parameters are one of the two, and need not be counted value by value.
    """
    if any(shard.dtype != whole.dtype or shard.dim() != whole.dim() for shard in shards):
        return False
    if all(shard.shape == whole.shape for shard in shards):
        return all(same_bits(shard, whole) for shard in shards)
    (cut, *others) = (
        dimension
        for dimension, size in enumerate(whole.shape)
        if any(shard.shape[dimension] != size for shard in shards)
    )
    if others or sum(shard.shape[cut] for shard in shards) != whole.shape[cut]:
        return False
    return same_bits(torch.cat(list(shards), cut), whole)


def _tally(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return each value in order, and how often it is there."""
    if words.dtype != torch.int16:
        values, counts = torch.unique(words, return_counts=True)
        return values, counts
    counts = torch.zeros(2**16, dtype=torch.int64)
    for part in torch.split(words, 2**20):  # many times faster than a sort, and of less memory
        counts += torch.bincount(part.int() + 2**15, minlength=2**16)
    values = counts.nonzero().view(-1)
    return values - 2**15, counts[values]


def _loaded_words(tensor: Tensor) -> Tensor:
    """Return the bits, as integers, of the elements that something was loaded into."""
    flat = tensor.detach().contiguous().reshape(-1)
    return as_words(flat[~marked(flat, MARKS[0])] if flat.numel() else flat)
