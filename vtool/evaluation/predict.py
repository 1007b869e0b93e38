"""Ask a trained model a question about images."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from vtool.data.collate import collate_prompts
from vtool.data.encode import Prompt, encode_question
from vtool.data.row import Row, beside
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.build import load_model
from vtool.models.families import FAMILIES
from vtool.models.generate import answer_greedily
from vtool.models.processor import load_processor


def predict(run: Path, images: Sequence[str], question: str | None, max_new_tokens: int) -> str:
    """The greedy answer of the model in `run`'s export, or of an exported folder itself.

    Raises:
        Findings: `not-a-run`, `missing-image`, `broken-image`, `model-does-not-load`.
    """
    folder = run if (run / "config.json").exists() else run / "export"
    if not (folder / "config.json").exists():
        message = f"{run} has no exported model"
        raise Findings(Diagnostic("not-a-run", message, help="write one from its newest checkpoint: vtool export RUN"), fatal=True)
    for image in images:
        if not beside(Path(), image).is_file():
            raise Findings(Diagnostic("missing-image", f"there is no image {image}"), fatal=True)
    family_name = json.loads((folder / "config.json").read_text())["model_type"]
    if family_name not in FAMILIES:
        raise Findings(Diagnostic("not-a-run", f"{folder} holds a {family_name}, which is none of {', '.join(FAMILIES)}"), fatal=True)
    processor = load_processor(folder, family_name)
    text = question if question is not None else _first_question(run)
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    row = Row("the question", [{"role": "user", "content": content}], images)
    prompt = Prompt(0, *encode_question(row, processor), reference="")
    model = load_model(folder, family_name, torch.float32, "sdpa").eval()
    with torch.no_grad():
        return answer_greedily(model, processor, collate_prompts([prompt], processor), max_new_tokens)[0].strip()


def _first_question(run: Path) -> str:
    try:
        with (run / "predictions.jsonl").open() as file:
            return str(json.loads(file.readline())["question"])
    except (OSError, ValueError, KeyError) as error:
        message = f"{run} has no test question to ask again"
        raise Findings(Diagnostic("not-a-run", message, help="say what to ask: --question TEXT"), fatal=True) from error
