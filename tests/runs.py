"""Runs for tests, made the way a user makes them: a recipe and KEY=VALUE."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from vtool.config.load import effective_yaml, load_run
from vtool.data.collate import Batch
from vtool.data.loader import EncodedRows
from vtool.data.sources import open_split
from vtool.engines.ranks import Ranks
from vtool.models.processor import Processor, new_processor
from vtool.training.run_folder import RunFolder
from vtool.training.session import Progress, RunRequest, Session
from vtool.training.setup import read_texts, set_up_run
from vtool.training.start import Start


def request(recipe: str, *overrides: str) -> RunRequest:
    loaded = load_run(recipe, overrides)
    return RunRequest(loaded.run, loaded.plain, effective_yaml(loaded))


def messages(path: Path) -> str:
    """The override that trains on a rows file."""
    return f"data.train=[{{format:messages,path:'{path}'}}]"


def session(made: RunRequest, ranks: Ranks | None = None) -> tuple[Session, Progress]:
    """A run that is about to take its first step."""
    folder = RunFolder(made.run.folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    return set_up_run(made, folder, Start(None, finished=False), ranks or Ranks())


def encoded(made: RunRequest) -> tuple[EncodedRows, Processor]:
    """The training rows of a run, and its processor, without a model."""
    rows = open_split(made.run.data, "train")
    processor = new_processor(
        made.run.model, made.run.data.image, read_texts(rows), made.run.data.video
    )
    return EncodedRows(rows, processor, made.run.data), processor


TIMES = ("seconds", "data_seconds", "data_share")
"""The metrics that are never the same in two runs."""


def without_times(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of metrics without the times in them."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The whole gradients, on any engine. Every rank asks."""
    return {
        name: whole(parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The whole weights, on any engine. Every rank asks."""
    return {name: whole(parameter.detach()) for name, parameter in module.named_parameters()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    # one rank may be given its own tensor
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """‖a − b‖ / ‖b‖ over all tensors together."""
    assert one.keys() == other.keys()
    difference = torch.stack([(one[name] - other[name]).double().norm() for name in one]).norm()
    return float(
        difference / torch.stack([tensor.double().norm() for tensor in other.values()]).norm()
    )


def rows_in(batches: Sequence[Batch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.indices
