"""Folders as they are published are verified, trained and exported with the same files."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from transformers.utils import is_torchvision_available

from tests.commands import run_vtool
from tests.models.published_folders import PUBLISHED, UNTRAINED, publish_family
from vtool.diagnostics import Findings
from vtool.families.images import patches_of_processor
from vtool.models.processor import load_processor

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_colors(folder: Path) -> Path:
    """Rows about squares, whose answers have a thought where `thought` is given."""
    folder.mkdir()
    lines = []
    for number in range(8):
        color = ("red", "green", "blue")[number % 3]
        Image.new("RGB", (64 + 8 * number, 80), color).save(folder / f"{number}.png")
        asked = [{"type": "image", "image": f"{number}.png"}, {"type": "text", "text": "Color?"}]
        answer = {"role": "assistant", "content": f"It is {color}."}
        lines.append(json.dumps({"messages": [{"role": "user", "content": asked}, answer]}))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "rows.jsonl"


@pytest.mark.full
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_verified_trained_and_exported_with_the_same_files(name: str, tmp_path: Path) -> None:
    folder = publish_family(name, tmp_path / name)
    rows, model = write_colors(tmp_path / "rows"), f"model.path={folder}"
    think = PUBLISHED[name].template in ("qwen3_5", "glm")
    off = ("data.template_arguments={enable_thinking: false}",) if think else ()
    done = run_vtool(tmp_path, "verify", str(rows), model, *off)
    assert done.status == 0, done.stdout
    assert "no findings" in done.stdout
    steps = ("train.steps=3", "data.global_batch_size=4", "run.name=seen")
    done = run_vtool(tmp_path, "train", "sft", str(rows), model, *off, *steps)
    assert done.status == 0, done.stderr
    told = "note[weights-left-out VT675]" in done.stdout
    assert told == bool(PUBLISHED[name].more_weights)
    assert "3 weights that transformers' class leaves out (mtp." in done.stdout or not told
    export = tmp_path / "runs/seen/export"
    written = {file.name for file in export.iterdir()}
    assert written >= PUBLISHED[name].files - {*SHARDS, "model.safetensors.index.json"}
    config = transformers.AutoConfig.from_pretrained(export)
    kind = getattr(transformers, config.architectures[0])
    trained, report = kind.from_pretrained(export, output_loading_info=True)
    assert not any(report[one] for one in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before = kind.from_pretrained(folder, dtype=torch.float32)
    moved = [
        not torch.equal(one, other.float())
        for one, other in zip(before.parameters(), trained.parameters(), strict=True)
    ]
    assert sum(moved) > len(moved) / 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    assert json.loads((export / "vocab.json").read_text()).items() <= tokenizer.get_vocab().items()
    if "chat_template.json" in written:
        own = json.loads((export / "chat_template.json").read_text())
        assert own == {"chat_template": tokenizer.chat_template}
    ends = json.loads((export / "generation_config.json").read_text())["eos_token_id"]
    assert ends == json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    images = transformers.AutoImageProcessor.from_pretrained(export)
    assert images.backend == ("torchvision" if is_torchvision_available() else "pil")
    assert images.patch_size == PUBLISHED[name].images["patch_size"]
    done = run_vtool(tmp_path, "load-check", str(folder), str(export))
    assert done.status == 0, done.stdout
    assert "transformers has the same" in done.stdout


def test_patches_of_the_file_that_transformers_takes_are_held_against_the_tower(
    tmp_path: Path,
) -> None:
    """processor_config.json goes before preprocessor_config.json, where both are there."""
    folder = publish_family("Qwen3.5", tmp_path / "model")
    own = json.loads((folder / "preprocessor_config.json").read_text())
    for patch, other in ((14, 16), (16, 14)):
        both = {"image_processor": {**own, "patch_size": patch}}
        (folder / "processor_config.json").write_text(json.dumps(both))
        (folder / "preprocessor_config.json").write_text(json.dumps({**own, "patch_size": other}))
        taken = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        assert taken.patch_size == patch
        found = patches_of_processor(folder)
        assert found is not None
        assert found.patch_size == patch


@pytest.mark.full
def test_a_folder_with_a_broken_template_is_trained_by_a_named_one(tmp_path: Path) -> None:
    """Tell its processor's class too, which the copy in the run's folder has right."""
    folder = publish_family("Qwen2.5-VL", tmp_path / "model")
    template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    (tmp_path / "good.jinja").write_text(template)
    (folder / "chat_template.json").write_text('{"chat_template": "{% for %}"}')
    edited(folder, IMAGES, image_processor_type="CLIPImageProcessor")
    rows, model = write_colors(tmp_path / "rows"), f"model.path={folder}"
    steps = ("train.steps=1", "data.global_batch_size=4", "run.name=seen")
    done = run_vtool(tmp_path, "train", "sft", str(rows), model, *steps)
    assert done.status == 1
    assert done.stderr.count("error[model-does-not-load VT502]") == 1
    assert f"{folder / 'chat_template.json'}: the chat template is no Jinja: line 1" in done.stderr
    named = "data.chat_template=good.jinja"
    done = run_vtool(tmp_path, "train", "sft", str(rows), model, named, *steps)
    assert done.status == 0, done.stderr
    assert "warning[processor-class-differs VT677]" in done.stdout
    written = (tmp_path / "runs/seen/export/chat_template.jinja").read_text()
    assert written.rstrip() == template.rstrip()


@pytest.mark.parametrize("name", UNTRAINED)
def test_another_family_is_named_with_what_vtool_does_for_it(name: str, tmp_path: Path) -> None:
    model_type, kind = UNTRAINED[name]
    folder = tmp_path / name
    folder.mkdir()
    config = {"model_type": model_type, "architectures": [kind]}
    (folder / "config.json").write_text(json.dumps(config))
    rows = write_colors(tmp_path / "rows")
    done = run_vtool(tmp_path, "train", "sft", str(rows), f"model.path={folder}")
    assert done.status == 1
    assert f"is a model of type {model_type}, which vtool does not train" in done.stderr
    assert "vtool watch" in done.stderr
    assert "vtool load-check" in done.stderr


def test_the_folders_have_old_and_new_names_and_layouts(tmp_path: Path) -> None:
    """Folders of vtool itself have neither."""
    old = publish_family("Qwen2.5-VL", tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    assert "text_config" not in config
    assert config["rope_scaling"]["type"] == "mrope"
    names = [name for shard in SHARDS for name in load_file(old / shard)]
    assert any(name.startswith("visual.") for name in names)
    assert not any("language_model" in name for name in names)
    new = publish_family("Qwen3.5", tmp_path / "new")
    names = [name for shard in SHARDS for name in load_file(new / shard)]
    assert any(name.startswith("model.language_model.") for name in names)
    assert any(name.startswith("mtp.") for name in names)


def without_token(folder: Path, *tokens: str) -> Path:
    """Take tokens out of a folder's tokenizer: their texts are then spelt in several."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"] = [
        each for each in tokenizer["added_tokens"] if each["content"] not in tokens
    ]
    for token in tokens:
        tokenizer["model"]["vocab"].pop(token, None)
    file.write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("extra_special_tokens", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("template", "severity"),
    [
        (None, "warning"),  # <|im_end|> is a token beside it
        *(
            # Zephyr's marks are text, and it was trained so; StableLM's too, whose answers end with
            # the token of its base
            (
                "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}" + end + "\n{% endfor %}"
                "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
                "note",
            )
            for end in ("</s>", "<|endoftext|>")
        ),
    ],
)
def test_a_mark_that_is_no_token_is_mark_not_token(
    template: str | None, severity: str, tmp_path: Path
) -> None:
    folder = publish_family("Qwen2.5-VL", tmp_path / "model")
    assert not load_processor(folder, "qwen2_5_vl").notes
    if template:
        (folder / "chat_template.json").unlink()
        (folder / "chat_template.jinja").write_text(template)
    else:
        without_token(folder, "<|im_start|>")
    (note,) = load_processor(folder, "qwen2_5_vl").notes
    assert (note.rule, note.severity) == ("mark-not-token", severity)
    assert ("<|user|>" if template else "<|im_start|>") in note.message


