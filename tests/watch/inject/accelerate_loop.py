"""A loop with accelerate as its guides have it: prints a digest of its final weights.

usage: accelerate_loop.py mean|tokens     how the loss is divided: by micro-batch, or by all tokens
"""

import hashlib
import sys

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

STEPS, ACCUMULATE = 3, 2
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
torch.set_num_threads(1)
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.1,
    eos_token_id=2,
    pad_token_id=0,
)
rows = [torch.randint(4, 128, (6 + 7 * n % 20,)) for n in range(48)]


def collate(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


model = Qwen2ForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=collate)  # type: ignore[arg-type]
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = iter(loader)
for _ in range(STEPS):
    taken = [next(batches) for _ in range(ACCUMULATE)]
    mine = sum((batch["labels"][:, 1:] != -100).sum() for batch in taken)
    tokens = accelerator.gather(mine).sum()  # type: ignore[arg-type]
    for batch in taken:
        with accelerator.accumulate(model):
            if sys.argv[1] == "mean":
                loss = model(**batch).loss
            else:
                labels = batch.pop("labels")[:, 1:].flatten()
                logits = model(**batch).logits[:, :-1].flatten(0, 1)
                total = cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
                loss = total * accelerator.num_processes * ACCUMULATE / tokens
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
digest = hashlib.sha256()
for p in accelerator.unwrap_model(model).parameters():
    digest.update(p.detach().numpy().tobytes())
accelerator.print("weights", digest.hexdigest())
