"""Each format of quantized weights: a scale or a zero point that is another weight's, or lost."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.config.schema.load_check import Format as FormatName
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.facts import CheckFacts
from vtool.loading.probe.formats import FORMATS_BY_NAME, WEIGHT_FORMATS, LayerTensor, WeightFormat
from vtool.loading.probe.quantized import quantize_checkpoint
from vtool.loading.probe.state import named_parameters
from vtool.loading.probe.subject import QuantizedTwin, Subject
from vtool.loading.verdict import judge

INPUTS, OUTPUTS, EXPERTS = 64, 32, 2
PLAIN = {
    f"{layer}.weight": torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    for layer, shape in {
        **dict.fromkeys(("attn.q", "attn.k", "attn.v"), (OUTPUTS, INPUTS)),
        **dict.fromkeys(
            (f"experts.{expert}.{name}" for expert in range(EXPERTS) for name in ("w1", "w3")),
            (OUTPUTS, INPUTS),
        ),
        **dict.fromkeys((f"experts.{expert}.w2" for expert in range(EXPERTS)), (INPUTS, OUTPUTS)),
    }.items()
}
FUSED = {"q": ("qkv", 0), "k": ("qkv", 1), "v": ("qkv", 2), "w1": ("w13", 0), "w3": ("w13", 1)}
WITH_TENSORS = [form.name for form in WEIGHT_FORMATS if form.parts]
SCALES = ("weight_scale", "weight_scale_inv", "scales")
ZEROS = ("weight_zero_point", "qzeros")


class Net(nn.Module):
    """A fused qkv, and experts of which two matrices are fused, in a format or in none."""

    def __init__(self, form: WeightFormat | None) -> None:
        super().__init__()
        self.form = form
        self.layers = nn.Module()
        for fused, outputs, inputs, count in (
            ("qkv", 3 * OUTPUTS, INPUTS, 3),
            ("w13", 2 * OUTPUTS, INPUTS, 2),
            ("w2", INPUTS, OUTPUTS, 1),
        ):
            for part in form.parts if form else [LayerTensor("weight", torch.bfloat16, _shape)]:
                shape = part.shape(outputs, inputs)
                if part.channels is None and not part.values:
                    shape = (count,)
                if fused != "qkv":
                    shape = (EXPERTS, *shape)
                held = nn.Parameter(torch.zeros(shape, dtype=part.dtype), requires_grad=False)
                self.layers.register_parameter(f"{fused}_{self.named(part)}", held)

    def named(self, part: LayerTensor) -> str:
        return part.name

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            path, _, kind = name.rpartition(".")
            self.put(path.split("."), kind, tensor)

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        fused, number = FUSED.get(path[-1], ("w2", 0))
        expert = int(path[1]) if path[0] == "experts" else None
        self.copy(fused, number, expert, kind, tensor)

    def copy(self, fused: str, number: int, expert: int | None, kind: str, tensor: Tensor) -> None:
        held = getattr(self.layers, f"{fused}_{kind}")
        if expert is not None:
            held = held[expert]
        parts = {part.name: part for part in self.form.parts} if self.form else {}
        part = parts.get(kind)
        if part is not None and part.values:
            held.copy_(tensor)
        elif part is not None and part.channels is None:
            held[number].copy_(tensor.reshape(()))
        else:
            axis = part.axis if part else 0
            size = tensor.shape[axis]
            held.narrow(axis, number * size, size).copy_(tensor)


def _shape(outputs: int, inputs: int) -> tuple[int, int]:
    return outputs, inputs


class SwapsTwoScales(Net):
    """Gives q the scale of k, and k that of q."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if kind in SCALES:
            other = {"q": "k", "k": "q"}
            path = (*path[:-1], other.get(path[-1], path[-1]))
        super().put(path, kind, tensor)


class SwapsScalesOfExperts(Net):
    """Gives the second matrix's scale to the first of one expert, and the other way round."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if kind in SCALES and path[:2] == ["experts", "1"]:
            other = {"w1": "w3", "w3": "w1"}
            path = (*path[:-1], other.get(path[-1], path[-1]))
        super().put(path, kind, tensor)


class DropsOneScale(Net):
    """Loads no scale of v."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if kind not in SCALES or path[-1] != "v":
            super().put(path, kind, tensor)


class ZerosIntoWrongExpert(Net):
    def copy(self, fused: str, number: int, expert: int | None, kind: str, tensor: Tensor) -> None:
        if expert is not None and kind in ZEROS:
            expert = 1 - expert
        super().copy(fused, number, expert, kind, tensor)


