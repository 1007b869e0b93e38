"""Weights that are in each other's place, where nothing is missing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from tests.loading.test_rules import errors
from vtool.loading import check_load_weights
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.exchanged import exchanged
from vtool.loading.probe.file_host import subject_of_factory
from vtool.loading.verdict import judge


class ExchangesLayers(models.Layers):
    """A class that exchanges layers, in the fused weights alone."""

    def renamed(self, name: str) -> str:
        return name.translate(str.maketrans("01", "10")) if "fused" in name else name


class TakesTheLayerBefore(models.Layers):
    """A shift round the two norms of two layers: each has another's weight."""

    def renamed(self, name: str) -> str:
        if "norm" not in name:
            return name
        _, layer, norm, kind = name.split(".")
        at = (2 * int(layer) + int(norm[-1]) - 1 + 1) % 4
        return f"layers.{at // 2}.norm{at % 2 + 1}.{kind}"


class TransposesOne(models.Good):
    """A class that transposes one square weight, which is fused with others."""

    def put(self, name: str, tensor: Tensor) -> None:
        super().put(name, tensor.t() if name.startswith("k.") else tensor)


class KeepsThemTheOtherWayRound(models.Good):
    """A class that stores weights as transformers' Conv1D does; one matrix is not square."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 20, bias=False)

    def put(self, name: str, tensor: Tensor) -> None:
        super().put(name, tensor.t() if tensor.dim() == 2 else tensor)


def test_a_square_weight_that_is_transposed_is_reported() -> None:
    result = check_load_weights(TransposesOne, models.checkpoint())
    (finding,) = (one for one in result.findings if one.rule == "wrong-place")
    assert finding.severity == "warning"
    assert "1 square of the checkpoint's weights is transposed" in finding.message
    assert (finding.parameter, finding.tensors) == ("qkv.weight", ("k.weight",))


def test_files_that_keep_all_matrices_the_other_way_round_are_clean() -> None:
    checkpoint = models.checkpoint() | {"up.weight": torch.randn(8, 20)}
    result = check_load_weights(KeepsThemTheOtherWayRound, checkpoint)
    assert result.verdict == "clean"
    assert result.findings == ()


def test_a_weight_that_is_its_own_transpose_says_nothing() -> None:
    checkpoint = models.checkpoint() | {"k.weight": torch.eye(8)}
    assert check_load_weights(TransposesOne, checkpoint).findings == ()


def test_a_class_whose_names_are_the_files_is_clean() -> None:
    result = check_load_weights(models.Layers, models.Layers.checkpoint())
    assert result.verdict == "clean"


def test_exchanged_norms_are_one_finding_that_says_what_is_where() -> None:
    (finding,) = errors(models.ExchangesNorms)
    assert finding.rule == "wrong-place"
    assert "8 parameters have each other's weights" in finding.message
    assert finding.parameter == "layers.0.norm1.weight"
    assert (finding.expected, finding.seen) == ("layers.0.norm1.weight", "layers.0.norm2.weight")


def test_fused_weights_of_exchanged_layers_are_found() -> None:
    (finding,) = errors(ExchangesLayers)
    assert "2 parameters" in finding.message
    assert (finding.expected, finding.seen) == (
        "fused.0.gate, fused.0.up",
        "fused.1.gate, fused.1.up",
    )


def test_a_ring_of_several_is_found() -> None:
    (finding,) = errors(TakesTheLayerBefore)
    assert "8 parameters" in finding.message


@pytest.mark.parametrize(("own_twin", "severity"), [(True, "error"), (False, "warning")])
def test_of_a_twin_it_is_an_error_where_the_names_are_its_own(
    own_twin: bool, severity: str
) -> None:
    made = subject_of_factory(models.ExchangesNorms, models.Layers.checkpoint())
    twin = replace(made, origin="twin", about=replace(made.about, own_twin=own_twin))
    asked = ["wrong-place"]
    result = judge("it", judged_facts(twin, run_checks(twin, asked, 1, ["owned"]), {}), asked)
    assert [(one.rule, one.severity) for one in result.findings] == [("wrong-place", severity)]


def found(came_from: dict[str, list[str]], **shapes: tuple[int, ...]) -> list[str | None]:
    return [one.parameter for one in exchanged(came_from, dict.fromkeys(came_from, (4,)) | shapes)]


def test_layers_that_are_counted_from_another_number_are_in_their_place() -> None:
    assert not found({f"layers.{at + 1}.w": [f"layers.{at}.w"] for at in range(4)})
    assert not found({"mtp.0.w": ["layers.61.w"], "mtp.1.w": ["layers.62.w"]})


def test_other_names_for_the_same_are_in_their_place() -> None:
    assert not found({"attn.norm_in.weight": ["input_layernorm.weight"], "b": ["a"]})
    assert not found({"lm_head.weight": ["embed.weight"], "embed.weight": ["embed.weight"]})
    both = ["embed.weight", "lm_head.weight"]
    assert not found({"lm_head.weight": both, "embed.weight": both})


def test_prefixes_that_a_class_adds_or_leaves_out_are_no_names() -> None:
    right = {
        "model.text.layers.0.a.w": ["layers.0.a.w"],
        "model.text.layers.0.b.w": ["layers.0.b.w"],
    }
    assert not found(right)
    one, other = right
    assert found({one: right[other], other: right[one]}) == [one, other]


def test_what_is_of_another_shape_cannot_be_exchanged() -> None:
    crossed = {"w2": ["w3"], "w3": ["w2"]}
    assert found(crossed) == ["w2", "w3"]
    assert not found(crossed, w2=(5,))


def test_experts_of_one_fused_weight_are_those_of_its_layer() -> None:
    right = {
        f"layers.{layer}.experts.w13": [f"layers.{layer}.experts.{at}.w1" for at in range(3)]
        for layer in range(2)
    }
    assert not found(right)
    one, other = right
    assert found({one: right[other], other: right[one]}) == [one, other]


def test_parameters_in_their_place_are_compared_with_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model may have ten thousand experts of one shape."""
    monkeypatch.setattr("vtool.loading.probe.exchanged._likeness", None)
    assert not found({f"model.experts.{at}.w": [f"experts.{at}.w"] for at in range(99)})
