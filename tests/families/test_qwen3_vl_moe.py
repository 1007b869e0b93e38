"""Qwen3-VL with experts."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.tiny import text_loss, tiny_model
from vtool.families import FAMILIES
from vtool.families.family import load_family

NAME = "qwen3_vl_moe"
FILE = "model.safetensors"


def test_adapters_reach_neither_the_router_nor_the_experts() -> None:
    language = FAMILIES[NAME].linear_layers["language"]
    assert {name.split(".N.")[1].split(".")[0] for name in language} == {"self_attn"}


def test_in_float64_its_experts_compute_the_same_without_torchs_grouped_product() -> None:
    grouped, alone = tiny_model(NAME), tiny_model(NAME, torch.float64)
    alone.load_state_dict(grouped.state_dict())
    chosen = [one.config.text_config._experts_implementation for one in (grouped, alone)]
    assert chosen == ["grouped_mm", "eager"]
    assert abs(text_loss(grouped).item() - text_loss(alone).item()) < 1e-5


def test_files_have_the_experts_matrices_as_published_ones_do(tmp_path: Path) -> None:
    """The 30B has gate_up_proj [128, 2048, 1536] and down_proj [128, 768, 2048], inputs first."""
    family, model = load_family(NAME), tiny_model(NAME)
    model.save_pretrained(tmp_path, **family.save_arguments(model.state_dict()))
    shapes = {name: list(one.shape) for name, one in load_file(tmp_path / FILE).items()}
    experts = "model.language_model.layers.0.mlp.experts"
    assert shapes[f"{experts}.gate_up_proj"] == [4, 128, 192]
    assert shapes[f"{experts}.down_proj"] == [4, 96, 128]
    read = family.model_class().from_pretrained(tmp_path, local_files_only=True).state_dict()
    assert all(torch.equal(read[name], one) for name, one in model.state_dict().items())
