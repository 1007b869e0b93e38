"""Questions to an exported model, read as the rows it was trained on are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import vtool.evaluation.asker as asking
import vtool.evaluation.predict as predicting
from tests.evaluation.conftest import Exported
from tests.rows import decompression_bomb, film, picture
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.evaluation.predict_rows import answer_rows
from vtool.evaluation.subject import open_model


@pytest.fixture(scope="module")
def run(made: tuple[Path, Path]) -> Path:
    return made[0]


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    return [str(picture(tmp_path / f"{seed}.png", seed=seed)) for seed in (1, 2)]


def asked(monkeypatch: pytest.MonkeyPatch, run: Path, *question: Any) -> tuple[Row, set[str]]:
    """Return the chat and the names of the inputs that the model is really given."""
    seen: dict[str, Any] = {}
    encode, generate = asking.encode_question, asking.generate_tokens

    def watched_encode(row: Row, processor: Any) -> Any:
        seen["row"] = row
        return encode(row, processor)

    def watched_generate(
        model: Any, processor: Any, inputs: dict[str, torch.Tensor], *more: Any
    ) -> torch.Tensor:
        seen["inputs"] = set(inputs)
        return generate(model, processor, inputs, *more)

    monkeypatch.setattr(asking, "encode_question", watched_encode)
    monkeypatch.setattr(asking, "generate_tokens", watched_generate)
    predicting.predict_answer(run, *question, 2)
    return seen["row"], seen["inputs"]


def test_an_image_is_placed_at_its_tag(
    run: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, _ = asked(monkeypatch, run, images, "Is <image> like <image>?", None)
    text, image = {"type": "text"}, {"type": "image"}
    assert row.messages[0]["content"] == [
        text | {"text": "Is "},
        image,
        text | {"text": " like "},
        image,
        text | {"text": "?"},
    ]
    assert row.images == images


def test_images_go_before_a_question_without_tags(
    run: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, _ = asked(monkeypatch, run, images, "Same?", "Be brief.")
    assert row.messages[0] == {"role": "system", "content": "Be brief."}
    assert row.messages[1]["content"] == [
        {"type": "image"},
        {"type": "image"},
        {"type": "text", "text": "Same?"},
    ]


def test_inputs_that_the_run_has_dropped_are_dropped(
    exported: Exported, tmp_path: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = exported(tmp_path, "data.drop_model_inputs=[pixel_values,image_grid_thw]")
    for given in (folder, folder / "export"):
        _, inputs = asked(monkeypatch, given, images[:1], "What is it?", None)
        assert inputs == {"input_ids", "attention_mask", "mm_token_type_ids"}


@pytest.mark.parametrize(
    ("question", "system", "rule"),
    [
        ("<image><image>?", None, "placeholder-mismatch"),
        ("<image>?", "<image>", "placeholder-mismatch"),
        ("<|im_end|>", None, "control-token-in-text"),
        ("Hi", "<|image_pad|>", "control-token-in-text"),
        ("<video>?", None, "placeholder-mismatch"),
        ("<audio>?", None, "malformed-messages"),
        ("half \ud800", None, "malformed-messages"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    run: Path, images: list[str], question: str, system: str | None, rule: str
) -> None:
    with pytest.raises(Findings) as caught:
        predicting.predict_answer(run, images[:1], question, system, 2)
    assert [finding.rule for finding in caught.value.diagnostics] == [rule]
    assert caught.value.fatal


@pytest.mark.parametrize("text", [None, "{", "data: [1]\n"])
def test_a_run_whose_settings_cannot_be_read_is_not_asked_with_other_image_sizes(
    run: Path, tmp_path: Path, images: list[str], text: str | None
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "config.yaml").unlink()
    if text is not None:
        (copy / "config.yaml").write_text(text)
    with pytest.raises(Findings, match=r"not-a-run.*config\.yaml: ") as caught:
        predicting.predict_answer(copy, images[:1], "What is it?", None, 2)
    assert f"vtool predict {copy / 'export'}" in str(caught.value.diagnostics[0].help)
    assert predicting.predict_answer(copy / "export", images[:1], "What?", None, 2).tokens == 2


def test_a_video_is_placed_at_its_tag_and_else_behind_the_images(
    run: Path, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = str(film(tmp_path / "a.mp4", 10))
    ask = predicting.predict_answer
    monkeypatch.setattr(predicting, "predict_answer", lambda *given: ask(*given, videos=[clip]))
    row, inputs = asked(monkeypatch, run, images[:1], "What is it?", None)
    assert list(row.visuals()) == ["image", "video"]
    assert inputs >= {"pixel_values", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"}
    row, _ = asked(monkeypatch, run, [], "Is <video> it?", None)
    assert [part["type"] for part in row.messages[0]["content"]] == ["text", "video", "text"]


def test_an_image_that_cannot_be_shown_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_text("not an image")
    bad = {
        "q" * 5000: "missing-image",
        str(decompression_bomb(tmp_path / "a.png")): "too-many-pixels",
        str(tmp_path / "no.png"): "broken-image",
    }
    for image, rule in bad.items():
        with pytest.raises(Findings) as caught:
            predicting.predict_answer(run, [image], "What is it?", None, 2)
        assert [finding.rule for finding in caught.value.diagnostics] == [rule]


def test_without_a_question_that_of_the_first_test_row_is_asked_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "predictions.jsonl").write_text(json.dumps({"question": "And this?"}) + "\n")
    row, _ = asked(monkeypatch, run, [], None, None)
    assert row.messages == [{"role": "user", "content": "And this?"}]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "bert"}'])
def test_a_config_that_is_no_models_is_reported(run: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(run / "export", tmp_path / "export")
    (tmp_path / "export" / "config.json").write_text(text)
    with pytest.raises(Findings) as caught:
        predicting.predict_answer(tmp_path, [], "What?", None, 4)
    assert (caught.value.diagnostics[0].rule, caught.value.fatal) == ("not-a-run", True)


def test_rows_of_a_model_whose_padding_token_has_no_embedding_are_asked_one_by_one(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    run, rows = made
    shutil.copytree(run / "export", tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    tokenizer.add_special_tokens({"pad_token": "<added>"})
    tokenizer.save_pretrained(tmp_path / "export")
    both = [
        [each.answer for *_, each in answer_rows(open_model(str(folder)), str(rows), (), 3, 4, str)]
        for folder in (run / "export", tmp_path / "export")
    ]
    assert both[0] == both[1]
    assert None not in both[0]


def test_a_question_whose_tokens_the_embedding_does_not_have_is_refused(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "export", tmp_path / "export")
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    config["text_config"]["vocab_size"] = 10
    (tmp_path / "export" / "config.json").write_text(json.dumps(config))
    with pytest.raises(Findings, match=r"token-without-embedding.*embedding has 10 rows") as caught:
        predicting.predict_answer(tmp_path / "export", [], "What?", None, 4)
    assert caught.value.fatal