@pytest.mark.parametrize(("listed", "told"), [(0, True), ([0], True), ([0, 2], False), (2, False)])
def test_an_end_that_the_generation_config_does_not_list_is_end_not_listed(
    listed: int | list[int], told: bool, tmp_path: Path
) -> None:
    """transformers' generate stops at the listed tokens alone."""
    folder = publish_family("Qwen2.5-VL", tmp_path / "model")
    assert load_processor(folder, "qwen2_5_vl").ids.end == 2
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": listed}))
    notes = load_processor(folder, "qwen2_5_vl").notes
    assert [note.rule for note in notes] == (["end-not-listed"] if told else [])


def edited(folder: Path, name: str, **changes: Any) -> None:
    """Change settings of a JSON file, which need not be there."""
    file = folder / name
    own = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(own | changes))


IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"
BOTH = "processor_config.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_family("Qwen3-VL", tmp_path_factory.mktemp("published") / "model")


def notes_of(published: Path, folder: Path, *changes: tuple[str, dict[str, Any]]) -> list[Any]:
    shutil.copytree(published, folder)
    for name, given in changes:
        edited(folder, name, **given)
    return [*load_processor(folder, "qwen3_vl").notes]


@pytest.mark.parametrize(
    ("file", "key", "name", "told"),
    [
        (IMAGES, "image_processor_type", "CLIPImageProcessor", True),
        (IMAGES, "image_processor_type", "Glm4vImageProcessorFast", True),
        (IMAGES, "image_processor_type", "NoImageProcessor", True),
        (IMAGES, "image_processor_type", 7, True),
        (IMAGES, "image_processor_type", "Qwen2VLImageProcessorPil", False),
        (IMAGES, "image_processor_type", None, False),
        (VIDEOS, "video_processor_type", "Glm4vVideoProcessor", True),
        (IMAGES, "processor_class", "LlavaProcessor", True),
        (BOTH, "processor_class", "NoProcessor", True),
        (BOTH, "processor_class", "Qwen3VLProcessor", False),
    ],
)
def test_a_class_of_another_model_or_of_none_is_processor_class_differs(
    file: str, key: str, name: Any, told: bool, published: Path, tmp_path: Path
) -> None:
    """Hold what is said of an image processor against what transformers does."""
    notes = notes_of(published, folder := tmp_path / "model", (file, {key: name}))
    assert [each.rule for each in notes] == ["processor-class-differs"] * told
    assert all(f"{file} has {key} {name!r}" in each.message for each in notes)
    if key == "image_processor_type":
        taken = ""
        with suppress(AttributeError, ValueError):
            taken = type(
                transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
            ).__name__
        assert (taken == "Qwen2VLImageProcessorPil") == (not told)
        assert not told or bool(taken) == ("takes that class" in notes[0].message)


