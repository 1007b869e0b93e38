"""Ask megatron-core for ten times the rate of two layers, and compare with the groups it makes.

usage: mcore_groups.py FOLDER_OF_MEGATRON_CORE
"""

import sys

import torch
from report import report
from take import take

import vtool

groups_of = take(f"{sys.argv[1]}/megatron/core/optimizer/__init__.py", "_get_param_groups")
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
scaled = ("0.weight", "2.weight")
groups = groups_of([model], None, lambda name, _: name in scaled, 10.0, False)
theirs = {id(one) for name, one in model.named_parameters() if name in scaled}
for group in groups:
    group["lr"] = 1e-4 * group["lr_mult"]
mine = [group for group in groups if theirs & {id(one) for one in group["params"]}]
report("compare", vtool.compare({"optim.lr": 1e-3}, {"optimizer": torch.optim.AdamW(mine)}))
