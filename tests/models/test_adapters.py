"""Merged weights against peft's own layer, and against the formula in float64."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vtool.config.schema import Lora
from vtool.models import adapters


@pytest.mark.parametrize("dtype", ["nf4", "float32", "bfloat16"])
def test_an_adapters_folder_says_that_its_base_is_in_nf4_without_the_file_that_says_how(
    dtype: Any, tmp_path: Path
) -> None:
    from peft import PeftConfig

    stem = "base_model.model.up.lora_"
    tensors = {f"{stem}A.weight": torch.ones(2, 6), f"{stem}B.weight": torch.ones(9, 2)}
    settings = Lora(rank=2, alpha=4.0, base_dtype=dtype)
    adapters.write_adapter(settings, tensors, tmp_path / "base", tmp_path)
    assert adapters.is_for_nf4(tmp_path) == (dtype == "nf4")
    (tmp_path / "base_quantization.json").unlink(missing_ok=True)
    assert adapters.is_for_nf4(tmp_path) == (dtype == "nf4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # peft warns of what it does not know
        assert PeftConfig.from_pretrained(str(tmp_path)).r == 2
    (tmp_path / adapters.CONFIG).write_text(json.dumps({"auto_mapping": None}))
    assert not adapters.is_for_nf4(tmp_path)


class Small(nn.Module):
    """Two linear layers and one that is trained whole."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(6, 9), nn.Linear(9, 5), nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs [rows, 4]."""
        return self.last(self.down(self.up(inputs).tanh()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dora", [False, True])
def test_what_is_merged_computes_what_the_layer_does_and_what_the_formula_says(dora: bool) -> None:
    from peft import inject_adapter_in_model

    torch.manual_seed(0)
    settings, model = Lora(rank=3, alpha=5.0, dora=dora), Small()
    bare = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    config = adapters._peft_config(settings, ["up", "down"], ["last"])
    inject_adapter_in_model(config, model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    here = {adapters.saved_name(name): tensor for name, tensor in model.named_parameters()}
    learnt = {name: tensor for name, tensor in here.items() if adapters.is_adapter_name(name)}
    assert here.keys() - learnt.keys() == bare.keys()
    lengths = {name for name in learnt if name.endswith(".lora_magnitude_vector")}
    assert len(lengths) == (2 if dora else 0)
    merged = dict(adapters.merge_adapters(bare, learnt, settings.scale))

    inputs, whole = torch.randn(8, 6), Small()
    whole.load_state_dict(merged)
    assert torch.allclose(whole(inputs), model(inputs), atol=1e-5)
    for name in ("up", "down"):
        stem = f"base_model.model.{name}"
        a, b = (learnt[f"{stem}.lora_{which}.weight"].double() for which in "AB")
        wanted = bare[f"{name}.weight"].double() + 5 / 3 * b @ a
        if dora:
            wanted *= learnt[f"{stem}.lora_magnitude_vector"].double()[:, None]
            wanted /= (bare[f"{name}.weight"].double() + 5 / 3 * b @ a).norm(dim=1)[:, None]
        assert torch.allclose(merged[f"{name}.weight"].double(), wanted, atol=1e-6)
    assert torch.equal(merged["last.weight"], learnt["base_model.model.last.weight"])
    assert not torch.equal(merged["last.weight"], bare["last.weight"])
