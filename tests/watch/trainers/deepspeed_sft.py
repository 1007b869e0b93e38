"""A user's script for DeepSpeed.

usage: deepspeed_sft.py MADE OUT SETTING…   zero0, zero1, zero2, zero3, bf16, clip, accumulate, even
"""

import sys
from pathlib import Path

import deepspeed
import torch
from chats import collate, rows
from transformers import AutoModelForCausalLM

made, out, *how = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(Path(made) / "model", dtype=torch.float32)
accumulate = 2 if "accumulate" in how else 1
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": accumulate,
    "gradient_clipping": 0.1 if "clip" in how else 0.0,
    "bf16": {"enabled": "bf16" in how},
    "zero_optimization": {"stage": next(int(s[4:]) for s in how if s.startswith("zero"))},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
mine = rows(Path(made), "even" in how)[rank::world]
for begin in range(0, 2 * 3 * accumulate, 2):
    loss = engine(**collate(mine[begin : begin + 2])).loss
    engine.backward(loss)
    engine.step()
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    if rank == 0:
        engine.module.save_pretrained(Path(out) / "out")
torch.distributed.destroy_process_group()
