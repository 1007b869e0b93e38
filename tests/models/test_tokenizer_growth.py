"""A tokenizer that makes texts grow or fails at them is a finding."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows
from tests.rows import chat, write_rows
from tests.runs import request
from vtool.config.schema import Image, Model
from vtool.data.encode import encode_row
from vtool.diagnostics import Findings
from vtool.families.family import load_family
from vtool.families.images import patches_of_processor
from vtool.models.processor import load_processor, new_processor
from vtool.models.tokenizer import train_tokenizer
from vtool.models.tokenizer_growth import MOST, text_growth


def changed(part: str, steps: dict[str, Any]) -> Any:
    """Return a tokenizer of which a part of its file is another one."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = train_tokenizer(["a b c"], load_family("qwen2_5_vl").facts.token_names)
    file = json.loads(made.backend_tokenizer.to_str())
    file[part] = steps
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(file)))


def replaced(old: str, new: str, times: int = 1) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return {"type": "Sequence", "normalizers": [step] * times}


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        (replaced("a", "a" * 16, 8), 16**8),
        (replaced("a", "a" * 16, 2), 256),
        (replaced("aaaa", "a" * 16, 3), 64),
        (replaced(" ", "▁"), 1),
        ({"type": "Prepend", "prepend": "▁"}, 1),
        ({"type": "Prepend", "prepend": "ab" * 500}, 1000),
        ({"type": "NFC"}, 1),
    ],
)
def test_replacements_multiply(steps: dict[str, Any], times: int) -> None:
    assert text_growth(changed("normalizer", steps)) == times


def test_an_ordinary_tokenizer_does_not_grow_texts() -> None:
    made = train_tokenizer(["a b c"], load_family("qwen2_5_vl").facts.token_names)
    assert text_growth(made) == 1 <= MOST


def folder_with(folder: Path, part: str, steps: dict[str, Any]) -> Path:
    """Write a folder with a processor, of whose tokenizer a part is another one."""
    made = new_processor(Model(family="qwen2_5_vl", size="tiny"), Image(), ["What is this?"])
    made.save(folder)
    fields = load_family("qwen2_5_vl").facts.token_fields
    ids = {field: getattr(made.ids, name) for name, field in fields.items()}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", **ids}))
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), part: steps}))
    return folder


def test_a_folder_that_makes_texts_grow_is_not_loaded(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "normalizer", replaced("a", "a" * 16, 8))
    with pytest.raises(Findings, match="4,294,967,296 times longer"):
        load_processor(folder, "qwen2_5_vl")


def test_a_pattern_that_gives_up_is_a_finding_of_the_row(tmp_path: Path) -> None:
    split = {"pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    folder = folder_with(tmp_path, "pre_tokenizer", {"type": "Split", **split})
    processor = load_processor(folder, "qwen2_5_vl")
    file = write_rows(tmp_path / "rows.jsonl", [chat("a" * 40 + "!", "b"), chat("a", "b")])
    rows = open_rows("messages", file)
    settings = request("digits").run.data
    with pytest.raises(Findings, match="retry-limit-in-match over") as caught:
        encode_row(rows.row(0), 0, processor, settings)
    assert caught.value.diagnostics[0].rule == "tokenizer-fails"
    assert encode_row(rows.row(1), 1, processor, settings).supervised == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"eos_token": None}, "names no eos_token"),
        ({"model_max_length": "long"}, "fails at a text: '>' not supported"),
    ],
)
def test_a_tokenizer_whose_settings_are_of_another_kind_is_not_loaded(
    tmp_path: Path, setting: dict[str, Any], words: str
) -> None:
    folder = folder_with(tmp_path, "normalizer", {"type": "NFC"})
    load_processor(folder, "qwen2_5_vl")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **setting}))
    with pytest.raises(Findings, match=words) as caught:
        load_processor(folder, "qwen2_5_vl")
    assert caught.value.diagnostics[0].rule == "model-does-not-load"


def test_what_the_library_prints_of_a_tokenizer_is_no_output_of_a_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, "normalizer", {"type": "NFC"})
    file = folder / "tokenizer_config.json"
    token = {"content": "<new>", "__type": "AddedToken", "a_key_of_another_release": True}
    written = {**json.loads(file.read_text()), "added_tokens_decoder": {"400": token}}
    file.write_text(json.dumps(written))
    load_processor(folder, "qwen2_5_vl")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "a_key_of_another_release" in printed.err


@pytest.mark.parametrize(
    "size", [{"num_hidden_layers": 2**31}, {"vision_config": {"depth": 10**400}}]
)
def test_a_config_with_more_layers_than_any_model_is_refused_before_a_list_of_them(
    tmp_path: Path, size: dict[str, Any]
) -> None:
    folder = folder_with(tmp_path, "normalizer", {"type": "NFC"})
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **size}))
    with pytest.raises(Findings, match="and no model has 10,000"):
        load_processor(folder, "qwen2_5_vl")


@pytest.mark.parametrize("size", ["Infinity", "1e999", "NaN"])
def test_a_patch_without_an_end_is_none(tmp_path: Path, size: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(f'{{"patch_size": {size}}}')
    assert patches_of_processor(tmp_path) is None
