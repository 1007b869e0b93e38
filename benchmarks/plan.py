"""Benchmark: what `vtool plan` says of a rank's peak, against what real ranks take.

Models of 0.02 to 2 billion random weights, on two gloo ranks of FSDP2 or ddp, or in one process:
the anonymous memory of a rank's process, looked at every 2 ms in its second step, over what it had
before its weights. The allocator gives large tensors back at once, so that nothing but live tensors
is counted. gloo would copy all that it reduces or gathers at once, as no device's library does:
ranks are given collectives of pieces, or, with --gloo, gloo's own. The plan is made in a process of
its own, and sees none of this.

    python -m benchmarks.plan [--gloo] [MODEL…] [CASE…]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from vtool.config.load import load_run
from vtool.config.schema import Run

# hidden, intermediate, layers, heads, key heads, vocabulary, tower's blocks, hidden, intermediate
MODELS = {
    "0.02B": (256, 704, 6, 4, 2, 32_000, 2, 256, 512),
    "0.07B": (512, 1408, 8, 8, 2, 32_000, 4, 320, 864),
    "0.17B": (768, 2048, 10, 12, 4, 48_000, 6, 512, 1376),
    "0.45B": (1024, 2816, 18, 16, 8, 64_000, 8, 640, 1728),
    "1.0B": (1536, 4224, 24, 12, 4, 96_000, 12, 768, 2048),
    "2.0B": (2048, 5632, 28, 16, 4, 128_000, 16, 1024, 2752),
}
RECOMPUTE = "model.gradient_checkpointing=full"
BFLOAT16 = "model.dtype=bfloat16"
STATES = "optim.states=8bit"
LORA = "lora={rank: 16, base_dtype: bfloat16}"
# tokens of a row, ranks, settings; bfloat16 is slow on a CPU, and so has short rows
CASES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "ddp, float32": (1024, 1, ("engine=ddp",)),
    "fsdp2 × 2, float32": (1024, 2, ("engine=fsdp2",)),
    "ddp, float32, recompute": (1024, 1, ("engine=ddp", RECOMPUTE)),
    "fsdp2 × 2, float32, recompute": (1024, 2, ("engine=fsdp2", RECOMPUTE)),
    "fsdp2 × 2, bfloat16": (128, 2, ("engine=fsdp2", BFLOAT16)),
    "ddp, bfloat16": (128, 1, ("engine=ddp", BFLOAT16)),
    "ddp × 2, float32, recompute": (1024, 2, ("engine=ddp", RECOMPUTE)),
    "fsdp2 × 2, recompute, 8 bit": (1024, 2, ("engine=fsdp2", RECOMPUTE, STATES)),
    "fsdp2 × 2, LoRA over bfloat16": (128, 2, ("engine=fsdp2", RECOMPUTE, BFLOAT16, LORA)),
}


def write_config(name: str, folder: Path) -> None:
    """Write the config.json of a model of these sizes; there are no weights."""
    from transformers import Qwen2_5_VLConfig

    hidden, inner, layers, heads, keys, vocabulary, depth, width, between = MODELS[name]
    half = hidden // heads // 2
    side = half // 3
    Qwen2_5_VLConfig(
        text_config={
            **{"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers},
            **{"num_attention_heads": heads, "num_key_value_heads": keys},
            **{"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": 9},
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [half - 2 * side, side, side],
                "rope_theta": 1e6,
            },
        },
        vision_config={
            **{"depth": depth, "hidden_size": width, "intermediate_size": between},
            **{"num_heads": 8, "out_hidden_size": hidden, "fullatt_block_indexes": [depth - 1]},
        },
        **{"image_token_id": 5, "video_token_id": 6},
        **{"vision_start_token_id": 7, "vision_end_token_id": 8},
    ).save_pretrained(folder)


def run_of(folder: Path, case: str) -> Run:
    rows = folder / "rows.jsonl"
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows.write_text(json.dumps({"messages": said}) + "\n")
    tokens, world, settings = CASES[case]
    given = [f"data.train=[{{format:messages,path:{rows}}}]", f"model.path={folder}"]
    given += ["model.size=null", "optim.lr=1e-5", "train.epochs=1", f"data.max_length={tokens}"]
    given += [f"data.global_batch_size={world}", "data.micro_batch_size=1", *settings]
    return load_run("rows", given).run


def planned(folder: Path, case: str) -> int:
    from vtool.planning.micro_batch import shape_of
    from vtool.planning.model import model_of
    from vtool.planning.step import measure_step

    run, world = run_of(folder, case), CASES[case][1]
    return measure_step(run, model_of(run), world, shape_of(run, world)).peak


def anonymous() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def reduce_and_gather_by_pieces(engine: Any) -> None:
    """Let FSDP2 communicate in place, without gloo's copy of a whole buffer."""
    import torch.distributed as dist
    from torch import Tensor
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp

    world = range(dist.get_world_size())

    def pieces(whole: Tensor) -> list[list[tuple[Tensor, ...]]]:
        return [part.split(2**18) for part in whole.flatten().chunk(len(world))]

    class AllGather(fsdp.DefaultAllGather):
        def __call__(self, output_tensor: Any, input_tensor: Any, *_: Any, **__: Any) -> None:
            own = output_tensor.chunk(len(world))[dist.get_rank()]
            own.copy_(input_tensor)
            for source, part in enumerate(pieces(output_tensor)):
                for piece in part:
                    dist.broadcast(piece, source)

    class ReduceScatter(fsdp.DefaultReduceScatter):
        def __call__(
            self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, *_: Any, **__: Any
        ) -> None:
            for target, part in enumerate(pieces(input_tensor)):
                for piece in part:
                    dist.reduce(piece, target, op)
            output_tensor.copy_(input_tensor.chunk(len(world))[dist.get_rank()])

    for part, _ in engine.parts:
        part.set_custom_all_gather(AllGather())
        part.set_custom_reduce_scatter(ReduceScatter())


