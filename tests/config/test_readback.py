"""Asked against seen, as plain values."""

from typing import Any

import pytest

from vtool.config.expected import expected_settings
from vtool.config.load import load_run
from vtool.config.readback import (
    Expected,
    Observed,
    compare_readback,
    observed_settings,
    same_value,
    unobserved,
)


@pytest.mark.parametrize(
    ("asked", "there", "one"),
    [
        (True, True, True),
        (True, 1, False),  # pytorch#149750
        (1, True, False),
        (0, False, False),
        (0.3, 0.1 + 0.2, True),
        (1e-8, 1.0001e-8, False),
        ((0.9, 0.95), [0.9, 0.95], True),
        ((0.9, 0.95), (0.9, 0.999), False),
        ((1, 2), (1, 2, 3), False),
        ("sdpa", "sdpa", True),
        ("sdpa", "eager", False),
        (25, 25.0, True),
        (0.1, None, False),
    ],
)
def test_values_are_one_where_a_recipe_would_mean_the_same(
    asked: Any, there: Any, one: bool
) -> None:
    assert same_value(asked, there) is one


def test_a_difference_is_one_finding_with_the_line_that_asked_however_many_objects_have_it() -> (
    None
):
    loaded = load_run("digits")
    seen = [Observed("optim.betas", (0.9, 0.999), f"AdamW, group {number}") for number in range(3)]
    (finding,) = compare_readback(expected_settings(loaded.run), seen, loaded.origins)
    assert (
        finding.message
        == "`optim.betas` asks for [0.9, 0.98], but AdamW, group 0 (and 2 more) has [0.9, 0.999]"
    )
    assert (finding.rule, finding.parameter, finding.expected, finding.seen) == (
        "setting-not-arrived",
        "optim.betas",
        "[0.9, 0.98]",
        "[0.9, 0.999]",
    )
    assert str(finding.origin) == "recipes/digits.yaml:24:10"


def test_what_is_asked_of_a_part_names_the_setting_that_says_it() -> None:
    run = load_run("digits", ["optim.groups.vision.lr=1e-4", "optim.weight_decay=0.1"]).run
    seen = [
        Observed("optim.groups.vision.lr", 2e-3, "one"),
        Observed("optim.groups.language.lr", 1e-3, "two"),
        Observed("optim.groups.language.weight_decay", 0.1, "biases", (False,)),
        Observed("optim.groups.language.weight_decay", 0.1, "matrices", (True,)),
    ]
    found = [
        (finding.parameter, finding.expected)
        for finding in compare_readback(expected_settings(run), seen)
    ]
    assert found == [
        ("optim.groups.vision.lr", "0.0001"),
        ("optim.lr", "0.003"),
        ("optim.weight_decay", "a decay of biases and norms of 0"),
    ]
    assert observed_settings(expected_settings(run), seen) == {
        "optim.groups.vision.lr",
        "optim.lr",
        "optim.weight_decay",
    }


def test_what_nothing_is_asked_of_is_let_be_and_what_nothing_is_seen_of_is_named() -> None:
    asked = {
        "optim.eps": Expected("optim.eps", 1e-8),
        "optim.betas": Expected("optim.betas", (0.9, 0.95)),
    }
    seen = [Observed("optim.eps", 1e-8, "AdamW"), Observed("optim.name", "adamw", "AdamW")]
    assert compare_readback(asked, seen) == []
    assert unobserved(asked, seen) == ["optim.betas"]


def test_defaults_that_mean_something_elsewhere_are_not_asked() -> None:
    overrides = ["data.image={min_pixels: null, max_pixels: null}", "device.threads=null"]
    asked = expected_settings(load_run("digits", overrides).run)
    assert asked.keys().isdisjoint(
        {
            "launch.nproc",
            "device.kind",
            "device.threads",
            "data.image.min_pixels",
            "train.epochs",
            "lora.rank",
        }
    )


def test_of_another_device_the_finding_has_a_rule_of_its_own() -> None:
    run = load_run("digits", ["device.kind=cuda"]).run
    assert [
        f.rule
        for f in compare_readback(
            expected_settings(run), [Observed("device.kind", "cpu", "the model's weights")]
        )
    ] == ["device-not-used"]
    assert (
        compare_readback(
            expected_settings(run), [Observed("device.kind", "cuda", "the model's weights")]
        )
        == []
    )
