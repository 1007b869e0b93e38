"""Runs that have, between them, every live object that a setting can arrive in;

and what two ranks of each see.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.config.readback import Observed
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import observe_run
from vtool.training.session import RunRequest

OWN = Path(__file__).parent / "my_qwen.py"
_PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=160")
VARIANTS: dict[str, tuple[str, ...]] = {
    "ddp": (
        *(
            "engine=ddp",
            "model.dtype=bfloat16",
            "engine.bucket_cap_mb=7",
            "engine.gradient_as_bucket_view=true",
            "launch.nproc=2",
        ),
        *("device={kind: cpu, threads: 1}", "model.attention=eager"),
    ),
    "adapters": (
        "engine=ddp",
        "lora={rank: 3, alpha: 5, dropout: 0.1, targets: [q_proj, mlp.2], "
        "exclude: [layers.1.self_attn.q_proj]}",
        "model.freeze.vision=true",
    ),
    "own class": ("engine=fsdp2", f"model.modeling='{OWN}:MyQwen'"),
    "fsdp2": (
        "engine=fsdp2",
        "model.dtype=bfloat16",
        "engine.reshard_after_forward=false",
        "model.gradient_checkpointing=true",
    ),
    "sharded adapters": (
        "engine=fsdp2",
        "lora={rank: 4, rslora: true, dora: true, exclude: [q_proj], modules_to_save: [merger]}",
        "optim.schedule=linear",
        *_PACKED,
    ),
    "megatron": (
        *(
            "engine=megatron",
            "model.dtype=bfloat16",
            "engine.wrap_config.use_distributed_optimizer=true",
        ),
        *(
            "engine.ddp_config={overlap_grad_reduce: true, bucket_size: 1000}",
            "model.gradient_checkpointing=true",
        ),
    ),
    "tensor": (
        "engine=megatron",
        "engine.parallel={tensor: 2, sequence: true}",
        "lora={rank: 2, targets: [q_proj, proj]}",
        *_PACKED,
    ),
    "pipeline": (
        *(
            "engine=megatron",
            "engine.parallel={pipeline: 2}",
            "optim.weight_decay=0.1",
            "optim.schedule=constant",
            *("optim.warmup_steps=0", "optim.warmup_ratio=0.2"),
        ),
        "optim.groups={vision: {lr: 1e-4, weight_decay: 0.3}, "
        "projector: {lr: 5e-3, weight_decay: 0.0}, language: {lr: 3e-3, weight_decay: 0.2}}",
    ),
}


@dataclass(frozen=True, slots=True)
class Look:
    """The view of one rank on one run."""

    seen: list[Observed]
    findings: list[str]
    """Findings of the comparison of all ranks."""
    of_one: list[str]
    """Findings where rank 1 has seen another value of `optim.eps`."""


def requests(folder: Path) -> dict[str, RunRequest]:
    write_rows(folder / "rows.jsonl", mixed_rows(folder, 8))
    common = (
        *(messages(folder / "rows.jsonl"), "data.global_batch_size=8", "data.micro_batch_size=3"),
        *(
            "data.image={min_pixels: 784, max_pixels: 3136, max_decoded_pixels: 1000000, "
            "sixteen_bit: scale, sixteen_bit_range: [0, 4095]}",
            "train={steps: 12, epochs: null}",
            "optim.warmup_steps=2",
        ),
    )
    return {
        name: request("rows", *common, f"run.dir={folder / name.replace(' ', '-')}", *more)
        for name, more in VARIANTS.items()
    }


def look(ranks: Ranks, made: dict[str, RunRequest]) -> dict[str, Look]:
    return {name: _look(ranks, each) for name, each in made.items()}


def _look(ranks: Ranks, made: RunRequest) -> Look:
    opened, _ = session(made, ranks)
    seen = observe_run.observe_run(opened)
    right = observe_run.observe_run

    def wrong(opened: Any) -> list[Observed]:
        return [
            *right(opened),
            *([Observed("optim.eps", 1.0, "an AdamW of its own")] if ranks.rank == 1 else []),
        ]

    findings = _messages(opened, made)
    observe_run.observe_run = wrong
    try:
        return Look(seen, findings, _messages(opened, made))
    finally:
        observe_run.observe_run = right


def _messages(opened: Any, made: RunRequest) -> list[str]:
    try:
        observe_run.check_arrival(opened, made.origins)
    except Findings as findings:
        return [finding.message for finding in findings.diagnostics]
    return []
