"""A trained model against its export: what rounding does is no finding, a lost scale is one."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import vtool


class Tiny(nn.Module):
    """An embedding, a layer with an adapter whose scale is an attribute, and a head."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.base = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.adapter, self.head = nn.Linear(16, 16, bias=False), nn.Linear(16, 32)
        self.dropout, self.scale = nn.Dropout(0.5), scale

    def forward(self, input_ids: torch.Tensor) -> Any:
        hidden = self.embed(input_ids)
        hidden = self.base(hidden) + self.scale * self.adapter(self.dropout(hidden))
        return SimpleNamespace(logits=self.head(hidden))


class ReturnsNoLogits(Tiny):
    def forward(self, input_ids: torch.Tensor) -> Any:
        return {"hidden": input_ids}


IDS = {"input_ids": torch.arange(24).reshape(2, 12)}


def merged(model: Tiny, scale: float) -> Tiny:
    """Return a model with the adapter in its layer, as `scale` of it."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        found.base.weight += scale * found.adapter.weight
        found.adapter.weight.zero_()
    return found


def test_a_merge_is_the_trained_model_but_for_rounding() -> None:
    model = Tiny().train()
    export = merged(model, 2.0)
    assert not torch.equal(model.eval()(**IDS).logits, export.eval()(**IDS).logits)
    assert vtool.compare_models(model.train(), export, IDS) == []
    assert model.dropout.training, "it is left as it was"


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.002])
def test_a_scale_that_is_lost_is_found(scale: float) -> None:
    model = Tiny()
    (finding,) = vtool.compare_models(model, merged(model, scale), IDS)
    assert finding.rule == "export-differs"
    with torch.no_grad():
        trained = model.eval()(**IDS).logits.double()
        other = merged(model, scale).eval()(**IDS).logits.double()
    measured = f"{float((other - trained).norm() / trained.norm()):.2g}"
    assert f"{measured} of their norm away" in finding.message


def test_a_vocabulary_of_another_size_is_reported() -> None:
    model, other = Tiny(), Tiny()
    other.head = nn.Linear(16, 40)
    (finding,) = vtool.compare_models(model, other, IDS)
    assert "the shape [2, 12, 40] in batch 1, the trained model's [2, 12, 32]" in finding.message


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(vtool.Findings, match=r"exported model has weights in torch\.bfloat16"):
        vtool.compare_models(Tiny(), Tiny().bfloat16(), IDS)
    with pytest.raises(vtool.Findings, match="no batch"):
        vtool.compare_models(Tiny(), Tiny())
    with pytest.raises(vtool.Findings, match="a model returned dict, which has no logits"):
        vtool.compare_models(ReturnsNoLogits(), Tiny(), IDS)
