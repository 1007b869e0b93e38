"""Gradients of single layers that are changed on their way to the optimizer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch.made import Change, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


def multiply(factor: Callable[[int, int], float]) -> Change:
    """Multiply what arrives of each layer by `factor(layer, step)`."""

    def change(fact: Fact) -> None:
        for layer, tensor in enumerate((fact.get("layers") or {}).values()):
            tensor["arrived"] = [x * factor(layer, fact["step"]) for x in tensor["left"]]

    return change


@pytest.mark.parametrize(
    ("factor", "found"),
    [
        (lambda layer, step: 0.5 if layer == 0 else 1.0, True),
        (lambda layer, step: (0.5 if layer == 0 else 1.0) / (step + 3.3), True),  # clipped too
        (lambda layer, step: -1.0 if layer == 0 else 1.0, True),
        (lambda layer, step: 1 / (step + 3.3), False),
        (lambda layer, step: 1 / (step + layer + 1), False),  # each clipped by itself
        (lambda layer, step: 0.0 if layer == 0 else 1.0, False),  # frozen so
    ],
)
def test_a_factor_of_some_layers_alone(
    tmp_path: Path, factor: Callable[[int, int], float], found: bool
) -> None:
    result = conclude(tmp_path, changed(healthy(), multiply(factor)))
    assert rules(result) == ({"layers-scaled-apart": "warning"} if found else {})


def test_equal_batches_cannot_distinguish_a_factor_from_clipping(tmp_path: Path) -> None:
    def same(fact: Fact) -> None:
        for layer, tensor in enumerate((fact.get("layers") or {}).values()):
            tensor["left"] = [1.0, 2.0, 3.0]
            tensor["arrived"] = [x / (layer + 1) for x in tensor["left"]]

    assert conclude(tmp_path, changed(healthy(), same)).findings == ()


def test_a_hook_on_a_gradient_is_no_pass(tmp_path: Path) -> None:
    def hook(fact: Fact) -> None:
        if fact["kind"] == "arrived":
            fact["hooked"] = {"names": ["embed.weight"], "count": 1}

    result = conclude(tmp_path, changed(healthy(), hook))
    assert result.findings == ()
    for name in ("layers-scaled-apart", "gradient-scaled"):
        assert result.checks[name] == "not-run"
        assert "(embed.weight)" in result.details[name]["reason"]


def test_layers_that_were_not_seen_are_not_run(tmp_path: Path) -> None:
    def unseen(fact: Fact) -> None:
        if "layers" in fact:
            fact["layers"] = None

    result = conclude(tmp_path, changed(healthy(), unseen))
    assert result.checks["layers-scaled-apart"] == "not-run"
