"""A weight that is never loaded is one finding, which says what the class computes with instead."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.loading import models
from tests.loading.test_rules import errors, errors_of
from vtool.loading import check_load_weights
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.file_host import subject_of_factory
from vtool.loading.verdict import judge


class Empty(models.Good):
    """Leaves a bias out, over memory that nobody has filled."""

    def __init__(self) -> None:
        super().__init__()
        self.o.bias = nn.Parameter(self.first())

    def first(self) -> torch.Tensor:
        return torch.empty(8)

    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(pair for pair in weights if pair[0] != "o.bias")


class Zeros(Empty):
    def first(self) -> torch.Tensor:
        return torch.zeros(8)


class Ones(Empty):
    def first(self) -> torch.Tensor:
        return torch.ones(8, dtype=torch.bfloat16)


class Drawn(Empty):
    def first(self) -> torch.Tensor:
        return torch.randn(8)


KEPT = {
    Empty: "whatever is in the memory",
    Zeros: "zeros",
    Ones: "1 everywhere",
    Drawn: "what its class has initialized it with",
}


@pytest.mark.parametrize("factory", KEPT)
def test_an_unread_tensor_and_its_unwritten_parameter_are_one_error(factory: type) -> None:
    found = errors(factory)
    assert [(one.rule, one.parameter, one.tensors) for one in found] == [
        ("never-loaded", "o.bias", ("o.bias",))
    ]
    assert f"kept is {KEPT[factory]}" in found[0].message


@pytest.mark.parametrize("factory", KEPT)
def test_a_parameter_without_a_tensor_says_what_it_keeps(factory: type) -> None:
    checkpoint = models.checkpoint()
    del checkpoint["o.bias"]
    (finding,) = errors_of(factory, checkpoint)
    assert finding.rule == "unwritten-parameter"
    assert f"kept is {KEPT[factory]}" in finding.message


def test_the_state_of_torch_is_as_it_was() -> None:
    errors(Empty)
    assert not torch.are_deterministic_algorithms_enabled()


def test_where_it_is_not_asked_the_two_rules_say_it() -> None:
    asked = ("unwritten-parameter", "unconsumed-tensor")
    assert {one.rule for one in errors(Empty, checks=asked)} == set(asked)


@pytest.mark.parametrize("own_twin", [True, False])
def test_of_a_twin_it_is_an_error_where_the_names_are_its_own(own_twin: bool) -> None:
    made = subject_of_factory(Empty, models.checkpoint())
    twin = replace(made, origin="twin", about=replace(made.about, own_twin=own_twin))
    asked = ["unwritten-parameter", "unconsumed-tensor", "never-loaded"]
    result = judge("it", judged_facts(twin, run_checks(twin, asked, 1, ["owned"]), {}), asked)
    reported = {(one.rule, one.severity) for one in result.findings}
    notes = {("unwritten-parameter", "note"), ("unconsumed-tensor", "note")}
    assert reported == ({("never-loaded", "error")} if own_twin else notes)
    assert (result.checks["never-loaded"] == "failed") == own_twin


def test_what_may_be_left_out_is_allowed_by_its_name() -> None:
    result = check_load_weights(Empty, models.checkpoint(), allow=["o.bias"])
    assert result.verdict == "clean"
