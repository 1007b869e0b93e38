"""Benchmark: what a rank reads of a model's folder, and holds in memory, until its engine stands.

On two gloo ranks of a CPU, for a folder of random weights in bfloat16: loaded whole by transformers
on each rank, and then given to the engine; or mapped, of which each rank reads its share.

    python -m benchmarks.load [--layers N] [--folder DIR]
"""

import argparse
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.engines.ranks import run_ranks
from tests.mapped_files import bytes_in_memory
from vtool.config import schema
from vtool.engines import registry
from vtool.engines.contract import EngineInputs
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models.build import build_on_meta, implementations, load_model
from vtool.models.mapped_weights import map_folder
from vtool.training.optimizer import build_optimizer

FAMILY, MIB = "qwen2_5_vl", 2**20
IDS = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
ENGINES: dict[str, Any] = {
    "ddp": schema.Ddp(kind="ddp"),
    "fsdp2": schema.Fsdp2(kind="fsdp2"),
    "megatron, tensor × 2": schema.Megatron.model_validate(
        {"kind": "megatron", "parallel": {"tensor": 2}}
    ),
}


def write_model(folder: Path, layers: int) -> None:
    """Write a model with 13 million parameters a layer, and 29 million besides."""
    family = load_family(FAMILY)
    config = family.random_config("tiny", 20_000, IDS)
    text, vision = config.text_config, config.vision_config
    for name, value in {
        "hidden_size": 1024,
        "intermediate_size": 3328,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "layer_types": ["full_attention"] * layers,
    }.items():
        setattr(text, name, value)
    text.rope_parameters["mrope_section"] = [16, 8, 8]
    vision.out_hidden_size = 1024
    model = family.model_class()._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100MB")


@contextmanager
def watched(folder: Path) -> Iterator[dict[str, int]]:
    """Yield the peaks of a rank's own memory, and of what it has looked into, as they grow."""
    peaks = {"own": 0, "files": 0}
    end = threading.Event()

    def anonymous() -> int:
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    before = anonymous()

    def look() -> None:
        while not end.wait(0.005):
            peaks["own"] = max(peaks["own"], anonymous() - before)
            peaks["files"] = max(peaks["files"], bytes_in_memory(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        end.set()
        thread.join()


def measured(ranks: Ranks, folder: Path, engine: str, mapped: bool) -> dict[str, int]:
    """Build an engine, and return the peaks until it stands, and what it then holds."""
    family, how = load_family(FAMILY), implementations(torch.float32, "sdpa")
    settings = schema.Model.model_validate({"family": FAMILY, "path": str(folder)})
    optim = schema.Optim(lr=1e-5)
    with watched(folder) as peaks:
        weights = {}
        if mapped:
            found = map_folder(folder, FAMILY, how)
            assert found is not None
            processor: Any = SimpleNamespace(ids=IDS)
            module, weights = build_on_meta(settings, processor, folder, 0), found.tensors
        else:
            module = load_model(folder, FAMILY, torch.float32, "sdpa")
        built = registry.build(
            EngineInputs(
                module=module,
                blocks=family.blocks(module),
                settings=ENGINES[engine],
                optim=optim,
                ranks=ranks,
                compute_dtype=torch.float32,
                component=family.component,
                build_optimizer=lambda module: build_optimizer(module, optim, family.component),
                checkpointing=False,
                packed=False,
                weights=weights,
            )
        )
    return peaks | {"parameters": built.size}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12, metavar="N")
    parser.add_argument("--folder", type=Path, help="where the model is written and removed again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_model(folder, options.layers)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        print(
            f"files of {size / MIB:.0f} MiB in bfloat16; each rank's peaks until the engine stands"
        )
        print("| two ranks | | read of the files | own memory |\n|---|---|---|---|")
        for engine in ENGINES:
            for mapped in (False, True):
                ranks = run_ranks(measured, 2, folder, engine, mapped)
                read, own = (
                    ", ".join(f"{rank[what] / MIB:.0f}" for rank in ranks)
                    for what in ("files", "own")
                )
                way = "by slices" if mapped else "whole"
                print(f"| {engine} | {way} | {read} MiB | {own} MiB |", flush=True)
        print(f"{ranks[0]['parameters'] / 1e6:.0f} million parameters, 4 bytes each in the engine")


if __name__ == "__main__":
    main()
