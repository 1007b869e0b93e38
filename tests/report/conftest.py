"""A run's folder as `vtool train` writes it, small, with real images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

CONFIG = """\
run:
  name: {name}  # recipes/digits.yaml:3:9
model:
  family: qwen2_5_vl  # configs/model/qwen2_5_vl_tiny.yaml:2:9
optim:
  lr: 2.0e-3  # command line
  betas: [0.9, 0.98]  # recipes/digits.yaml:18:10
  clip_norm: 1.0  # configs/optim/adamw.yaml:3:12
train:
  steps: 40  # recipes/digits.yaml:21:16
"""

DATA: dict[str, Any] = {
    "train": {
        "files": [
            {"format": "messages", "path": "my.jsonl", "sha256": "9f86d081884c7d65", "rows": 101}
        ],
        **{
            "rows": 101,
            "kept": 100,
            "tokens": 2000,
            "supervised_tokens": 200,
            "images": 100,
            "longest": 25,
            "truncated": 0,
        },
        "dropped": [
            {
                "row": "my.jsonl:17",
                "rule": "overlong-row",
                "message": "1500 tokens, and data.max_length is 1024",
            }
        ],
    },
    "test": {
        "files": [{"format": "digits"}],
        **{"rows": 12, "kept": 12, "tokens": 240, "supervised_tokens": 24, "images": 12},
        "dropped": [],
    },
}

RESULT: dict[str, Any] = {
    **{
        "status": "finished",
        "steps": 40,
        "epochs": 12.8,
        "train_seconds": 4.0,
        "peak_memory_mib": 512,
        "parameters": 1103744,
    },
    **{"test_exact_match": 10 / 12, "test_nll": 0.31, "test_samples": 12},
    "ledger": {
        "rows": 101,
        "seen": 101,
        "trained": 100,
        "dropped": 1,
        "samples": 1280,
        "distinct": 100,
        "epochs": 12.8,
    },
    "checks": {
        "unstable-template": "passed",
        "ledger-mismatch": "passed",
        "device-missing": "not-run",
    },
    "versions": {"vtool": "0.1.0", "torch": "2.9.1", "transformers": "4.57.1", "python": "3.11.7"},
}


def metrics() -> list[dict[str, Any]]:
    """Forty steps with a falling loss, and an evaluation every ten."""
    rows: list[dict[str, Any]] = []
    for step in range(1, 41):
        counts = {
            "tokens": 640,
            "supervised_tokens": 64,
            "samples": 32,
            "distinct_samples": min(100, 32 * step),
        }
        speed = {"grad_norm": 4 / step, "lr": 0.002 * (1 - step / 40), "seconds": 0.1 * step}
        rows.append({"step": step, "epoch": step * 0.32, "loss": 3 / step} | counts | speed)
        if step % 10 == 0:
            rows.append(
                {
                    "step": step,
                    "validation_nll": 4 / step,
                    "validation_exact_match": step / 50,
                    "validation_samples": 50,
                }
            )
    return rows


def predictions() -> list[dict[str, Any]]:
    """Twelve rows, of which the sixth (a 2) is read as 1 and the last (a 2) as a word."""
    rows: list[dict[str, Any]] = []
    for index in range(12):
        reference = str(index % 3)
        answer = {5: "1", 11: "two"}.get(index, reference)
        row = {
            "row": f"digits:test:{index}",
            "question": "Which digit?",
            "reference": reference,
            "answer": answer,
        }
        rows.append(row | {"correct": answer == reference, "image": f"samples/{index:05d}.png"})
    return rows


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a finished run's folder."""

    def make(name: str = "digits") -> Path:
        folder = tmp_path / "runs" / name
        (folder / "samples").mkdir(parents=True)
        (folder / "checkpoints" / "step-000040").mkdir(parents=True)
        (folder / "config.yaml").write_text(CONFIG.format(name=name), encoding="utf-8")
        (folder / "data.json").write_text(json.dumps(DATA), encoding="utf-8")
        (folder / "result.json").write_text(json.dumps(RESULT), encoding="utf-8")
        for file, rows in {"metrics.jsonl": metrics(), "predictions.jsonl": predictions()}.items():
            (folder / file).write_text(
                "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
            )
        for index in range(12):
            Image.new("RGB", (8, 8), (20 * index, 60, 90)).save(
                folder / "samples" / f"{index:05d}.png"
            )
        return folder

    return make


@pytest.fixture
def run_folder(make_run: Callable[..., Path]) -> Path:
    return make_run()