class ReadsAnotherName(Net):
    """Has `weight_scale`, where the checkpoint has `weight_scale_inv`, and skips what it lacks."""

    def named(self, part: LayerTensor) -> str:
        return part.name.removesuffix("_inv")

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if kind != "weight_scale_inv":
            super().put(path, kind, tensor)


class DropsAQuantizedWeight(Net):
    """Takes weights under the name of plain ones alone, and skips the others, of k."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if kind == "weight" or path[-1] != "k":
            super().put(path, kind, tensor)


class TurnsRowsOfWeights(Net):
    """Changes the order of the rows of q, and leaves its scales as they come."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if self.form and path[-1] == "q" and kind == self.form.parts[0].name:
            tensor = tensor.flip(self.form.parts[0].axis)
        super().put(path, kind, tensor)


class TurnsAllRows(Net):
    """Changes the order of rows, and of what belongs to them, as some rotary embeddings need."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        parts = {part.name: part for part in self.form.parts} if self.form else {}
        if path[-1] == "q" and (part := parts.get(kind)) and part.channels:
            tensor = tensor.flip(part.axis)
        super().put(path, kind, tensor)


class ChangesScales(Net):
    """Loads the reciprocals of scales, which cannot be followed by their values."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        super().put(path, kind, 1 / tensor if kind in SCALES else tensor)


class LoadsQAlone(Net):
    """Takes no k and no v, whatever the format."""

    def put(self, path: Sequence[str], kind: str, tensor: Tensor) -> None:
        if path[-1] not in ("k", "v"):
            super().put(path, kind, tensor)


class StaysPlain(Net):
    """Is of bfloat16 whatever the config says."""

    def __init__(self, form: WeightFormat | None) -> None:
        super().__init__(None)


def subject(made: type[Net]) -> Subject:
    def twin(form: WeightFormat, into: Mapping[str, Sequence[str]]) -> QuantizedTwin:
        given = quantize_checkpoint(PLAIN, form, into, named_parameters(made(form)))
        return QuantizedTwin(of(form, given.tensors), given)

    def of(form: WeightFormat | None, checkpoint: Mapping[str, Tensor], **more: Any) -> Subject:
        return Subject(
            lambda: made(form),
            checkpoint,
            lambda model, weights: model.load_weights(weights),
            "twin",
            **more,
        )

    return of(None, PLAIN, quantized=twin)


def found(made: type[Net], *formats: str) -> tuple[CheckFacts, str, list[str]]:
    """Return the facts, the state and the findings of a class in formats."""
    rules = ("quantised-load",)
    checks = run_checks(subject(made), rules, 1, ("owned",), formats=formats)
    result = judge("it", judged_facts(subject(made), checks, {}), rules)
    messages = [f"{one.severity}: {one.message}" for one in result.findings]
    return checks["quantised-load"], result.checks["quantised-load"], messages


def test_the_setting_has_each_format_of_the_registry() -> None:
    assert [form.name for form in WEIGHT_FORMATS] == list(get_args(FormatName))


@pytest.mark.parametrize(
    ("made", "name"),
    [
        *((Net, name) for name in WITH_TENSORS),
        # of eight rows in one number, none can be turned round alone
        *((TurnsAllRows, name) for name in WITH_TENSORS if name != "awq"),
    ],
)
def test_a_class_that_keeps_each_scale_with_its_weight_passes(made: type[Net], name: str) -> None:
    facts, state, messages = found(made, name)
    assert (state, messages) == ("passed", [])
    assert facts.measured["formats"][name]["layers"] == len(PLAIN)
    assert facts.measured["formats"][name]["followed"] == 3


@pytest.mark.parametrize("name", WITH_TENSORS)
@pytest.mark.parametrize(
    ("made", "there", "instead"),
    [
        (SwapsTwoScales, "attn.k", "attn.q"),
        (SwapsScalesOfExperts, "experts.1.w3", "experts.1.w1"),
    ],
)
def test_scales_of_two_layers_that_are_exchanged_are_an_error(
    made: type[Net], there: str, instead: str, name: str
) -> None:
    facts, state, messages = found(made, name)
    (scale,) = (part.name for part in FORMATS_BY_NAME[name].parts if part.name in SCALES)
    assert state == "failed"
    places = {(item.tensors, item.kind) for item in facts.items if item.kind == "place"}
    both = (f"{there}.{scale}", f"{instead}.{scale}")
    assert places == {(both, "place"), (both[::-1], "place")}
    assert [message.partition(":")[0] for message in messages] == ["error"]
    assert f"as {name}" in messages[0]


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_the_scale_of_one_layer_that_is_dropped_is_an_error(name: str) -> None:
    facts, state, messages = found(DropsOneScale, name)
    (scale,) = (part.name for part in FORMATS_BY_NAME[name].parts if part.name in SCALES)
    assert state == "failed"
    (lost,) = (item for item in facts.items if item.kind == "lost")
    assert (lost.parameter, lost.tensors) == (f"layers.qkv_{scale}", (f"attn.v.{scale}",))
    assert any(message.startswith("error") and "attn.v" in message for message in messages)


