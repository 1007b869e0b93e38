"""Videos are learnt from, and the order of their frames:

of two digits, the one that is shown last.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rows import chat, write_rows
from vtool.data.formats.digits import Digits
from vtool.families import FAMILIES


def clips(folder: Path, split: str, seed: int) -> Path:
    """Four frames a row:

    two of some digit, and two of the one that is asked for. Guessing among the two is right in half
    of the rows.
    """
    source = Digits(split)
    names, answers = [], []
    for index in range(len(source)):
        row = source.row(index)
        names.append(f"{split}-{index}.png")
        row.images[0].save(folder / names[-1])
        answers.append(row.messages[1]["content"])
    others = np.random.RandomState(seed).permutation(len(source))
    rows: list[Any] = []
    for index, other in enumerate(others):
        shown = [names[other]] * 2 + [names[index]] * 2
        rows.append(chat("<video>Which digit is shown last?", answers[index]) | {"videos": [shown]})
    return write_rows(folder / f"{split}.jsonl", rows)


@pytest.mark.soak
@pytest.mark.parametrize("name", FAMILIES)
def test_the_digit_that_is_shown_last_is_read(tmp_path: Path, name: str) -> None:
    # The smallest frames: a token for each two of them, and what the processor counts them as.
    facts = FAMILIES[name]
    pixels = facts.patches.pixels_per_token * (4 if facts.video.bounds_are_total else 1)
    rows = {
        split: f"data.{split}=[{{format: messages, path: '{clips(tmp_path, split, 0)}'}}]"
        for split in ("train", "test")
    }
    settings = [
        f"model.family={name}",
        *rows.values(),
        "data.validation=[]",
        "evaluation.every_steps=null",
    ]
    settings += [
        f"data.video={{min_pixels: {pixels}, max_pixels: {pixels}}}",
        "train={steps: 900, epochs: null}",
        f"run.dir={tmp_path / 'run'}",
    ]
    command = [sys.executable, "-m", "vtool", "train", "sft", "digits", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    ledger = json.loads((tmp_path / "run/data.json").read_text())["train"]
    print(
        f"{name}: test exact match {result['test_exact_match']:.4f}, {result['steps']} steps,"
        f" {result['train_seconds']:.0f} s"
    )
    assert (ledger["videos"], ledger["images"]) == (1258, 0)
    assert result["test_exact_match"] >= 0.95
