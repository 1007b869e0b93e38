"""Settings that were asked for, against the objects of a trainer that is not ours."""

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