@pytest.mark.parametrize("name", ["int4-asymmetric", "gptq", "awq"])
def test_zero_points_of_another_expert_are_an_error(name: str) -> None:
    facts, state, messages = found(ZerosIntoWrongExpert, name)
    (zero,) = (part.name for part in FORMATS_BY_NAME[name].parts if part.name in ZEROS)
    assert state == "failed"
    assert {item.parameter for item in facts.items} == {
        f"layers.w13_{zero}",
        f"layers.w2_{zero}",
    }
    assert (f"experts.0.w1.{zero}", f"experts.1.w1.{zero}") in {
        item.tensors for item in facts.items
    }
    assert len(messages) == 1


def test_a_class_that_waits_for_a_scale_of_another_name_is_an_error() -> None:
    facts, state, messages = found(ReadsAnotherName, "fp8-block")
    assert state == "failed"
    assert {item.kind for item in facts.items} == {"lost"}
    assert "weight_scale_inv" in messages[0]


@pytest.mark.parametrize("name", [name for name in WITH_TENSORS if "8" not in name])
def test_a_quantized_weight_that_is_not_loaded_as_the_plain_one_is_is_an_error(name: str) -> None:
    facts, state, _ = found(DropsAQuantizedWeight, name)
    weight = FORMATS_BY_NAME[name].parts[0].name
    assert state == "failed"
    assert [item.tensors for item in facts.items if item.kind == "lost"] == [(f"attn.k.{weight}",)]


@pytest.mark.parametrize("name", ["fp8-channel", "int8-channel", "int4", "gptq"])
def test_rows_in_another_order_than_their_scales_are_an_error(name: str) -> None:
    facts, state, _ = found(TurnsRowsOfWeights, name)
    assert state == "failed"
    assert {item.tensors[0].rpartition(".")[0] for item in facts.items} == {"attn.q"}


def test_scales_that_a_class_computes_with_are_not_followed_and_not_passed() -> None:
    facts, state, messages = found(ChangesScales, "int8-channel")
    assert (state, messages) == ("not-run", [])
    assert "3 of 3 weights could not be followed" in str(facts.reason)


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_scales_of_weights_that_are_not_loaded_in_any_case_are_not_asked_for(name: str) -> None:
    facts, state, _ = found(LoadsQAlone, name)
    assert state == "passed"
    assert [item.parameter for item in facts.items if item.kind in ("lost", "place")] == []


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_a_class_that_stays_plain_is_not_run(name: str) -> None:
    facts, state, _ = found(StaysPlain, name)
    assert state == "not-run"
    assert facts.reason == "no linear layer of it takes quantized weights"


def test_a_format_that_could_not_be_asked_keeps_others_from_passing() -> None:
    facts, state, _ = found(Net, "int8-channel", "bitsandbytes")
    assert state == "not-run"
    assert str(facts.reason).startswith("bitsandbytes: ")
    assert str(facts.reason).endswith("; nothing was found in int8-channel")
    assert facts.measured["formats"]["int8-channel"]["followed"] == 3


def test_an_error_in_one_format_counts_though_another_could_not_be_asked() -> None:
    facts, state, _ = found(SwapsTwoScales, "int8-channel", "bitsandbytes")
    assert state == "failed"
    assert facts.measured["formats"]["bitsandbytes"]["not_run"]


def test_without_a_setting_a_class_is_asked_in_one_format() -> None:
    facts, state, _ = found(Net)
    assert state == "passed"
    assert set(facts.measured["formats"]) == {"fp8-channel"}


def test_sizes_that_a_format_cannot_have_are_not_run() -> None:
    form = FORMATS_BY_NAME["int4"]
    into = {"layers.qkv_weight": ["odd.weight"]}
    with pytest.raises(Exception, match=r"int4 has no form for `odd.weight`, \[30, 64\]"):
        quantize_checkpoint(
            {"odd.weight": torch.zeros(30, 64)}, form, into, named_parameters(Net(form))
        )
