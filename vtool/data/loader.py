"""Loading of batches, encoded once where memory allows, and ahead of time by workers."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from vtool.config.schema import Data
from vtool.data.collate import Batch, collate, filler, with_tower_index
from vtool.data.digest import check_unchanged
from vtool.data.encode import Prompt, Sample, encode_prompt, encode_row
from vtool.data.packing import collate_packed, pack
from vtool.data.plan import Plan, rank_micro_batches
from vtool.data.sources import Rows
from vtool.data.worker_failures import RowsInWork, end_with_parent
from vtool.data.workers import MEASURED_STEPS, measure_steps
from vtool.diagnostics import Findings
from vtool.models.processor import Processor
from vtool.models.tower_index import TowerIndexer
from vtool.words import plural

# Encoded rows that a process keeps, so that a small data set is decoded once and not in every
# epoch.
CACHE_BYTES = 512 * 2**20
# torch's advice, of 400 characters; `load_steps` says it in a line
warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
_CPU = torch.device("cpu")
_BYTES_BESIDE = 2048  # the objects around a row's numbers, measured


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one forward pass of one rank.

    `counts` is false for a stand-in on a rank without rows.
    """

    rows: tuple[int, ...]
    counts: bool = True
    packed: bool = False
    """True if its rows share one row without padding."""


@dataclass(slots=True)
class EncodedRows(Dataset[Batch]):
    """Batches by their micro-batch, with a cache of encoded rows."""

    rows: Rows
    processor: Processor
    settings: Data
    cache: dict[int, Sample] = field(default_factory=dict)
    cached_bytes: int = 0
    audited: NDArray[np.uint64] | None = None
    """The digest of each row as it was audited; None where nothing was, or need not be the same."""
    prompts: Mapping[int, Prompt] = field(default_factory=dict)
    """Prompts of rows that are not to be encoded here."""
    as_bytes: bool = False
    """Patches are kept and moved as bytes: `Batch.to` looks their values up."""
    in_work: RowsInWork | None = None
    """The rows that data workers are at, once there are any."""
    tower: TowerIndexer | None = None
    """Makes what a vision tower reads off the sizes of a batch's images."""

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        make = collate_packed if micro_batch.packed else collate
        batch = make(
            [self.sample(row) for row in micro_batch.rows],
            self.processor,
            self.settings.drop_model_inputs,
        )
        batch = with_tower_index(batch, self.tower)
        return batch if micro_batch.counts else filler(batch)

    def sample(self, index: int) -> Sample:
        """Return row `index`, encoded.

        Raises:
            Findings: of the rules VT6xx, naming the row; `row-changed`.
        """
        if (sample := self.cache.get(index)) is None:
            self.mark(index)
            row = self.rows.row(index)
            sample = encode_row(row, index, self.processor, self.settings, as_bytes=self.as_bytes)
            if self.audited is not None:
                check_unchanged(row, sample, int(self.audited[index]))
            self.keep(sample, CACHE_BYTES)
        return sample

    def mark(self, row: int) -> None:
        """Note the row that this process begins with, for when it does not end with it."""
        if self.in_work is not None:
            self.in_work.mark(row)

    def keep(self, sample: Sample, room: int) -> bool:
        """Keep an encoded row for its next use, if all of them then take at most so many bytes.

        Returns:
            If there was room.
        """
        size = sample.nbytes + _BYTES_BESIDE
        if fits := self.cached_bytes + size <= room:
            self.cache[sample.index] = sample
            self.cached_bytes += size
        return fits

    def prompt(self, index: int) -> Prompt:
        """Return the encoded part of row `index` before its last supervised turn."""
        return self.prompts.get(index) or encode_prompt(self.rows, index, self.processor)


def micro_batches(
    plan: Plan, kept: Sequence[int], step: int, rank: int, world: int, micro_batch_size: int
) -> list[MicroBatch]:
    """Return one rank's micro-batches of a step.

    At least one, so that every rank takes part in every reduction.
    """
    rows = plan.step(step)
    groups = rank_micro_batches(rows, rank, world, micro_batch_size) or [(int(rows[0]),)]
    counts = rank < len(rows)
    return [MicroBatch(tuple(kept[place] for place in places), counts) for places in groups]


