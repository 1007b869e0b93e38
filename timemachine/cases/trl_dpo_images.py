"""Learn the answers of pairs with an image, from batches as TRL's DPO collates and gives them."""

import contextlib
from types import SimpleNamespace
from unittest.mock import Mock

import torch
from tiny_models import make
from trl.trainer.dpo_trainer import DataCollatorForVisionPreference, DPOTrainer


class Processor:  # what Qwen2.5-VL's returns
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)

    def __call__(self, text, images=None, **_):
        ids, seen = torch.randint(3, 490, (len(text), 9)), {}
        if images:
            ids[:, 2:7] = torch.tensor([502, 500, 500, 500, 500])
            seen = {"mm_token_type_ids": (ids == 500).long()}
            seen["pixel_values"] = torch.rand(16 * len(text), 3 * 2 * 14 * 14)
            seen["image_grid_thw"] = torch.tensor([[1, 4, 4]] * len(text))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}


torch.manual_seed(0)
optimizer = torch.optim.AdamW((model := make("qwen2_5_vl")).parameters(), lr=1e-3)
parts = {"model": model, "accelerator": SimpleNamespace(device="cpu")}
trainer = SimpleNamespace(**parts, _truncate_inputs=lambda *given: given)
collate = DataCollatorForVisionPreference(Processor())
pair = {"prompt": "What is this?", "chosen": "A cat.", "rejected": "A dog.", "images": [None]}
for _ in range(2):
    batch, asked = collate([dict(pair), dict(pair)]), Mock(side_effect=StopIteration)
    with contextlib.suppress(StopIteration):  # the trainer chooses what the model is given
        DPOTrainer._compute_loss(trainer, asked, batch, False)
    given, learnt = asked.call_args.kwargs, batch["completion_mask"][:, 1:].bool()
    logits = model(**given).logits[:, :-1][learnt]
    torch.nn.functional.cross_entropy(logits, given["input_ids"][:, 1:][learnt]).backward()
    optimizer.step()
    optimizer.zero_grad()
