"""An image processor whose values no model can read is refused; other healthy ones are not."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from vtool.config.schema import Image, Model
from vtool.diagnostics import Findings
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.pixel_check import check_pixels
from vtool.models.processor import load_processor, new_processor

NAN = float("nan")
DESTROYED: list[tuple[dict[str, Any], str]] = [
    ({"image_std": [0, 0, 0]}, "not finite"),
    ({"image_std": [0.26, 0.26, 0]}, "not finite"),
    ({"image_mean": [NAN] * 3}, "not finite"),
    ({"rescale_factor": NAN}, "not finite"),
    ({"rescale_factor": 0}, "one value of every shade"),
    ({"image_std": [1e9] * 3}, "one value of every shade"),
    ({"rescale_factor": 1}, "values from"),
    ({"rescale_factor": 1 / 127.5}, "values from"),
    ({"rescale_factor": -1 / 255}, "values from"),
    ({"do_rescale": False}, "values from"),
    ({"do_normalize": False}, "values from"),
    ({"image_mean": [124, 116, 104]}, "values from"),
    ({"image_std": [0.26]}, "makes nothing of a picture"),
    ({"size": {"shortest_edge": 10**10, "longest_edge": 10**11}}, "pixels or more"),
    ({"size": {"shortest_edge": 1e12, "longest_edge": 1e13}}, "pixels or more"),
    (
        {"size": {"shortest_edge": 3136, "longest_edge": "1003520"}},
        "has size.longest_edge '1003520'",
    ),
    ({"size": {"shortest_edge": 3136, "longest_edge": NAN}}, "has size.longest_edge nan"),
    ({"do_convert_rgb": {}}, "has do_convert_rgb {}"),
    ({"do_resize": "yes"}, "has do_resize 'yes'"),
    ({"resample": "bicubic"}, "has resample 'bicubic'"),
    ({"image_mean": 0.5}, "has image_mean 0.5"),
    ({"patch_size": 0}, "has patch_size 0"),
    ({"merge_size": 255}, "has merge_size 255"),
    ({"temporal_patch_size": 2.0}, "has temporal_patch_size 2.0"),
]
HEALTHY: list[dict[str, Any]] = [
    {},
    {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    {"size": {"shortest_edge": 28**2, "longest_edge": 28**2 * 1280}},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_values_beside_those_of_the_family_are_judged(family: str) -> None:
    known = load_family(family)
    own = known.image_processor_class("pil")(**asdict(known.facts.patches))
    for changes, said in [*DESTROYED, *((healthy, "") for healthy in HEALTHY)]:
        given = copy.copy(own)
        for name, value in changes.items():
            setattr(given, name, value)
        found = check_pixels(given, own, "folder")
        assert (found is None) == (not said), changes
        assert found is None or (found.rule == "pixels-destroyed" and said in found.message)


def test_a_folder_of_such_a_processor_is_not_loaded(tmp_path: Path) -> None:
    made = new_processor(Model(family="qwen2_5_vl", size="tiny"), Image(), ["What is this?"])
    made.save(tmp_path)
    ids = load_family("qwen2_5_vl").facts.token_fields
    numbers = {field: getattr(made.ids, name) for name, field in ids.items()}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", **numbers}))
    load_processor(tmp_path, "qwen2_5_vl")
    file = next(tmp_path.glob("p*processor_config.json"))
    config = json.loads(file.read_text())
    part = config.get("image_processor", config)
    part["image_std"] = [0, 0, 0]
    file.write_text(json.dumps(config))
    with pytest.raises(Findings, match="image processor makes values that are not finite"):
        load_processor(tmp_path, "qwen2_5_vl")
