"""Windows of a model's layers, as config.json has them, and as transformers reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from vtool.families.windows import Window, packing_conflict, window_of, window_of_folder

ON: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": 24,
    "max_window_layers": 1,
    "num_hidden_layers": 4,
}
CASES: dict[str, tuple[dict[str, Any], Window | None]] = {
    "none": ({"num_hidden_layers": 4}, None),
    "switched off": (ON | {"use_sliding_window": False}, None),
    "on, and of no layer": (ON | {"max_window_layers": 28}, None),
    "on, without a length": (ON | {"sliding_window": None}, None),
    "of all layers but the first": (ON, Window(24, 3, 4)),
    "of all layers": (ON | {"max_window_layers": 0}, Window(24, 4, 4)),
    "of the layers that are named": (
        ON | {"layer_types": ["full_attention", "sliding_attention"] * 2},
        Window(24, 2, 4),
    ),
    "of the default length": (
        {"use_sliding_window": True, "max_window_layers": 2, "num_hidden_layers": 4},
        Window(4096, 2, 4),
    ),
}


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flat", [True, False], ids=["one level", "text_config"])
def test_a_folders_window_is_the_one_that_transformers_computes_with(
    tmp_path: Path, family: str, case: str, flat: bool
) -> None:
    from transformers import AutoConfig

    text, wanted = CASES[case]
    config = {
        "model_type": family,
        "vision_config": {"depth": 2},
        **(text if flat else {"text_config": text}),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    live = AutoConfig.from_pretrained(tmp_path, local_files_only=True).get_text_config()
    assert window_of(live.layer_types, live.sliding_window) == wanted
    assert window_of_folder(tmp_path, family) == wanted


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"text_config": 3}', '{"use_sliding_window": true, "sliding_window": "far"}'],
)
def test_what_cannot_be_read_is_left_to_what_loads_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert window_of_folder(tmp_path, "qwen2_5_vl") is None
    assert window_of_folder(tmp_path / "nowhere", "qwen2_5_vl") is None


def test_a_window_that_no_packed_row_reaches_is_no_finding() -> None:
    window = Window(24, 2, 4)
    assert packing_conflict(None, 1000) is None
    assert packing_conflict(window, 23) is None
    for budget in (24, 160, None):
        message, advice = packing_conflict(window, budget) or ("", "")
        assert "2 of the model's 4 layers see the last 24 tokens only (sliding_window)" in message
        assert "data.micro_batch_tokens=23" in advice
