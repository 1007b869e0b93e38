"""A run that has exported random weights, and the rows that it has read."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engines.state import model_of
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.export.huggingface import write_export

Exported = Callable[..., tuple[Path, Path]]


def _export(folder: Path, *overrides: str) -> tuple[Path, Path]:
    torch.manual_seed(0)
    rows = write_rows(folder / "rows.jsonl", mixed_rows(folder, 6))
    settings = (f"run.dir={folder / 'run'}", "optim.warmup_steps=0", *overrides)
    opened, _ = session(request("rows", messages(rows), *settings))
    state = model_of(opened.engine)
    write_export(opened.engine.module, state, opened.processor, "qwen2_5_vl", opened.folder.export)
    return opened.folder.path, rows


@pytest.fixture(scope="session")
def exported() -> Exported:
    """Makes a run in a folder, with settings: its folder, and its file of rows."""
    return _export


@pytest.fixture(scope="module")
def made(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and its file of rows, which several tests ask."""
    return exported(tmp_path_factory.mktemp("evaluated"))
