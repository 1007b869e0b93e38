"""Facts about Qwen3-VL's mixtures of experts (Qwen3-VL-30B-A3B, -235B-A22B; arXiv 2511.21631)."""

from dataclasses import replace

from vtool.families import qwen3_vl
from vtool.families.facts import ATTENTION

FACTS = replace(
    qwen3_vl.FACTS,
    name="qwen3_vl_moe",
    implementation="vtool.families.qwen3_vl_moe.model:Qwen3VLMoe",
    class_prefix="Qwen3VLMoe",
    # The router and the experts are parameters of their own, not linear layers: adapters reach
    # neither.
    linear_layers={
        **qwen3_vl.FACTS.linear_layers,
        "language": tuple(f"model.language_model.layers.N.{name}" for name in ATTENTION),
    },
    # In files the matrices of experts are transposed (model.py), which transformers knows by their
    # shape: none may be square.
    sizes={
        size: {**table, "experts": 4, "experts_per_token": 2, "expert_intermediate": 96}
        for size, table in qwen3_vl.FACTS.sizes.items()
    },
)
