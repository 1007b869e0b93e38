"""`vtool.compare`, `vtool.audit` and `vtool.load_check` in a trainer's own environment.

    PYTHON inside.py FOLDER

Runs there with the wheel of vtool and nothing of the checkout, in an empty FOLDER; prints JSON.
"""

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

import vtool

TRAINERS = {"llamafactory": "llamafactory", "ms-swift": "swift", "verl": "verl", "trl": "trl"}


class Rows(torch.utils.data.Dataset[Any]):
    """Four rows of eight tokens."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(8) + index
        return {"input_ids": tokens, "labels": tokens}


class Compared(TrainerCallback):  # type: ignore[misc]
    """Compares two askings with the objects of the trainer, one of them wrong."""

    def on_train_begin(self, *_given: Any, model: Any, optimizer: Any, **_more: Any) -> None:
        objects = {"model": model, "optimizer": optimizer}
        self.right = vtool.compare({"optim.betas": (0.9, 0.95), "optim.eps": 1e-6}, objects)
        self.wrong = vtool.compare({"optim.betas": (0.9, 0.999)}, objects)


def main(folder: Path) -> dict[str, Any]:
    """Use the three functions, and return what they found."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=2))
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        use_cpu=True,
        report_to=[],
        max_steps=1,
        save_strategy="no",
        adam_beta2=0.95,
        adam_epsilon=1e-6,
    )
    compared = Compared()
    Trainer(model, arguments, train_dataset=Rows(), callbacks=[compared]).train()
    model.save_pretrained(folder / "model")
    chat = [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "two"}]
    lines = [json.dumps({"messages": chat}), json.dumps({"messages": chat[:1]})]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    ledger = vtool.audit(folder / "rows.jsonl")
    checked = vtool.load_check(folder / "model")
    names = {one: name for one, name in TRAINERS.items() if _version(one)}
    for name in names.values():
        importlib.import_module(name)
    return {
        "right": [one.rule for one in compared.right],
        "wrong": [one.rule for one in compared.wrong],
        "rows": [ledger.rows, len(ledger.kept)],
        "audit": [one.rule for one in ledger.findings],
        "files": [one.rule for one in checked.findings if one.severity == "error"],
        "passed": sum(state == "passed" for state in checked.results[0].checks.values()),
        "installed": {one: _version(one) for one in (*names, "transformers", "peft", "pydantic")},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    found = main(Path(sys.argv[1]))
    print("\n" + json.dumps(found))
