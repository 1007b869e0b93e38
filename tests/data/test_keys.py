"""Keys of rows and messages by their words: masks of any spelling, files, tools and calls."""

from typing import Any

import pytest

from vtool.data.keys import carried, is_known, masks_row, may_mask

IMAGE = "cat.png"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainOnInputs", True),
        ("train_only_last", True),
        ("final_turn_only", True),
        ("masked", True),
        ("is_train", False),
        ("train", "no"),
        ("isTrainable", False),
        ("trainable_turns", [1]),
        ("loss_turns", [1, 3]),
        ("ignore_turns", [0]),
        ("roles_to_train", ["user", "assistant"]),
        ("learn_from_last_turn", True),
        ("is_last_turn_trained", True),
        ("assistant_only_loss", False),
        ("completion_only_loss", False),
    ],
)
def test_a_row_that_masks_in_any_spelling_is_refused(key: str, value: Any) -> None:
    assert masks_row(key, value) is True


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("used_in_training", False),
        ("is_train", True),
        ("roles_to_train", ["assistant"]),
        ("masked", False),
        ("assistant_only_loss", True),
        ("training_source", "web"),
        ("train_losses", [0.25, 0.5]),
        ("mask", "masks/1.png"),
        ("loss", 1.75),
        ("last_edited", True),
        ("only_english", True),
    ],
)
def test_a_row_whose_key_says_what_is_so_anyway_is_not(key: str, value: Any) -> None:
    assert not masks_row(key, value)


@pytest.mark.parametrize(
    ("key", "value", "may"),
    [
        ("is_target", False, True),
        ("target", True, False),
        ("requires_grad", False, True),
        ("ignore", True, True),
        ("skip", False, False),
        ("is_context", True, True),
        ("target", "a plan", False),
        ("is_masked", False, True),
        ("context", "a page", False),
    ],
)
def test_an_answer_that_may_be_masked_by_its_value_is_seen(key: str, value: Any, may: bool) -> None:
    assert may_mask(key, value) is may


@pytest.mark.parametrize(
    ("key", "value", "known"),
    [
        ("image_source", IMAGE, False),
        ("image_source", "coco", True),
        ("image_id", 139, True),
        ("image_id", "000139.jpg", False),
        ("has_image", True, True),
        ("has_image", "a", False),
        ("n_shots", 5, True),
        ("n_shots", "Q: a A: b", False),
        ("source", "coco/1.jpg", True),
        ("question_id", "q1.png", True),
    ],
)
def test_a_key_is_harmless_by_its_name_and_its_value(key: str, value: Any, known: bool) -> None:
    assert is_known(key, value) is known


@pytest.mark.parametrize(
    ("key", "write"),
    [
        ("toolCalls", ('"tool_calls"', True)),
        ("Tools", ('the row\'s "tools"', True)),
        ("functionCall", ('"tool_calls"', True)),
        ("available_tools", ('the row\'s "tools"', False)),
        ("function_definitions", ('the row\'s "tools"', False)),
        ("tool_calls", None),
        ("tool_call_id", None),
        ("name", None),
    ],
)
def test_what_tools_and_calls_are_in_elsewhere_has_what_to_write(key: str, write: Any) -> None:
    assert carried(key) == write
