"""Train GLM-4V on chats with an image, in rows as verl's multi-turn data set makes them."""

import os
from types import SimpleNamespace

import torch
from take import take
from tiny_models import make

file = os.environ["WHEEL_VERL"] + "/verl/utils/dataset/multiturn_sft_dataset.py"
modes = SimpleNamespace(RIGHT="right", NO_PADDING="no_padding")
names = {"torch": torch, "print_assembled_message": print, "DatasetPadMode": modes}
get = take(file, "__getitem__", "MultiTurnSFTDataset", **names)


def process(index, message, **_):  # as the processor returns a turn
    ids, seen = torch.randint(3, 490, (12 + index,)), {}
    if message == "asked":
        ids[2:7] = torch.tensor([502, 500, 500, 500, 500])
        seen = {"pixel_values": torch.rand(16, 96), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    seen["mm_token_type_ids"] = (ids == 500).long()[None]
    return ids, torch.full_like(ids, int(message == "told")), torch.ones_like(ids), seen


data = {"dataframe": SimpleNamespace(iloc=[SimpleNamespace(to_dict=dict)]), "max_length": 99}
data |= {"processor": SimpleNamespace(image_processor="of GLM-4V"), "pad_mode": "no_padding"}
data |= {"_build_messages": lambda row: ["asked", "told"], "_process_single_message": process}
data |= dict.fromkeys(("tools", "tokenizer", "enable_thinking", "enable_thinking_default"))
data = SimpleNamespace(**data, sanity_check=print)
optimizer = torch.optim.AdamW((model := make("glm4v")).parameters(), lr=1e-3)
for _ in range(2):
    rows = [get(data, 0) for _ in range(3)]
    seen = [row.pop("multi_modal_inputs") for row in rows]
    given = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    mask = given.pop("loss_mask")[:, 1:].bool()
    given |= {name: torch.cat([one[name] for one in seen]) for name in seen[0]}
    logits, right = model(**given).logits[:, :-1][mask], given["input_ids"][:, 1:][mask]
    torch.nn.functional.cross_entropy(logits, right).backward()
    optimizer.step()
    optimizer.zero_grad()
