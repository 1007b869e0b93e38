"""A folder that lacks a part of its processor is refused, with the part's name."""

import json
from pathlib import Path

import pytest

from vtool.diagnostics import Findings
from vtool.models.processor import load_processor


def test_what_a_models_folder_lacks_is_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(Findings) as caught:
        load_processor(tmp_path, "qwen2_5_vl")
    (found,) = caught.value.diagnostics
    assert found.rule == "model-does-not-load"
    absent = (
        "there is no tokenizer.json or vocab.json or tokenizer.model, and no"
        " preprocessor_config.json or processor_config.json"
    )
    assert absent in found.message
