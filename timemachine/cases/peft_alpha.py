"""Ask peft for one alpha of all layers, whose rank has a pattern, and compare with its layers.

usage: peft_alpha.py FOLDER_OF_PEFT
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

import peft
import torch
from tiny_models import make

import vtool
from vtool.diagnostics.render import as_json
from vtool.diagnostics.result import Result

torch.manual_seed(0)
config = peft.LoraConfig(
    r=8,
    lora_alpha=8,
    target_modules=["q_proj"],
    rank_pattern={"q_proj": 16},
    alpha_pattern={"self_attn.q_proj": 99},
)
model = peft.get_peft_model(make("llama"), config)
found = vtool.compare({"lora.alpha": 99}, {"model": model})
print(json.dumps(as_json([Result.of_findings(f"peft {peft.__version__}", found)], "compare")))
