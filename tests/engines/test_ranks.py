"""Messages between ranks, on two processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.ranks import run_ranks
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks


def _raised(ranks: Ranks) -> tuple[str, str, bool]:
    """Return the error on a rank where the first one's work ends with a finding."""

    def work() -> None:
        raise Findings(Diagnostic("not-a-run", "of the first rank"), fatal=True)

    try:
        ranks.on_rank_zero(work)
    except Findings as findings:
        return type(findings).__name__, findings.diagnostics[0].message, findings.fatal
    return "", "", False


def test_a_finding_of_the_first_rank_is_known_as_shared_on_all_so_that_one_speaks() -> None:
    assert run_ranks(_raised, 2) == [("SharedFindings", "of the first rank", True)] * 2


def _said(ranks: Ranks, folder: str) -> tuple[Any, ...]:
    """Exchange values between ranks whose device has no values at all."""
    dist.destroy_process_group()
    dist.init_process_group(
        "cpu:gloo,cuda:gloo",  # in the place of "cpu:gloo,cuda:nccl", which wants CUDA
        init_method=f"file://{folder}/meeting",
        rank=ranks.rank,
        world_size=ranks.world,
    )
    ranks = replace(ranks, device=torch.device("meta"))
    among = replace(ranks, group=dist.new_group([0, 1]))  # as megatron-core's: of all backends
    return (
        ranks.all_gather([ranks.rank, 0.5]),
        among.all_gather([2.0**53 - ranks.rank]),
        ranks.all_gather_objects({"rank": ranks.rank}),
        ranks.on_rank_zero(lambda: ranks.rank),
    )


def test_numbers_and_objects_never_come_to_the_device(tmp_path: Path) -> None:
    heard = ([[0, 0.5], [1, 0.5]], [[2.0**53], [2.0**53 - 1]], [{"rank": 0}, {"rank": 1}], 0)
    assert run_ranks(_said, 2, str(tmp_path)) == [heard, heard]
