"""Settings that were asked for, against the objects of a trainer that is not ours."""

import pytest
import torch

from tests.models.tiny import tiny_model
from vtool.verification.compare import compare_objects


def test_a_part_that_is_to_be_frozen_and_is_not_as_a_whole() -> None:
    model = tiny_model("qwen2_vl")
    for name, one in model.named_parameters():
        one.requires_grad_("visual" in name)
    asked = {"model.freeze.language": True, "model.freeze.vision": False}
    assert compare_objects(asked, {"model": model}) == []
    model.model.language_model.norm.weight.requires_grad_()
    (finding,) = compare_objects(asked, {"model": model})
    assert finding.parameter == "model.freeze.language"
    assert "language_model.norm.weight has false" in finding.message


@pytest.mark.parametrize("name", ["RAdam", "NAdam", "Adam"])
def test_of_optimizers_with_a_decoupled_decay_only_adam_is_adamw(name: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, 2))]
    optimizer = getattr(torch.optim, name)(parameters, decoupled_weight_decay=True)
    found = compare_objects({"optim.name": "adamw"}, {"optimizer": optimizer})
    assert [finding.parameter for finding in found] == ([] if name == "Adam" else ["optim.name"])
    assert all(name.lower() in finding.message for finding in found)
