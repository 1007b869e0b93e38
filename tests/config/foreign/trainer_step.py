"""Runs the first step of another trainer in its own Python, and writes what it has computed.

usage: trainer_step.py trl|llamafactory|ms-swift RECIPE ROWS OUT

ROWS is a folder of rows that are tokens already (`input_ids`, `labels`). OUT gets the micro-batches
as the model was given them, the trained parameters as they were before, the loss and the norm.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from datasets import load_from_disk


def record(out: str) -> None:
    """Write the first step to a file at its clipping, and end the process."""
    step, clip = transformers.Trainer.training_step, Accelerator.clip_grad_norm_
    batches: list[dict[str, torch.Tensor]] = []
    losses: list[float] = []
    begun: dict[str, torch.Tensor] = {}

    def training_step(self: Any, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        if not begun:
            named_parameters = model.named_parameters()
            begun.update((n, p.detach().clone()) for n, p in named_parameters if p.requires_grad)
        kept = ("input_ids", "attention_mask", "labels")
        batches.append({name: inputs[name].clone() for name in kept})
        loss = step(self, model, inputs, *more, **named)
        losses.append(float(loss))
        return loss

    def clip_grad_norm(self: Any, *given: Any, **named: Any) -> Any:
        norm = float(clip(self, *given, **named))
        torch.save({"batches": batches, "begun": begun, "loss": sum(losses), "norm": norm}, out)
        os._exit(0)

    transformers.Trainer.training_step = training_step
    Accelerator.clip_grad_norm_ = clip_grad_norm


def run_trl(recipe: str, rows: str) -> None:
    """Train as `trl sft` does, with a tokenizer in the place of a processor."""
    from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config

    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    _, settings, model = parser.parse_args_and_config(["--config", recipe])
    settings.model_init_kwargs = {
        "dtype": model.dtype,
        "attn_implementation": model.attn_implementation,
    }
    SFTTrainer(
        model=model.model_name_or_path,
        args=settings,
        train_dataset=load_from_disk(rows)["train"],
        processing_class=transformers.AutoTokenizer.from_pretrained(model.model_name_or_path),
        peft_config=get_peft_config(model),
    ).train()


def run_llamafactory(recipe: str, rows: str) -> None:
    """Train as `llamafactory-cli train` does; the recipe names the rows."""
    from llamafactory.train.tuner import run_exp

    sys.argv = ["train", recipe]
    run_exp()


def run_swift(recipe: str, rows: str) -> None:
    """Train as `swift sft` does, with a tokenizer in the place of a processor."""
    from swift.model.models import qwen
    from swift.model.register import ModelLoader
    from swift.pipelines import sft_main

    def get_model(self: Any, *given: Any, **named: Any) -> Any:
        self.auto_model_cls = transformers.AutoModelForImageTextToText
        return ModelLoader.get_model(self, *given, **named)

    def get_processor(self: Any, folder: str, config: Any) -> Any:
        return transformers.AutoTokenizer.from_pretrained(folder)

    for loader in (qwen.Qwen2VLLoader, qwen.Qwen3VLLoader):  # theirs import torchvision
        loader.get_model, loader.get_processor = get_model, get_processor
    given = json.loads(Path(recipe).read_text()) | {"dataset": rows}
    sft_main([word for name, value in given.items() for word in (f"--{name}", str(value))])


if __name__ == "__main__":
    trainer, recipe, rows, out = sys.argv[1:]
    record(out)
    runs = {"trl": run_trl, "llamafactory": run_llamafactory, "ms-swift": run_swift}
    runs[trainer](recipe, rows)
