"""An unfit family or model folder is reported before anything is loaded."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.test_contents import POINTER
from vtool.config.load import examine
from vtool.diagnostics import Diagnostic
from vtool.families import FAMILIES


def only(*overrides: str) -> Diagnostic:
    (finding,) = [one for one in examine("digits", overrides).findings if one.severity == "error"]
    return finding


def folder(
    path: Path,
    name: str,
    *,
    processor: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
) -> str:
    """The small files of a model's folder."""
    patch = FAMILIES[name].patches.patch_size if name in FAMILIES else 14
    tower = {"patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2}
    own = {
        "patch_size": tower["patch_size"],
        "merge_size": 2,
        "temporal_patch_size": 2,
        **(processor or {}),
    }
    (path / "config.json").write_text(
        json.dumps({"model_type": name, "vision_config": {**tower, **(vision or {})}})
    )
    (path / "preprocessor_config.json").write_text(json.dumps(own))
    return f"model.path={path}"


@pytest.mark.parametrize("name", FAMILIES)
def test_each_is_set_by_one_word(name: str, tmp_path: Path) -> None:
    assert examine("digits", [f"model.family={name}"]).findings == ()
    given = [f"model.family={name}", folder(tmp_path, name), "model.size=null"]
    assert examine("digits", given).findings == ()


def test_an_unknown_family_is_refused_with_near_names_and_what_a_new_one_needs() -> None:
    finding = only("model.family=qwen3vl")
    assert (finding.rule, finding.parameter) == ("unknown-choice", "model.family")
    assert finding.help is not None
    assert finding.help.startswith("did you mean `qwen3_vl`")
    assert "vtool trains image-text-to-text models of transformers" in finding.help
    assert "vtool watch -- python train.py" in str(only("model.family=internlm_x").help)


def test_a_folder_of_another_family_is_refused_with_what_to_set(tmp_path: Path) -> None:
    finding = only("model.family=qwen3_vl", folder(tmp_path, "glm4v"))
    assert (finding.rule, finding.expected, finding.seen) == (
        "not-a-model-folder",
        "qwen3_vl",
        "glm4v",
    )
    assert finding.help == "set model.family=glm4v, or give another folder"
    finding = only(folder(tmp_path, "internlm_x"))
    assert finding.rule == "not-a-model-folder"
    assert f"for which transformers {version('transformers')} here has no" in finding.message
    assert "vtool watch -- python train.py" in str(finding.help)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_without_a_vision_part_is_no_model_to_train(name: str, tmp_path: Path) -> None:
    given = folder(tmp_path, name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name, "hidden_size": 64}))
    finding = only(f"model.family={name}", given)
    assert finding.rule == "not-a-model-folder"
    assert "vision_config" in finding.message


@pytest.mark.parametrize("text", [None, {}, []])
def test_a_config_with_an_empty_language_part_is_no_model_to_train(
    text: Any, tmp_path: Path
) -> None:
    given = folder(tmp_path, "qwen2_5_vl")
    config = json.loads((tmp_path / "config.json").read_text()) | {"text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    finding = only(given)
    assert finding.rule == "not-a-model-folder"
    assert f"text_config is {json.dumps(text)}: " in finding.message
    # the sizes of published ones stand beside it
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    assert examine("digits", [given, "model.size=null"]).findings == ()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["fp8", "bitsandbytes", "gptq", "awq", "compressed-tensors"])
def test_a_folder_that_is_quantized_already_is_reported_before_anything_is_loaded(
    name: str, method: str, tmp_path: Path
) -> None:
    given = [f"model.family={name}", folder(tmp_path, name), "model.size=null"]
    config = json.loads((tmp_path / "config.json").read_text())
    quantized = {"quant_method": method, "bits": 4}
    for said, refused in ((quantized, True), (method, True), ({}, False), (None, False)):
        config["quantization_config"] = said
        (tmp_path / "config.json").write_text(json.dumps(config))
        if refused:
            finding = only(*given)
            assert finding.rule == "not-a-model-folder"
            assert (
                f"is quantized already: its config.json has a quantization_config ({method})"
                in (finding.message)
            )
            assert "take quantization_config out of config.json" in str(finding.help)
        else:
            assert examine("digits", given).findings == ()


