"""Freeze the language model of Qwen2-VL as ms-swift does, and ask whether that has arrived.

usage: swift_freeze.py FOLDER_OF_MS-SWIFT
"""

import runpy
import sys
from types import SimpleNamespace

from report import report
from take import take
from tiny_models import make

import vtool

swift = sys.argv[1]
archs = runpy.run_path(f"{swift}/swift/llm/model/model_arch.py")["MODEL_ARCH_MAPPING"]
names = take(
    f"{swift}/swift/llm/argument/tuner_args.py", "_init_multimodal_full", "TunerArguments",
    logger=SimpleNamespace(info=print),
)  # fmt: skip
freeze = take(f"{swift}/swift/utils/torch_utils.py", "freeze_parameters")
meta = SimpleNamespace(model_arch=archs["qwen2_vl"], is_multimodal=True)
asked = SimpleNamespace(
    freeze_llm=True, freeze_vit=True, freeze_aligner=False, train_type="full", model_meta=meta,
    freeze_parameters=[], trainable_parameters=[],
)  # fmt: skip
names(asked)
model = make("qwen2_vl")
freeze(model, 0, asked.freeze_parameters)
for name, one in model.named_parameters():
    if name.startswith(tuple(asked.trainable_parameters)):
        one.requires_grad_()
report("compare", vtool.compare({"model.freeze.language": True}, {"model": model}))
