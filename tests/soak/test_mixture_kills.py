"""A mixture that is killed at random steps, and resumes with another number of ranks each time,
trains on the rows that it would have without: from lines, a folder of Arrow files and a tar.
"""

import io
import json
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import read_lines
from tests.training.test_resume import kill, run, start_and_wait_for

pytestmark = pytest.mark.soak
STEPS = 14
ROWS = 24
EXACT = ("step", "epoch", "tokens", "supervised_tokens", "samples", "distinct_samples")


def lines(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return write_rows(folder / "rows.jsonl", rows)


def arrow(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder of `save_to_disk`, in three files, with the pictures inside."""
    datasets = pytest.importorskip("datasets")
    made = [
        row
        | {
            "images": [
                {"bytes": (folder / name).read_bytes(), "path": name} for name in row["images"]
            ]
        }
        for row in rows
    ]
    datasets.Dataset.from_list(made).save_to_disk(str(folder / "disk"), num_shards=3)
    return folder / "disk"


def tar(folder: Path, rows: list[dict[str, Any]]) -> Path:
    with tarfile.open(folder / "rows.tar", "w") as file:
        for number, row in enumerate(rows):
            members = [
                (f"{number:03}.{place}.png", (folder / name).read_bytes())
                for place, name in enumerate(row["images"])
            ]
            members.append(
                (f"{number:03}.json", json.dumps({"messages": row["messages"]}).encode())
            )
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    return folder / "rows.tar"


def command(folder: Path, rows: Path, name: str, nproc: int) -> list[str]:
    sources = [
        f"{{format: messages, path: '{rows}', weight: 3, name: pictures}}",
        f"{{format: messages, path: '{folder / 'texts.jsonl'}', weight: 1, limit: 15}}",
    ]
    return [
        *(sys.executable, "-m", "vtool", "train", "sft", "--no-preflight", "rows"),
        f"data.train=[{', '.join(sources)}]",
        "data.split={validation: 0.15, test: 0.1}",
        *("data.global_batch_size=5", "data.micro_batch_size=2", "optim.warmup_steps=2"),
        *("data.image={min_pixels:784,max_pixels:3136}", "device.threads=1"),
        f"train={{steps:{STEPS},epochs:null}}",
        "checkpoint={every_steps:1,keep_last:99}",
        *("evaluation={every_steps:4,generate:{max_new_tokens:2}}", f"run.dir={folder / name}"),
        *("--nproc", str(nproc)),
    ]


def rows_of_steps(folder: Path) -> list[list[int]]:
    """The rows of each step, by what its checkpoint has counted and the one before had not."""
    counts = [
        load_file(folder / f"checkpoints/step-{step:06d}/progress.safetensors")["visits"].numpy()
        for step in range(1, STEPS + 1)
    ]
    before = [np.zeros_like(counts[0]), *counts[:-1]]
    return [
        np.repeat(np.arange(len(now)), now - then).tolist()
        for now, then in zip(counts, before, strict=True)
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("write", [lines, arrow, tar])
def test_the_rows_are_those_of_a_run_that_was_never_stopped(
    tmp_path: Path, write: Callable[[Path, list[dict[str, Any]]], Path], seed: int
) -> None:
    rows = write(tmp_path, mixed_rows(tmp_path, ROWS))
    write_rows(
        tmp_path / "texts.jsonl",
        [chat(f"What is {n}?", "so " * (n % 4) + "it is") for n in range(20)],
    )
    done = run(*command(tmp_path, rows, "straight", 1))
    assert done.returncode == 0, done.stdout + done.stderr
    straight = rows_of_steps(tmp_path / "straight")

    draw = random.Random(f"{write.__name__} {seed}")
    first, second = sorted(draw.sample(range(2, STEPS), 2))
    for step, nproc in ((first, 1), (second, 2)):
        arguments = command(tmp_path, rows, "killed", nproc)
        kill(start_and_wait_for(step, tmp_path / "killed", *arguments))
    done = run(*command(tmp_path, rows, "killed", 3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming after step" in done.stdout

    assert rows_of_steps(tmp_path / "killed") == straight
    one, other = (
        [line for line in read_lines(tmp_path / name / "metrics.jsonl") if "loss" in line]
        for name in ("straight", "killed")
    )
    assert [[line[key] for key in EXACT] for line in other] == [
        [line[key] for key in EXACT] for line in one
    ]
    assert [line["loss"] for line in other] == pytest.approx(
        [line["loss"] for line in one], rel=1e-4
    )
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("straight", "killed")
    ]
    assert results[0]["ledger"] == results[1]["ledger"]
    assert results[1]["ranks"] == 3