def packed_micro_batches(
    plan: Plan,
    kept: Sequence[int],
    lengths: Sequence[int],
    step: int,
    rank: int,
    world: int,
    budget: int,
) -> list[MicroBatch]:
    """Return one rank's micro-batches of a step, of documents that share rows.

    Args:
        lengths: tokens of each kept row.
        budget: the most tokens of a shared row.
    """
    places = [int(place) for place in plan.step(step)]
    groups = pack(places, [lengths[place] for place in places], rank, world, budget)
    return [
        MicroBatch(tuple(kept[place] for place in group), bool(groups), packed=True)
        for group in groups or [(places[0],)]
    ]


def micro_batches_for_step(
    settings: Data,
    plan: Plan,
    kept: Sequence[int],
    lengths: Sequence[int],
    step: int,
    rank: int,
    world: int,
) -> list[MicroBatch]:
    """Return one rank's micro-batches of a step, as `data.packing` says."""
    if settings.micro_batch_tokens is None:
        size = settings.micro_batch_size
        assert size != "auto", "it is chosen before"
        return micro_batches(plan, kept, step, rank, world, size)
    return packed_micro_batches(plan, kept, lengths, step, rank, world, settings.micro_batch_tokens)


def load_steps(
    dataset: EncodedRows,
    steps: range,
    plan_step: Callable[[int], list[MicroBatch]],
    workers: int | Literal["auto"],
    *,
    device: torch.device = _CPU,
    spare_cores: int = 0,
    say: Callable[[str], None] = print,
) -> Iterator[list[Batch]]:
    """Yield the batches of each step, in order.

    Args:
        plan_step: returns this rank's micro-batches of a step.
        workers: `auto` decides after the first steps.
        device: that of the model. Patches go to one other than the CPU as bytes, and to CUDA from
            pinned memory.
        spare_cores: the most workers that `auto` takes.
        say: is given what `auto` has decided.

    Raises:
        Findings: of the rules VT6xx; `row-changed`.
    """
    dataset.as_bytes |= device.type != "cpu"
    pinned = device.type == "cuda"
    if workers == "auto":
        first = min(MEASURED_STEPS, len(steps))
        costs = yield from measure_steps(
            load_steps(dataset, steps, plan_step, 0, device=device), first
        )
        steps, workers = steps[first:], costs.workers(spare_cores)
        if steps:
            say(costs.in_words(workers, spare_cores))
    elif workers > (cores := len(os.sched_getaffinity(0))):
        say(
            f"data.workers={workers}, on {plural(cores, 'core')}: the workers of each rank take"
            " turns"
        )
    if workers:
        dataset.in_work = RowsInWork(workers)
    flat = (micro_batch for step in steps for micro_batch in plan_step(step))
    # Without workers a DataLoader would only add its own time.
    batches = (
        map(
            _raise_findings,
            DataLoader(
                _InWorker(dataset),
                None,
                sampler=flat,
                num_workers=workers,
                pin_memory=pinned,
                worker_init_fn=partial(end_with_parent, os.getpid()),
            ),
        )
        if workers
        else map(dataset.__getitem__, flat)
    )
    if pinned and not workers:
        batches = map(Batch.pin_memory, batches)
    for step in steps:
        yield [next(batches) for _ in plan_step(step)]


@dataclass(frozen=True, slots=True)
class _InWorker(Dataset[Batch | Findings]):
    """Batches made by a data worker, which hands findings over instead of raising their words."""

    dataset: EncodedRows

    def __getitem__(self, micro_batch: MicroBatch) -> Batch | Findings:
        try:
            return self.dataset[micro_batch]
        except Findings as findings:
            return findings
        finally:
            self.dataset.mark(-1)


def _raise_findings(loaded: Batch | Findings) -> Batch:
    if isinstance(loaded, Findings):
        raise loaded
    return loaded
