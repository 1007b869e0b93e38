"""The digests of a checkpoint's files, at resume: rank 0 asks for them, all ranks compute them.

What is to be read is decided by rank 0 alone: each rank reads what it is assigned, and none has to
find the same files.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.training.checkpoint_files import sha256_of

T = TypeVar("T")
DigestsByFile = Callable[[Sequence[Path]], Mapping[Path, str]]
"""Returns the SHA-256 of each of some files. It raises OSError of one that cannot be read."""
_READERS = 4
"""Threads that digest files: hashlib lets them run in parallel."""


def digest_here(files: Sequence[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file, computed by this process.

    Raises:
        OSError: of a file that cannot be read.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(files, pool.map(sha256_of, files), strict=True))


def on_rank_zero_by_all(ranks: Ranks, work: Callable[[DigestsByFile], T]) -> T:
    """Run `work` on rank 0, with the digests that all ranks compute, each its share.

    Raises:
        SharedFindings: what `work` raised as `Findings`; `corrupt-checkpoint` of a file that is
            there on rank 0, and that another rank cannot read.
    """
    if ranks.world == 1:
        return work(digest_here)

    def by_all(files: Sequence[Path]) -> dict[Path, str]:
        # what rank 0 does not see is missing, and no other rank has to be asked
        shares = files_by_rank({file: file.stat().st_size for file in files}, ranks.world)
        ranks.from_rank_zero(shares)
        return _joined(shares, ranks.all_gather_objects(_attempt(shares[0])))

    def lead() -> T:
        try:
            return work(by_all)
        finally:
            ranks.from_rank_zero(None)

    while ranks.rank and (shares := ranks.from_rank_zero(None)) is not None:
        ranks.all_gather_objects(_attempt(shares[ranks.rank]))
    return ranks.on_rank_zero(lead)


def files_by_rank(sizes: Mapping[Path, int], world: int) -> list[list[Path]]:
    """Return the files of each rank: one after the other, the largest first.

    So ranks differ by no more than the largest file.
    """
    largest_first = sorted(sizes, key=lambda file: (-sizes[file], file))
    return [largest_first[rank::world] for rank in range(world)]


def _attempt(files: Sequence[Path]) -> dict[Path, str] | OSError:
    try:
        return digest_here(files)
    except OSError as error:
        return error


def _joined(
    shares: Sequence[Sequence[Path]], answers: Sequence[Mapping[Path, str] | OSError]
) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for rank, (share, answer) in enumerate(zip(shares, answers, strict=True)):
        if not isinstance(answer, OSError):
            found |= answer
        elif rank == 0:
            raise answer
        else:
            # not damage, for which a run would resume from an older checkpoint
            name = answer.filename or share[0]
            message = f"{name} is there on rank 0, and rank {rank} cannot read it: "
            help = "each rank reads its share: the folder must be one that all nodes share"
            raise Findings(
                Diagnostic(
                    "corrupt-checkpoint", message + str(answer.strerror), help, "checkpoint.resume"
                )
            )
    return found
