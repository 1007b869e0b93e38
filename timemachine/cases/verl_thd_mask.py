"""Train on a jagged batch whose ids and mask are those that verl gives a vision model.

usage: verl_thd_mask.py FOLDER_OF_VERL
"""

import sys
from typing import Optional

import torch
from take import take
from tiny_models import make

torch.manual_seed(0)
build = take(
    f"{sys.argv[1]}/verl/models/mcore/util.py", "build_vlm_attn_mask_thd",
    torch=torch, Optional=Optional, is_npu_available=False,
)  # fmt: skip
model = make("qwen2_vl")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    rows = [torch.randint(3, 490, (length,)) for length in (9, 14)]
    batch = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    ids, labels = torch.cat(rows)[None], torch.cat([row.roll(-1) for row in rows])[None]
    mask = build(batch, 0)
    if isinstance(mask, tuple):  # ids in rows, as the mask is
        ids, mask = mask
        labels = ids.roll(-1, 1).masked_fill(~mask, -100)
    ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
    if len(ids) == 1:
        labels[0, ends] = -100
    else:
        labels[range(len(rows)), [len(row) - 1 for row in rows]] = -100
    optimizer.zero_grad()
    logits = model(input_ids=ids, attention_mask=mask).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
