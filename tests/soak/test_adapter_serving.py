"""An adapter that was not merged:

transformers and peft, and vLLM's own LoRA, give the answers and the probabilities of the run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from tests.soak.test_serving import MAX_TOKENS, Asked, ask
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.models.processor import load_processor
from vtool.training.export_run import open_run

pytestmark = pytest.mark.soak
SCANS = 50


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / "run"
    settings = [f"run.dir={folder}", "train.steps=300", "optim.warmup_steps=20"]
    subprocess.run(
        [sys.executable, "-m", "vtool", "train", "sft", "digits_lora", *settings],
        check=True,
        cwd=folder.parent,
    )
    return folder


@pytest.fixture(scope="module")
def asked(run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    """Scans of the test split, answered by transformers' model with peft's adapter."""
    opened, settings = open_run(run)
    processor = load_processor(opened.processor, settings.model.family, settings.data.image)
    base = AutoModelForImageTextToText.from_pretrained(run / "base", local_files_only=True)
    model = PeftModel.from_pretrained(base, str(run / "export")).eval()
    rows = [Rows(settings.data.test).row(index) for index in range(SCANS)]
    folder = tmp_path_factory.mktemp("images")
    torch.set_num_threads(2)
    return [
        ask(Row(row.id, row.messages[:-1], row.images), processor, model, folder / str(number))
        for number, row in enumerate(rows)
    ]


def served(run: Path, asked: list[Asked], *more: str, rotated: int = 0) -> Any:
    """vLLM's answers to each question, about its own image or about that of a later one."""
    interpreter = os.environ.get("VTOOL_VLLM_PYTHON")
    if not interpreter:
        pytest.skip(
            "not run: VTOOL_VLLM_PYTHON is not set to the interpreter of an environment with vLLM"
            " (`make vllm-env` makes one)"
        )
    images = [asked[(number + rotated) % len(asked)].files for number in range(len(asked))]
    requests = [
        {"messages": one.row.messages, "images": files}
        for one, files in zip(asked, images, strict=True)
    ]
    (run / "requests.json").write_text(json.dumps({"max_tokens": MAX_TOKENS, "requests": requests}))
    script = Path(__file__).with_name("serve_with_vllm.py")
    command = [
        interpreter,
        str(script),
        str(run / "base"),
        str(run / "requests.json"),
        str(run / "answers.json"),
        "--pil",
        *more,
    ]
    ran = subprocess.run(command, check=False, text=True, capture_output=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]
    return json.loads((run / "answers.json").read_text())


def test_vllm_answers_with_the_adapter_as_transformers_with_peft_does(
    run: Path, asked: list[Asked]
) -> None:
    answers = served(run, asked, "--adapter", str(run / "export"))
    apart = max(
        float(np.abs(np.array(answer["logprobs"][0]) - one.logprobs[0]).max())
        for one, answer in zip(asked, answers, strict=True)
    )
    print(
        f"log-probabilities of the first token, over the whole vocabulary: at most {apart:.1e}"
        " apart"
    )
    assert [answer["ids"] for answer in answers] == [one.ids for one in asked]
    assert apart <= 1e-4
    control = served(run, asked, "--adapter", str(run / "export"), rotated=1)
    assert (
        sum(answer["ids"] == one.ids for answer, one in zip(control, asked, strict=True))
        < SCANS / 4
    )


def test_without_the_adapter_it_answers_otherwise(run: Path, asked: list[Asked]) -> None:
    answers = served(run, asked)
    assert (
        sum(answer["ids"] == one.ids for one, answer in zip(asked, answers, strict=True))
        <= SCANS // 2
    )
