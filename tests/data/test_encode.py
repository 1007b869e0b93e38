"""Encoding and batching, on rows with an image, two, or none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.rows import chat, decompression_bomb, mixed_rows, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.data.chat import IGNORED
from vtool.data.collate import collate, collate_prompts
from vtool.data.encode import encode_prompt
from vtool.data.loader import EncodedRows, MicroBatch, load_steps, micro_batches
from vtool.data.plan import Plan
from vtool.diagnostics import Findings
from vtool.verification.pieces import render_example


def rows_of(folder: Path, rows: list[Any], *overrides: str) -> EncodedRows:
    return encoded(request("rows", messages(write_rows(folder / "rows.jsonl", rows)), *overrides))[
        0
    ]


def rule_of(rows: EncodedRows, index: int = 0) -> str:
    with pytest.raises(Findings) as caught:
        rows.sample(index)
    return caught.value.diagnostics[0].rule


def test_image_tokens_are_as_many_as_features(tmp_path: Path) -> None:
    picture(tmp_path / "wide.png", 112, 56)
    rows = rows_of(
        tmp_path,
        [chat("<image>?", "b") | {"images": ["wide.png"]}],
        "data.image={min_pixels:784,max_pixels:100000}",
    )
    sample = rows.sample(0)
    assert "image_grid_thw" in sample.visuals.inputs
    assert sample.visuals.inputs["image_grid_thw"].tolist() == [
        [1, 4, 8]
    ]  # 56 × 112 pixels in patches of 14
    assert "pixel_values" in sample.visuals.inputs
    assert sample.visuals.inputs["pixel_values"].shape == (32, 3 * 2 * 14 * 14)
    # four patches are merged into one token
    assert int((sample.input_ids == rows.processor.ids.image).sum()) == 32 // 4


def test_labels_never_cover_an_image_or_padding(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 10, text_only=(3, 6)))
    for index in range(10):
        sample = rows.sample(index)
        supervised = sample.labels[sample.labels != IGNORED]
        assert not set(supervised.tolist()) & {rows.processor.ids.image, rows.processor.ids.pad}
        assert supervised[-1] == rows.processor.ids.end
        assert torch.equal(sample.input_ids[sample.labels != IGNORED], supervised)


def test_targets_are_the_labels_one_place_on(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 6, text_only=(1,)))
    samples = [rows.sample(index) for index in range(6)]
    batch = collate(samples, rows.processor)
    assert batch.supervised == sum(sample.supervised for sample in samples)
    for place, sample in enumerate(samples):
        found = {
            (int(column), int(target))
            for column, target in zip(batch.columns, batch.targets[place], strict=True)
            if target != IGNORED
        }
        wanted = {
            (position - 1, int(label))
            for position, label in enumerate(sample.labels)
            if label != IGNORED
        }
        assert found == wanted


def test_padding_is_masked_and_belongs_to_no_image(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 4))
    samples = [rows.sample(index) for index in range(4)]
    batch = collate(samples, rows.processor)
    for place, sample in enumerate(samples):
        length = len(sample.input_ids)
        assert batch.inputs["attention_mask"][place].tolist() == [1] * length + [0] * (
            batch.inputs["input_ids"].shape[1] - length
        )
        assert torch.equal(
            batch.inputs["mm_token_type_ids"][place, :length].bool(),
            sample.input_ids == rows.processor.ids.image,
        )
        assert not batch.inputs["mm_token_type_ids"][place, length:].any()


def test_prompts_end_together(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 5, text_only=(2,)))
    prompts = [encode_prompt(rows.rows, index, rows.processor) for index in range(5)]
    inputs = collate_prompts(prompts, rows.processor)
    for place, prompt in enumerate(prompts):
        assert torch.equal(inputs["input_ids"][place, -len(prompt.input_ids) :], prompt.input_ids)
        assert torch.equal(rows.sample(place).input_ids[: len(prompt.input_ids)], prompt.input_ids)


def test_a_prompt_has_the_images_before_its_answer_only(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    turns = [
        {"role": "user", "content": "<image>?"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "<image>?"},
    ]
    rows = rows_of(
        tmp_path,
        [{"messages": [*turns[:1], {"role": "assistant", "content": "y"}], "images": ["a.png"]}],
    )
    prompt = encode_prompt(rows.rows, 0, rows.processor)
    assert "image_grid_thw" in prompt.visuals.inputs
    assert len(prompt.visuals.inputs["image_grid_thw"]) == 1
    assert prompt.reference == "y"


@pytest.mark.parametrize(
    "names", ["attention_mask", "mm_token_type_ids", "pixel_values,image_grid_thw"]
)
def test_an_input_is_left_out_only_where_the_recipe_names_it(tmp_path: Path, names: str) -> None:
    made = mixed_rows(tmp_path, 3)
    everything = rows_of(tmp_path, made)[MicroBatch((0, 1, 2))].inputs
    assert set(everything) == {
        "input_ids",
        "attention_mask",
        "mm_token_type_ids",
        "pixel_values",
        "image_grid_thw",
    }
    fewer = rows_of(tmp_path, made, f"data.drop_model_inputs=[{names}]")[
        MicroBatch((0, 1, 2))
    ].inputs
    assert set(fewer) == set(everything) - set(names.split(","))


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png", 280, 280)
    path.write_bytes(path.read_bytes()[:5000])
    assert (
        rule_of(rows_of(tmp_path, [chat("<image>?", "b") | {"images": ["a.png"]}]))
        == "broken-image"
    )


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not an image")
    assert (
        rule_of(rows_of(tmp_path, [chat("<image>?", "b") | {"images": ["a.png"]}]))
        == "broken-image"
    )


def test_an_image_turned_by_its_camera_is_turned_back(tmp_path: Path) -> None:
    from PIL import Image

    plain = Image.open(picture(tmp_path / "a.png", 56, 28))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    plain.save(tmp_path / "turned.png", exif=exif)
    rows = rows_of(
        tmp_path,
        [chat("<image>?", "b") | {"images": ["turned.png"]}],
        "data.image={min_pixels:784,max_pixels:100000}",
    )
    grid = rows.sample(0).visuals.inputs.get("image_grid_thw")
    assert grid is not None
    assert grid.tolist() == [[1, 4, 2]]


def test_control_tokens_in_a_text_are_refused(tmp_path: Path) -> None:
    assert rule_of(rows_of(tmp_path, [chat("<|image_pad|>?", "b")])) == "control-token-in-text"


def test_an_overlong_row_is_refused_by_default(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [chat("word " * 50, "b")], "data.max_length=20")
    assert rule_of(rows) == "overlong-row"


def test_truncation_keeps_a_part_of_the_answer_and_says_so(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, [chat("Hi", "word " * 60)], "data.max_length=30", "data.on_overlong=truncate"
    )
    sample = rows.sample(0)
    assert len(sample.input_ids) == 30
    assert sample.truncated
    assert sample.supervised > 0


def test_truncation_that_leaves_no_answer_is_refused(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, [chat("q " * 60, "b")], "data.max_length=30", "data.on_overlong=truncate"
    )
    assert rule_of(rows) == "answer-cut-off"


def test_truncation_that_cuts_an_image_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 280, 280)
    turns = [("user", "Hi"), ("assistant", "b"), ("user", "<image>?"), ("assistant", "b")]
    row = {
        "messages": [{"role": role, "content": content} for role, content in turns],
        "images": ["a.png"],
    }
    overrides = [
        "data.image={min_pixels:784,max_pixels:100000}",
        "data.max_length=60",
        "data.on_overlong=truncate",
    ]
    assert rule_of(rows_of(tmp_path, [row], *overrides)) == "answer-cut-off"


def test_an_image_too_large_to_be_meant_is_refused(tmp_path: Path) -> None:
    decompression_bomb(tmp_path / "a.png")
    assert (
        rule_of(rows_of(tmp_path, [chat("<image>?", "b") | {"images": ["a.png"]}]))
        == "too-many-pixels"
    )


def test_an_image_whose_values_do_not_fit_into_eight_bits_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((56, 56), 4095, np.uint16)).save(tmp_path / "a.png")
    rows = rows_of(tmp_path, [chat("<image>?", "b") | {"images": ["a.png"]}])
    assert rule_of(rows) == "wide-image-values"


def test_an_example_shows_what_is_supervised(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 28, 56)
    rows = rows_of(
        tmp_path,
        [chat("<image>Hi", "Hello") | {"images": ["a.png"]}],
        "data.image={min_pixels:784,max_pixels:100000}",
    )
    text = render_example(rows.sample(0), rows.processor)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|>×2<|vision_end|>Hi<|im_end|>\n"
        "<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_the_order_of_the_plan(tmp_path: Path, workers: int) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 11, text_only=(2, 3)))
    plan = Plan(11, 4, seed=1)
    kept = range(11)
    got = list(
        load_steps(
            rows, range(2, 6), lambda step: micro_batches(plan, kept, step, 0, 1, 3), workers
        )
    )
    assert [[row for batch in step for row in batch.indices] for step in got] == [
        list(plan.step(step)) for step in range(2, 6)
    ]


def test_a_rank_without_rows_gets_a_stand_in_that_counts_for_nothing(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 5))
    plan = Plan(5, 4, seed=0)  # the second step has one row
    ((batch,),) = load_steps(
        rows, range(2, 3), lambda step: micro_batches(plan, range(5), step, 1, 2, 4), 0
    )
    assert batch.indices == ()
    assert batch.supervised == batch.tokens == 0
    assert (batch.targets == IGNORED).all()
