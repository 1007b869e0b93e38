"""A class made for quantized weights, and what a framework makes of weights that are loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.errors import NotRun
from vtool.loading.probe.formats import DEFAULT, FORMATS_BY_NAME, WeightFormat
from vtool.loading.probe.processed import snapshot_everything
from vtool.loading.probe.quantized import quantize_checkpoint
from vtool.loading.probe.state import named_parameters
from vtool.loading.probe.subject import QuantizedTwin, Subject
from vtool.loading.probe.vllm_paths import direct_load, keeps_itself
from vtool.loading.verdict import judge

PLAIN = {
    f"{name}.weight": torch.randn(4, 8, generator=torch.Generator().manual_seed(7)).bfloat16()
    for name in ("a", "b", "norm")
}
PLAIN["norm.weight"] = PLAIN["norm.weight"][0]


class Layer(nn.Module):
    """A parameter of two weights, in fp8 with scales where asked for."""

    def __init__(self, quantized: bool) -> None:
        super().__init__()
        dtype = torch.float8_e4m3fn if quantized else torch.bfloat16
        self.ab = nn.Module()
        self.ab.weight = nn.Parameter(torch.zeros(8, 8, dtype=dtype), requires_grad=False)
        if quantized:
            self.ab.weight_scale = nn.Parameter(torch.zeros(8, 1), requires_grad=False)
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16), requires_grad=False)

    def put(self, name: str, tensor: Tensor) -> None:
        place, _, kind = name.partition(".")
        if place == "norm":
            self.norm.weight.copy_(tensor)
        else:
            row = 4 * (place == "b")
            getattr(self.ab, kind)[row : row + 4].copy_(tensor)

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            self.put(name, tensor)

    def process(self) -> None:
        """Do nothing."""


class DropsScales(Layer):
    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(
            (name, tensor) for name, tensor in weights if not name.endswith("_scale")
        )


class DropsB(Layer):
    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(
            (name, tensor) for name, tensor in weights if not name.startswith("b.")
        )


class KeepsScales(Layer):
    def load_weights(self, weights: models.Weights) -> None:
        kept = []
        for name, tensor in weights:
            if name.endswith("_scale"):
                kept.append((name, tensor))
            else:
                self.put(name, tensor)
        for name, tensor in kept:
            self.put(name, tensor)


class KeepsForLater(Layer):
    """Keeps a tensor for processing: parameters are right after the load, the packed norm wrong."""

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            self.put(name, tensor)
            if name == "norm.weight":
                self.later = [tensor]  # what is in lists is not compared before

    def process(self) -> None:
        self.packed = self.later[0].float() * 2
        del self.later


class KeepsAClone(KeepsForLater):
    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights((name, tensor.clone()) for name, tensor in weights)


class Scratch(Layer):
    """Has a buffer that nothing is loaded into, of other values each time when it is quantized."""

    made = 0

    def __init__(self, quantized: bool) -> None:
        super().__init__(quantized)
        Scratch.made += quantized
        self.register_buffer("scratch", torch.full((4,), float(self.made)))


def subject(
    found: type[Layer], quantized: bool = False, checkpoint: Mapping[str, Tensor] = PLAIN
) -> Subject:
    def twin(form: WeightFormat, into: Mapping[str, Sequence[str]]) -> QuantizedTwin:
        given = quantize_checkpoint(PLAIN, form, into, named_parameters(found(True)))
        return QuantizedTwin(subject(found, True, given.tensors), given)

    load: Callable[[Any, Any], object] = lambda model, weights: model.load_weights(weights)  # noqa: E731
    return Subject(
        lambda: found(quantized),
        checkpoint,
        load,
        "given",
        process=lambda model: model.process(),
        quantized=None if quantized else twin,
    )


def judged(found: type[Layer]) -> dict[str, tuple[str, list[str]]]:
    rules = (
        "stale-reference",
        "unwritten-parameter",
        "partly-written-parameter",
        "unconsumed-tensor",
        "stale-after-processing",
        "quantised-load",
    )
    checks = run_checks(subject(found), rules, 1, ("owned", "reusable_buffer"))
    result = judge("it", judged_facts(subject(found), checks, {}), rules)
    return {
        rule: (
            state,
            [f"{one.severity}: {one.message}" for one in result.findings if one.rule == rule],
        )
        for rule, state in result.checks.items()
    }


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (subject(KeepsForLater), "unprotected"),
        (subject(KeepsAClone), "protected"),
        (subject(Layer), "protected"),
    ],
)
def test_a_path_that_hands_over_what_does_not_stay_is_known_by_what_is_made_of_it(
    given: Subject, path: str
) -> None:
    assert direct_load(given) == path


def test_a_path_is_known_where_nothing_can_be_made_of_the_weights_on_a_cpu() -> None:
    def fails(model: Any) -> None:
        raise RuntimeError("no such kernel")

    kept = replace(
        subject(KeepsForLater), make=models.KeepsAll, checkpoint=models.checkpoint(), process=fails
    )
    assert direct_load(kept) == "unprotected"


def test_a_function_that_keeps_tensors_of_any_class_is_distinguished_from_the_classes() -> None:
    def at_once(model: Any, weights: models.Weights) -> None:
        model.load_weights(weights)

    def later(model: Any, weights: models.Weights) -> None:
        model.load_weights(list(weights))

    assert (keeps_itself(at_once), keeps_itself(later)) == (False, True)


@pytest.mark.parametrize("found", [Layer, KeepsAClone, Scratch])
def test_a_class_that_copies_passes(found: type[Layer]) -> None:
    assert {state for state, _ in judged(found).values()} == {"passed"}


def test_scales_that_are_dropped_are_found_though_the_plain_weights_land() -> None:
    checks = judged(DropsScales)
    assert (
        checks["unwritten-parameter"][0]
        == checks["unconsumed-tensor"][0]
        == checks["stale-reference"][0]
        == "passed"
    )
    state, messages = checks["quantised-load"]
    assert state == "failed"
    assert {message.partition(":")[0] for message in messages} == {"error"}
    assert any("ab.weight_scale" in message and "never written" in message for message in messages)
    assert any(
        "a.weight_scale" in message and "b.weight_scale" in message and "never read" in message
        for message in messages
    )


def test_the_scale_of_a_part_that_is_dropped_in_any_case_is_not_reported_again() -> None:
    checks = judged(DropsB)
    assert ["ab.weight" in message for message in checks["partly-written-parameter"][1]] == [True]
    assert checks["quantised-load"] == ("passed", [])


def test_scales_that_are_kept_are_found() -> None:
    checks = judged(KeepsScales)
    assert checks["stale-reference"][0] == "passed"
    state, (message,) = checks["quantised-load"]
    assert state == "failed"
    assert "bytes of what came later: ab.weight_scale" in message


def test_what_is_kept_until_weights_are_processed_is_found_in_what_is_made_of_it() -> None:
    checks = judged(KeepsForLater)
    assert checks["stale-reference"][0] == "passed"
    state, (message,) = checks["stale-after-processing"]
    assert state == "failed"
    assert "packed" in message


def test_a_class_without_linear_layers_has_no_quantized_twin() -> None:
    with pytest.raises(NotRun, match="no linear layer"):
        quantize_checkpoint(PLAIN, FORMATS_BY_NAME[DEFAULT], {}, named_parameters(Layer(False)))


def test_tensors_of_more_dimensions_have_no_form() -> None:
    experts = {"ab.weight": ["experts"]}
    with pytest.raises(NotRun, match=r"no form for `experts`, \[2, 4, 8\]"):
        quantize_checkpoint(
            {"experts": torch.zeros(2, 4, 8)},
            FORMATS_BY_NAME[DEFAULT],
            experts,
            named_parameters(Layer(True)),
        )


def test_attributes_lists_and_dicts_of_modules_are_looked_through() -> None:
    model = Layer(False)
    model.norm.kept = {"x": [torch.ones(2)], "y": (torch.zeros(1), 3)}
    assert {"norm.kept['x'][0]", "norm.kept['y'][0]", "ab.weight", "norm.weight"} == set(
        snapshot_everything(model)
    )
