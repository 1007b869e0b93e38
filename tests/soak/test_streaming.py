"""Weights streamed out of an engine into vLLM's `load_weights` give the model that was exported."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request
from vtool.engines.ranks import Ranks
from vtool.models.adapters import Adapter
from vtool.training.export_run import export_run
from vtool.training.run_folder import RunFolder
from vtool.training.session import RunRequest
from vtool.training.setup import set_up_run
from vtool.training.sft import train
from vtool.training.start import Start

pytestmark = pytest.mark.soak
SPREAD = ("engine=megatron", "engine.parallel.tensor=2", "engine.parallel.sequence=true")
LORA = "lora={rank: 4}"
RUNS: dict[str, tuple[str, ...]] = {
    "ddp": ("engine=ddp",),
    "fsdp2": ("engine=fsdp2",),
    "megatron": SPREAD,
    "ddp-lora": ("engine=ddp", LORA),
    "fsdp2-lora": ("engine=fsdp2", LORA),
    "megatron-lora": (*SPREAD, LORA),
}


def made_run(folder: Path, name: str) -> RunRequest:
    return request(
        "rows",
        messages(folder / "rows.jsonl"),
        *(
            "data.global_batch_size=6",
            "data.image={min_pixels:784,max_pixels:3136}",
            "device.threads=1",
            "optim.lr=1e-2",
        ),
        *("train={steps:3,epochs:null}", "optim.warmup_steps=1", f"run.dir={folder / name}"),
        *RUNS[name],
    )


def stream(ranks: Ranks, folder: Path, python: str) -> list[dict[str, Any]]:
    """Train every run; then feed vLLM with what each has at its end."""
    torch.set_num_threads(1)
    exports: dict[tuple[str, Adapter], Path] = {}
    for name in RUNS:
        assert train(made_run(folder, name), ranks).status == "finished"
        exports[name, "merged"] = folder / name / ("merged" if "lora" in name else "export")
        if "lora" in name:
            ranks.on_rank_zero(lambda name=name: export_run(folder / name, merge=True))  # type: ignore[misc]
            exports[name, "none"] = folder / name / "base"
    server = None
    if ranks.rank == 0:
        script = Path(__file__).with_name("load_into_vllm.py")
        command = [python, str(script), *map(str, exports.values())]
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "vllm.log").open("w"),
        )
    for name, adapter in exports:
        start = Start(folder / name / "checkpoints/step-000003")
        session, _ = set_up_run(made_run(folder, name), RunFolder(folder / name), start, ranks)
        for key, tensor in session.engine.iter_hf_weights(adapter):
            if server is not None and server.stdin is not None:
                sent = save({key: tensor.cpu().contiguous()})
                server.stdin.write(len(sent).to_bytes(8, "little") + sent)
        if server is not None and server.stdin is not None:
            server.stdin.write(bytes(8))
            server.stdin.flush()
    if server is None:
        return []
    printed, _ = server.communicate(timeout=900)
    assert server.returncode == 0, (folder / "vllm.log").read_text()[-4000:]
    return [
        {"run": name, "adapter": adapter} | json.loads(line)
        for (name, adapter), line in zip(exports, printed.splitlines(), strict=True)
    ]


def test_vllm_gets_the_exported_model_from_every_engine(tmp_path: Path) -> None:
    interpreter = os.environ.get("VTOOL_VLLM_PYTHON")
    if not interpreter:
        pytest.skip(
            "not run: VTOOL_VLLM_PYTHON is not set to the interpreter of an environment with vLLM"
            " (`make vllm-env` makes one)"
        )
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 12))
    answers = run_ranks(stream, 2, tmp_path, interpreter)[0]
    assert len(answers) == 9
    for answer in answers:
        print(answer)
        # vLLM joins q, k and v, and gate and up
        assert answer["tensors"] >= answer["parameters"] > 50
        assert answer["differ"] == [], answer