def test_processor_files_that_differ_are_told_with_the_one_that_counts(
    published: Path, tmp_path: Path
) -> None:
    images, videos = (json.loads((published / name).read_text()) for name in (IMAGES, VIDEOS))
    older = {name: value for name, value in images.items() if name != "size"}
    same = older | {"min_pixels": 65536, "max_pixels": 16777216}
    cases: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
        (BOTH, {"image_processor": images, "video_processor": videos}, ()),
        (BOTH, {"image_processor": same}, ()),
        (
            BOTH,
            {"image_processor": images | {"size": dict(images["size"], longest_edge=2.0**24)}},
            (),
        ),
        (BOTH, {"image_processor": images | {"image_mean": [0.48, 0.46, 0.41]}}, ("image_mean",)),
        (BOTH, {"image_processor": images | {"image_std": [0.4] * 3}}, ("image_std",)),
        (BOTH, {"image_processor": older | {"max_pixels": 10**6}}, ("'longest_edge': 1000000",)),
        (BOTH, {"video_processor": videos | {"fps": 4}}, ("fps 4.0 and 2.0",)),
        (BOTH, {"image_mean": [0.5] * 3}, ()),
    )
    for number, (file, given, told) in enumerate(cases):
        notes = notes_of(published, folder := tmp_path / str(number), (file, given))
        assert {each.rule for each in notes} == ({"processor-files-differ"} if told else set())
        for text in told:
            assert f"{BOTH}, which counts, and " in notes[0].message
            assert text in notes[0].message
        if "image_processor" in given:
            taken = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
            wanted = given["image_processor"]["image_mean"]
            assert list(taken.image_mean) == wanted
    (note,) = notes_of(published, tmp_path / "flat", (BOTH, {"image_mean": [0.4] * 3}))
    assert f"{IMAGES}, which counts, and {BOTH} have image_mean [0.5, 0.5, 0.5]" in note.message
    taken = transformers.AutoImageProcessor.from_pretrained(tmp_path / "flat", backend="pil")
    assert list(taken.image_mean) == [0.5] * 3
    (note,) = notes_of(published, tmp_path / "x", (VIDEOS, {"image_std": [0.2] * 3}))
    assert note.rule == "processor-files-differ"
    assert "image_std [0.5, 0.5, 0.5] and [0.2, 0.2, 0.2]" in note.message


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "", '{"eos_token_id": "151645"}', '{"eos_token_id": [2, "x"]}'),
        *('{"eos_token_id": [2, 999999]}', '{"eos_token_id": true}', '{"eos_token_id": -1}'),
    ],
)
def test_a_generation_config_without_ends_that_are_tokens_is_refused(
    text: str, published: Path, tmp_path: Path
) -> None:
    shutil.copytree(published, folder := tmp_path / "model")
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(Findings) as caught:
        load_processor(folder, "qwen3_vl")
    (finding,) = caught.value.diagnostics
    assert finding.rule == "model-does-not-load"
    assert "generation_config.json" in finding.message or "eos_token_id" in finding.message


@pytest.mark.parametrize("name", [VIDEOS, BOTH])
@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_processor_file_without_settings_is_refused(
    name: str, text: str, published: Path, tmp_path: Path
) -> None:
    shutil.copytree(published, folder := tmp_path / "model")
    (folder / name).write_text(text)
    with pytest.raises(Findings, match=name) as caught:
        load_processor(folder, "qwen3_vl")
    assert caught.value.diagnostics[0].rule == "model-does-not-load"
