"""Merge adapters into their model, and compare with what is live.

usage: peft_merge.py WHAT     bias, embedding-dora, two-doras, unmerged-dora, replicated
"""

import wheels  # noqa: F401, I001

import copy
import sys

from peft import LoraConfig
from tiny_lora import adapted, tell_apart, trained
from tiny_models import make
from transformers import GPT2Config, GPT2LMHeadModel

what = sys.argv[1]
if what == "embedding-dora":
    live = adapted(targets=["embed_tokens", "q_proj"], use_dora=True)
elif what == "two-doras":
    live = adapted(use_dora=True)
    live.add_adapter("second", LoraConfig(target_modules=["q_proj", "v_proj"], use_dora=True))
    live.base_model.set_adapter(["default", "second"])
    live = trained(live)
elif what == "unmerged-dora":
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=64, n_layer=1, n_head=4))
    live = adapted(gpt, ["attn.c_proj"], use_dora=True, fan_in_fan_out=True)
elif what == "bias":
    live = adapted(make("qwen2"), lora_bias=True, lora_alpha=32)
else:
    live = adapted(layer_replication=[[0, 1], [0, 1]])
made = copy.deepcopy(live)
if what == "unmerged-dora":  # merged for an evaluation, and unmerged again
    made.merge_adapter()
    made.unmerge_adapter()
else:
    made = made.merge_and_unload()
tell_apart(live, made)
