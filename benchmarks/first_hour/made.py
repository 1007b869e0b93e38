"""Devices, rows with JPEG files, and sessions of any size, with which the rows measure."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.planning.recipe_heads import write_config
from vtool.config.load import load_run
from vtool.config.schema import Run
from vtool.data.loader import EncodedRows
from vtool.data.sources import open_split
from vtool.devices import kind_here
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.models.build import build_on_meta
from vtool.models.processor import Processor, new_processor
from vtool.training.model_and_engine import prepare_model
from vtool.training.run_folder import RunFolder
from vtool.training.session import Session
from vtool.training.setup import audit_splits, read_texts

PUBLISHED = "qwen2_5_vl_3b"
"""The model of rows of real size: all of it is trained on one GPU of 80 GB."""


def device_here() -> torch.device:
    """Return the device to measure on."""
    kind = kind_here()
    return torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")


def is_real(size: str | None, device: torch.device) -> bool:
    """Return whether sizes are those of a published model: on a GPU, unless asked otherwise."""
    return device.type != "cpu" if size is None else size == "real"


def write_pictures(folder: Path, rows: int, pictures: int, pixels: int, words: int) -> Path:
    """Write chats about JPEG files, with answers of unequal lengths, and return the rows file."""
    random = np.random.RandomState(7)
    lines = []
    across, down = int((pixels * 4 / 3) ** 0.5), int((pixels * 3 / 4) ** 0.5)
    for number in range(pictures):
        small = random.randint(0, 256, (9, 12, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((across, down), Image.Resampling.BICUBIC)
        grain = random.randint(-12, 13, (down, across, 3))
        photo = np.clip(np.asarray(image).astype(int) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(photo).save(folder / f"{number}.jpg", quality=88)
    for number in range(rows):
        length = int(np.clip(random.lognormal(np.log(words), 0.8), 2, 8 * words))
        answer = " ".join(f"word{random.randint(400)}" for _ in range(length))
        said = [
            {"role": "user", "content": "<image>What is seen?"},
            {"role": "assistant", "content": answer},
        ]
        row = {"messages": said, "images": [f"{number % pictures}.jpg"]}
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "rows.jsonl"


def run_of(rows: Path, device: torch.device, *settings: str) -> Run:
    """Return the settings of a run on these rows."""
    return load_run(
        "rows",
        [
            f"data.train=[{{format: messages, path: {rows}}}]",
            *("model={family: qwen2_5_vl, size: tiny}", "optim.lr=1e-5"),
            *(f"device.kind={device.type}", f"run.dir={rows.parent}/run"),
            f"model.dtype={'float32' if device.type == 'cpu' else 'bfloat16'}",
            *settings,
        ],
    ).run


def open_session(run: Run, device: torch.device, *, real: bool, ranks: Ranks | None = None) -> Any:
    """Return a session of a run, about to take its first step, with random weights.

    Args:
        real: the model has the published sizes of `PUBLISHED`; its folder need not be there.
    """
    ranks = replace(ranks or Ranks(), device=device)
    folder = RunFolder(run.folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        source = open_split(run.data, "train")
        processor = new_processor(run.model, run.data.image, read_texts(source), run.data.video)
        rows = {"train": EncodedRows(source, processor, run.data)}
        ledgers = audit_splits(rows, ranks, 1)
    _write_config(folder.processor, run, processor, real=real)
    module = build_on_meta(run.model, processor, folder.processor, 0, config=folder.processor)
    weights = {
        name: _drawn(place, one, real)
        for place, (name, one) in enumerate(module.named_parameters())
    }
    prepare_model(run, module, weights)
    session = Session.open(
        run, rows, module, ranks, ledgers=ledgers, folder=folder, weights=weights
    )
    if real:
        _draw(session.engine.module, device)
    return session


def _write_config(folder: Path, run: Run, processor: Processor, *, real: bool) -> None:
    """Write a model's config.json, with the token ids of a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    family, ids = load_family(run.model.family), processor.ids
    if not real:
        family.random_config("tiny", len(processor.tokenizer), ids).save_pretrained(folder)
        return
    write_config(PUBLISHED, folder)
    config = json.loads((folder / "config.json").read_text())
    for name, field in family.facts.token_fields.items():
        config[field] = getattr(ids, name)
    (folder / "config.json").write_text(json.dumps(config))


def _drawn(place: int, like: Tensor, real: bool) -> Tensor:
    """Return the weights of a parameter: the same on all ranks; of a large one, a stand-in."""
    if real:
        return torch.zeros(()).expand(like.shape)
    if like.dim() < 2:
        return torch.ones(like.shape)
    return torch.empty(like.shape).normal_(0, 0.02, generator=torch.Generator().manual_seed(place))


@torch.no_grad()
def _draw(module: Any, device: torch.device) -> None:
    """Draw the weights of a large model where they are: matrices of mean 0, norms of 1."""
    generator = torch.Generator(device).manual_seed(0)
    for parameter in module.parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if own.dim() > 1:
            own.normal_(0, 0.02, generator=generator)
        else:
            own.fill_(1.0)


def gradients_of(session: Session, batches: Sequence[Any], supervised: int) -> dict[str, Tensor]:
    """Return the whole gradients of a step, in float32 on the CPU; they are then forgotten."""
    from vtool.data.packing import with_positions
    from vtool.training.step import micro_batch_nll

    engine = session.engine
    there = [with_positions(one, engine.module).to(session.ranks.device) for one in batches]
    engine.forward_backward(
        there, micro_batch_nll(session, dummy=True), supervised, every_parameter=True
    )
    found = {name: one.float() for name, one in engine.gradients().items()}
    engine.module.zero_grad(set_to_none=True)
    return found


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return ‖a − b‖ / ‖b‖ over all tensors together."""
    assert one.keys() == other.keys()
    apart = sum(float((one[name] - other[name]).double().norm() ** 2) for name in one)
    return float((apart / sum(float(each.double().norm() ** 2) for each in other.values())) ** 0.5)
