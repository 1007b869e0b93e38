"""Train a tiny Qwen2-VL by LLaMA-Factory on chats without an image, packed into rows."""

import json
import os
from pathlib import Path

import torch

os.environ["DISABLE_VERSION_CHECK"] = "1"  # datasets and numpy are newer here than it asks for

from llamafactory.train.tuner import run_exp
from tiny_models import make
from tiny_rows import rows
from tiny_tokenizer import tokenizer, words
from transformers import Qwen2TokenizerFast, Qwen2VLImageProcessor, Qwen2VLProcessor

torch.manual_seed(0)
model, own = make("qwen2_vl"), tokenizer()
model.generation_config.eos_token_id, model.config.pad_token_id = 1, None
model.save_pretrained("model")
inner, ends = own.backend_tokenizer, {"eos_token": "<eos>", "pad_token": "<pad>"}
own = Qwen2TokenizerFast(tokenizer_object=inner, unk_token="<unk>", **ends)
Qwen2VLProcessor(Qwen2VLImageProcessor(), own).save_pretrained("model")
texts = [words(row["input_ids"]) for row in rows([12], 48)]
chats = [{"instruction": "w3 w4", "input": "", "output": text} for text in texts]
Path("data").mkdir()
Path("data/rows.json").write_text(json.dumps(chats))
Path("data/dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
run_exp({
    "stage": "sft", "do_train": True, "finetuning_type": "full", "model_name_or_path": "model",
    "dataset": "rows", "dataset_dir": "data", "template": "empty", "cutoff_len": 64,
    "output_dir": "out", "max_steps": 2, "learning_rate": 1e-3, "report_to": "none",
    "per_device_train_batch_size": 2, "max_grad_norm": 0, "neat_packing": True,
    "preprocessing_num_workers": 1, "use_cpu": True, "save_strategy": "no", "flash_attn": "sdpa",
})  # fmt: skip
