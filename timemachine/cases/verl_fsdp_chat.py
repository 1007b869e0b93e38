"""Train on chats by the method of verl's FSDP SFT trainer that makes the loss of a batch.

usage: verl_fsdp_chat.py FOLDER_OF_VERL
"""

import contextlib
import sys
from types import SimpleNamespace

import torch
from take import take
from tiny_models import make
from tiny_tokenizer import tokenizer
from torch import nn

torch.manual_seed(0)
tokenizer().save_pretrained("model")
model = make("llama")
model.config.name_or_path = "model"
model.config.eos_token_id = model.generation_config.eos_token_id = 1
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
method = take(
    f"{sys.argv[1]}/verl/trainer/fsdp_sft_trainer.py", "_compute_loss_and_backward",
    "FSDPSFTTrainer", torch=torch, nn=nn, nullcontext=contextlib.nullcontext,
)  # fmt: skip
trainer = SimpleNamespace(
    use_remove_padding=False, device_name="cpu", fsdp_model=model, model=model,
    config=SimpleNamespace(
        ulysses_sequence_parallel_size=1, data=SimpleNamespace(balance_dp_token=False)
    ),
)  # fmt: skip
for _ in range(3):  # <user> w… <eos> <assistant> w… <eos>, of which the answer is learnt
    ids = torch.randint(3, 490, (4, 20))
    ids[:, 0], ids[:, 8], ids[:, 9], ids[:, 19] = 509, 1, 510, 1
    places = torch.arange(20).expand(4, -1)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": places}
    optimizer.zero_grad()
    method(trainer, batch={**batch, "loss_mask": (places > 9).long()})
    optimizer.step()
