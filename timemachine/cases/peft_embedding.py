"""Put an adapter on the embeddings of Gemma 3, merge it, and compare with what is live.

usage: peft_embedding.py [dora]
"""

import wheels  # noqa: F401, I001

import copy
import sys

from tiny_lora import adapted, tell_apart
from tiny_models import TEXT
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

config = Gemma3TextConfig(**TEXT, head_dim=16, tie_word_embeddings=False)
live = adapted(Gemma3ForCausalLM(config), ["embed_tokens"], use_dora="dora" in sys.argv)
tell_apart(live, copy.deepcopy(live).merge_and_unload())