@pytest.mark.parametrize(
    ("files", "named", "found"),
    [
        (("model.safetensors", "a.safetensors", "b.safetensors"), ("a", "b"), "a.safetensors to b"),
        (("model.safetensors", "a.safetensors"), ("model", "a"), "a.safetensors, which"),
        # an index of the one file; of a save whose files are gone; of shards alone
        (("model.safetensors",), ("model",), None),
        (("model.safetensors",), ("a", "b"), None),
        (("a.safetensors", "b.safetensors"), ("a", "b"), None),
        (("a.safetensors", "b.safetensors", "consolidated.safetensors"), ("a", "b"), None),
        (("model.safetensors", "adapter_model.safetensors"), None, None),
        (("model.safetensors", "a.safetensors"), None, None),
    ],
)
def test_two_saves_in_one_folder_are_distinguished(
    files: tuple[str, ...], named: tuple[str, ...] | None, found: str | None, tmp_path: Path
) -> None:
    given = [folder(tmp_path, "qwen2_5_vl"), "model.size=null"]
    for file in files:
        (tmp_path / file).write_bytes((2).to_bytes(8, "little") + b"{}")
    if named is not None:
        weight_map = {f"layer.{place}": f"{one}.safetensors" for place, one in enumerate(named)}
        index = json.dumps({"weight_map": weight_map})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    findings = examine("digits", given).findings
    assert [(one.rule, one.severity) for one in findings] == (
        [("two-saves-in-folder", "warning")] if found else []
    )
    if found:
        assert "model.safetensors is read, and " + found in findings[0].message


def test_a_note_of_how_a_base_is_quantized_next_to_an_export_is_no_quantized_folder(
    tmp_path: Path,
) -> None:
    given = folder(tmp_path, "qwen2_5_vl")
    note = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "base_quantization.json").write_text(json.dumps(note))
    assert examine("digits", [given, "model.size=null"]).findings == ()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("vision", "processor", "said"),
    [
        ({"patch_size": 8}, {}, "patch_size"),
        # four times as many image tokens as the tower has features
        ({}, {"merge_size": 1}, "merge_size 1, not 2"),
        (
            {"spatial_merge_size": 4},
            {"temporal_patch_size": 1},
            "merge_size 2, not 4 and temporal_patch_size 1, not 2",
        ),
    ],
)
def test_images_that_are_cut_otherwise_than_the_tower_takes_them(
    name: str, vision: dict[str, Any], processor: dict[str, Any], said: str, tmp_path: Path
) -> None:
    finding = only(
        f"model.family={name}",
        folder(tmp_path, name, vision=vision, processor=processor),
        "data.image.max_pixels=4096",
    )
    assert (finding.rule, finding.parameter) == ("patch-mismatch", "model.path")
    assert said in finding.message


def test_a_processor_that_says_nothing_cuts_as_transformers_does(tmp_path: Path) -> None:
    """14 × 14, also for a tower of 16."""
    given = folder(tmp_path, "qwen3_vl")
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert only("model.family=qwen3_vl", given).rule == "patch-mismatch"


@pytest.mark.parametrize("name", FAMILIES)
def test_no_image_is_smaller_than_a_token(name: str, tmp_path: Path) -> None:
    smallest = (2 * FAMILIES[name].patches.patch_size) ** 2
    few = f"data.image={{min_pixels:100,max_pixels:{smallest - 1}}}"
    for where in ((), (folder(tmp_path, name),)):
        finding = only(f"model.family={name}", few, *where)
        assert (finding.rule, finding.parameter, finding.expected) == (
            "pixel-bounds",
            "data.image.max_pixels",
            f"at least {smallest}",
        )
        enough = f"data.image={{min_pixels:100,max_pixels:{smallest}}}"
        assert [
            one
            for one in examine("digits", [f"model.family={name}", enough, *where]).findings
            if one.severity == "error"
        ] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_megatron_refuses_families_whose_layers_it_does_not_have(name: str) -> None:
    found = examine("digits_megatron", [f"model.family={name}", "launch.nproc=2"]).findings
    wanted = [] if FAMILIES[name].on_megatron else [("not-built-on-engine", "engine.kind")]
    assert [(one.rule, one.parameter) for one in found] == wanted


def test_a_file_that_is_a_pointer_of_git_is_named(tmp_path: Path) -> None:
    given = folder(tmp_path, "qwen2_5_vl")
    (tmp_path / "tokenizer.json").write_bytes(POINTER)
    finding = only(given, "model.size=null")
    assert (finding.rule, finding.help) == (
        "not-a-model-folder",
        "in its repository: git lfs pull",
    )
    assert "has a tokenizer.json that is a Git LFS pointer" in finding.message


def test_a_giant_config_is_not_read(tmp_path: Path) -> None:
    given = folder(tmp_path, "qwen2_5_vl")
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    found = examine("digits", [given, "model.size=null"]).findings
    (finding,) = [each for each in found if each.rule == "not-a-model-folder"]
    assert "1,099,511,627,776 bytes" in finding.message
