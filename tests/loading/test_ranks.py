"""Shards of two ranks against the whole."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.loading import models
from vtool.loading.probe.facts import CheckFacts
from vtool.loading.probe.held import RankTensors, held_by
from vtool.loading.probe.ranks import (
    RANKS,
    RankLayout,
    compare_all_shards,
    compare_shards,
    on_two_ranks,
)
from vtool.loading.probe.state import MARKS
from vtool.loading.probe.subject import Subject

WHOLE = torch.arange(1.0, 33.0).view(8, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(
    "shards",
    [
        WHOLE.chunk(2),
        WHOLE.chunk(2, dim=1),
        (WHOLE, WHOLE),  # replicated
        (WHOLE, torch.zeros(8, 4)),  # a bias of which the ranks take the sum
        (WHOLE[::2], WHOLE[1::2]),  # parts of a fused weight
        # a key head that both ranks need
        (torch.cat([WHOLE[:4], WHOLE[6:]]), torch.cat([WHOLE[4:6], WHOLE[6:]])),
    ],
)
def test_shards_that_are_the_whole_together_are_right(
    shards: tuple[torch.Tensor, ...], dtype: torch.dtype
) -> None:
    ranks = [{"w": shard.to(dtype)} for shard in shards]
    assert compare_shards("w", {"w": WHOLE.to(dtype)}, ranks) is None


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ((WHOLE[:4], WHOLE[:4]), "16 on none"),
        ((WHOLE[:4], WHOLE[5:]), "4 on none"),
        ((WHOLE[:4], WHOLE[4:] * 1.5 + 0.1), "16 on none; 16 values are strange"),
        ((WHOLE[:4].bfloat16(), -WHOLE[4:].bfloat16()), "16 on none; 16 values are strange"),
        (
            (
                WHOLE[:4],
                torch.full((4, 4), MARKS[0], dtype=torch.uint8)
                .repeat_interleave(4, 1)
                .view(torch.float32),
            ),
            "16 on none; 0",
        ),
    ],
)
def test_what_no_rank_has_is_counted_by_element(
    shards: tuple[torch.Tensor, ...], words: str
) -> None:
    whole = WHOLE.to(shards[0].dtype)
    found = compare_shards("w", {"w": whole}, [{"w": shard} for shard in shards])
    assert found is not None
    assert words in found.seen


class Parted(nn.Module):
    """A weight whose rows are split among the ranks."""

    rank, ranks = 0, 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8 // self.ranks, 4))

    def load_weights(self, weights: models.Weights) -> None:
        for _, tensor in weights:
            self.weight.data.copy_(tensor.chunk(self.ranks)[self.rank])


class FirstOnly(Parted):
    def load_weights(self, weights: models.Weights) -> None:
        for _, tensor in weights:
            self.weight.data.copy_(tensor.chunk(self.ranks)[0])


def subject_of(kind: type[Parted]) -> tuple[Subject, RankLayout]:
    def start(rank: int, meeting: Path) -> None:
        kind.rank, kind.ranks = rank, RANKS

    subject = Subject(
        make=kind,
        checkpoint={"weight": WHOLE},
        load=lambda model, weights: model.load_weights(weights),
        origin="given",
    )
    return subject, RankLayout(start, held_by, compare_all_shards)


def loaded_on_ranks(subject: Subject, folder: Path, **layouts: RankLayout) -> dict[str, CheckFacts]:
    return on_two_ranks(subject, layouts, RankTensors({"weight": WHOLE}), folder / "ranks")


def test_two_processes_load_their_own_parts(tmp_path: Path) -> None:
    subject, layout = subject_of(Parted)
    assert loaded_on_ranks(subject, tmp_path, tensors=layout) == {
        "tensors": CheckFacts(measured={"ranks": 2, "parted": 1})
    }


def test_the_first_part_on_every_rank_is_found(tmp_path: Path) -> None:
    subject, layout = subject_of(FirstOnly)
    (item,) = loaded_on_ranks(subject, tmp_path, tensors=layout)["tensors"].items
    assert item.parameter == "weight"
    assert (item.seen or "").startswith("16 on none")


def test_a_rank_that_fails_or_dies_is_the_reason_why_there_is_no_verdict(tmp_path: Path) -> None:
    subject, layout = subject_of(Parted)

    def fail(rank: int, meeting: Path) -> None:
        raise RuntimeError("no ranks here")

    def die(rank: int, meeting: Path) -> None:
        os._exit(7)

    failed = loaded_on_ranks(subject, tmp_path, tensors=replace(layout, start=fail))["tensors"]
    died = loaded_on_ranks(subject, tmp_path / "dies", tensors=replace(layout, start=die))
    assert "no ranks here" in (failed.reason or "")
    assert "did not load it" in (died["tensors"].reason or "")


def test_a_layout_that_fails_does_not_keep_the_others_from_being_compared(tmp_path: Path) -> None:
    subject, layout = subject_of(FirstOnly)

    def fail(rank: int, meeting: Path) -> None:
        raise RuntimeError("no stages here")

    found = loaded_on_ranks(
        subject, tmp_path, tensors=layout, stages=replace(layout, start=fail), again=layout
    )
    assert "no stages here" in (found["stages"].reason or "")
    assert [item.parameter for rule in ("tensors", "again") for item in found[rule].items] == [
        "weight"
    ] * 2
