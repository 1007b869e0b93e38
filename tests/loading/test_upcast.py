"""fp8 weights in blocks that a class makes plain numbers of: it keeps one until the other comes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.subject import Subject
from vtool.loading.verdict import judge

PLAIN = {
    f"{name}.weight": torch.randn(130, 8, generator=torch.Generator().manual_seed(7)).bfloat16()
    for name in ("wk", "other")
}


class Upcasts(nn.Module):
    """Takes `wk` plain, and in float8 with `weight_scale_inv`, into a fused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Parameter(torch.zeros(260, 8, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, weights: models.Weights) -> None:
        kept: dict[str, Tensor] = {}
        for name, tensor in weights:
            if name == "other.weight":
                self.fused[130:].copy_(tensor)
            elif tensor.dtype == torch.bfloat16:
                self.fused[:130].copy_(tensor)
            else:
                kept[name] = self.keep(tensor)
            if len(kept) == 2:
                scale = kept["wk.weight_scale_inv"].repeat_interleave(128, 0)[:130]
                self.fused[:130].copy_(kept["wk.weight"].float() * scale)
                kept.clear()

    def keep(self, tensor: Tensor) -> Tensor:
        return tensor  # the line that keeps it


class UpcastsClones(Upcasts):
    def keep(self, tensor: Tensor) -> Tensor:
        return tensor.clone()


class DropsTheScale(Upcasts):
    """Takes float8 as it is: that is no form that it was made for."""

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            if name.endswith(".weight"):
                self.fused[130 * (name == "other.weight") :][:130].copy_(tensor)


@pytest.mark.parametrize(
    ("factory", "errors", "upcast"), [(Upcasts, 1, 1), (UpcastsClones, 0, 1), (DropsTheScale, 0, 0)]
)
def test_a_weight_that_waits_for_its_scale_in_the_loaders_memory_is_found(
    factory: type[Upcasts], errors: int, upcast: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # only files of models are read for the name of the scale
    monkeypatch.setattr("vtool.loading.probe.upcast._MODELS", "tests.loading.")
    subject = Subject(
        factory,
        PLAIN,
        lambda model, weights: model.load_weights(weights),
        "twin",
        code=(str(Path(__file__).parent),),
    )
    rules = ("stale-reference", "quantised-load")
    checks = run_checks(subject, rules, 1, ("owned", "reusable_buffer"))
    result = judge("it", judged_facts(subject, checks, {}), rules)
    assert [one.rule for one in result.findings] == ["quantised-load"] * errors
    assert (
        checks["quantised-load"].measured["formats"].get("upcast", {}).get("tensors", 0) == upcast
    )
    for finding in result.findings:
        assert finding.severity == "error"
        assert "bytes of what came later: fused" in finding.message
        assert set(finding.tensors or ()) >= {"wk.weight"}
        assert finding.origin is not None


def test_a_class_whose_file_knows_no_such_scale_is_not_asked() -> None:
    subject = Subject(
        models.Good, models.checkpoint(), lambda model, weights: model.load_weights(weights), "twin"
    )
    checks = run_checks(subject, ("quantised-load",), 1, ("owned",))
    assert checks["quantised-load"].reason == "it has no quantized twin"