def taken(folder: Path, case: str, rank: int) -> int:
    """Return the peak of this rank in its second step, over what there was before its weights."""
    import torch
    import torch.distributed as dist

    from vtool.data.loss import summed_nll
    from vtool.engines.ranks import Ranks
    from vtool.families.family import load_family
    from vtool.planning.micro_batch import build_batch, shape_of
    from vtool.planning.model import model_of
    from vtool.training.model_and_engine import build_engine, prepare_model

    torch.set_num_threads(1)
    world = CASES[case][1]
    if world > 1:
        meeting = f"file://{folder}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    run = run_of(folder / f"rank{rank}", case)
    module: Any = model_of(run)
    zero = torch.zeros(())
    weights = {name: zero.expand(one.shape) for name, one in module.named_parameters()}
    wide = torch.ones(64, 64, dtype=torch.bfloat16)
    (wide @ wide).sum()  # the libraries' own buffers
    before = anonymous()
    prepare_model(run, module, weights)
    engine: Any = build_engine(run, module, Ranks(rank, world, rank, world), weights)
    batch = build_batch(module, load_family(run.model.family), shape_of(run, world))
    if world > 1 and "VTOOL_BENCH_GLOO" not in os.environ:
        reduce_and_gather_by_pieces(engine)
    highest, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            highest[0] = max(highest[0], anonymous())

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(2):
        highest[0] = 0
        engine.forward_backward(
            [batch],
            lambda model, one: summed_nll(model, one, engine.module),
            batch.supervised * world,
            every_parameter=True,
        )
        engine.clip_gradient(1.0)
        engine.optimizer_step(1e-5)
    done.set()
    thread.join()
    return highest[0] - before


def start(*arguments: str) -> subprocess.Popen[str]:
    # what is freed is given back at once, and so not counted
    exact = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    environment = os.environ | exact | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.plan", "--of", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> int:
    out, _ = process.communicate()
    assert process.returncode == 0, process.args
    return int(out.split()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--of"]:
        what, folder, case, *rank = sys.argv[2:]
        print(
            planned(Path(folder), case)
            if what == "plan"
            else taken(Path(folder), case, *map(int, rank))
        )
        sys.stdout.flush()
        os._exit(0)
    worst = 0.0
    asked = sys.argv[1:]
    if "--gloo" in asked:
        asked.remove("--gloo")
        os.environ["VTOOL_BENCH_GLOO"] = "1"
    if unknown := [each for each in asked if each not in {**MODELS, **CASES}]:
        raise SystemExit(f"neither a model nor a case: {', '.join(unknown)}")
    for name in [each for each in MODELS if each in asked] or MODELS:
        for case in [each for each in CASES if each in asked] or CASES:
            world = CASES[case][1]
            with tempfile.TemporaryDirectory() as folder:
                for each in ("", *(f"rank{rank}" for rank in range(world))):
                    write_config(name, Path(folder) / each)
                began = time.monotonic()
                said = answer(start("plan", folder, case))
                seconds = time.monotonic() - began
                ranks = [start("real", folder, case, str(rank)) for rank in range(world)]
                real = max(answer(rank) for rank in ranks)
            off = said / real - 1
            worst = max(worst, abs(off))
            sizes = f"{said / 2**20:7.0f} {real / 2**20:7.0f}"
            print(f"{name} {case:32} {sizes} MiB {off:+6.1%} ({seconds:.0f} s)", flush=True)
    print(f"worst: {worst:.1%}")


if __name__ == "__main__":
    main()
