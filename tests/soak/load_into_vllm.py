"""Load streams of weights into vLLM's class, and compare. This runs in vLLM's own environment, and
imports nothing of vtool.

    VLLM_PYTHON load_into_vllm.py EXPORT… < STREAM

STREAM: for each EXPORT a model, tensor by tensor: 8 bytes with the length of what follows,
little-endian, and one tensor by its name as safetensors; a length of 0 ends the model. Each goes
into `load_weights` of a model whose every parameter is NaN, as it comes in. A line of
JSON for each: `tensors` that came, `parameters` of vLLM's model, and those that `differ` from what
vLLM's own loader makes of EXPORT.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from safetensors.torch import load
from torch import Tensor


def main() -> None:
    stdout, sys.stdout = sys.stdout, sys.stderr  # vLLM prints
    from vllm.config import (
        DeviceConfig,
        LoadConfig,
        ModelConfig,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(VllmConfig()):
        meeting = tempfile.mktemp()
        init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
        initialize_model_parallel(1, 1)
    for folder in sys.argv[1:]:
        model_config = ModelConfig(
            model=folder,
            tokenizer=folder,
            dtype="float32",
            seed=0,
            enforce_eager=True,
            max_model_len=64,
        )
        config = VllmConfig(
            model_config=model_config,
            load_config=LoadConfig(),
            device_config=DeviceConfig(device="cpu"),
        )
        with (
            set_current_vllm_config(config),
            set_default_torch_dtype(torch.float32),
            torch.device("cpu"),
        ):
            model: Any = initialize_model(vllm_config=config).eval()
            spoil(model)
            get_model_loader(LoadConfig()).load_weights(model, model_config)
            wanted = {
                name: parameter.detach().clone() for name, parameter in model.named_parameters()
            }
            spoil(model)
            count = [0]
            model.load_weights(received(count))
        differ = [
            name
            for name, parameter in model.named_parameters()
            if not torch.equal(parameter, wanted[name])
        ]
        stdout.write(
            json.dumps({"tensors": count[0], "parameters": len(wanted), "differ": differ}) + "\n"
        )
        stdout.flush()


def spoil(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))


def received(count: list[int]) -> Iterator[tuple[str, Tensor]]:
    while length := int.from_bytes(sys.stdin.buffer.read(8), "little"):
        yield from load(sys.stdin.buffer.read(length)).items()
        count[0] += 1


if __name__ == "__main__":
    main()
