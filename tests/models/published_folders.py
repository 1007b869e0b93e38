"""Folders with the files, settings and names of weights that families are published with.

Fields and files are those of the models' pages at the time of their release; sizes are tiny.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.models.published import INDEX, WHOLE, write
from tests.models.templates import TEMPLATES
from vtool.config.schema import Image, Model
from vtool.families.family import load_family
from vtool.models.processor import new_processor

_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
_ALL = ("config.json", "generation_config.json", "preprocessor_config.json", *_SHARDS)


@dataclass(frozen=True)
class Published:
    """The files and settings that one family is published with."""

    family: str
    template: str
    """A name of `TEMPLATES`, whose images are then written as the family writes them."""
    template_file: str
    images: Mapping[str, Any]
    """preprocessor_config.json"""
    videos: Mapping[str, Any] | None = None
    """video_preprocessor_config.json"""
    flat: bool = False
    """config.json has the language model's fields at its top, as before transformers 4.52."""
    old_names: tuple[tuple[str, str], ...] = ()
    more_weights: tuple[str, ...] = ()
    """Weights that transformers does not read, as the multi-token prediction of Qwen3.5."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    untied: bool = True

    @property
    def files(self) -> set[str]:
        """The names of all files."""
        videos = {"video_preprocessor_config.json"} if self.videos is not None else set()
        return {*_ALL, *_TOKENIZER, self.template_file, *videos}


PUBLISHED = {
    "Qwen2.5-VL": Published(
        "qwen2_5_vl",
        "qwen2_5",
        "chat_template.json",
        {
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_CLIP,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
        },
        flat=True,
        old_names=(
            (r"^model\.language_model\.", "model."),
            (r"^model\.visual\.", "visual."),
        ),
        generation={"do_sample": True, "repetition_penalty": 1.05, "temperature": 1e-6},
    ),
    "Qwen3-VL": Published(
        "qwen3_vl",
        "qwen2_5",
        "chat_template.json",
        {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_HALF,
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        {
            "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_HALF,
            "processor_class": "Qwen3VLProcessor",
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
        generation={"do_sample": True, "top_p": 0.8, "top_k": 20, "temperature": 0.7},
    ),
    "Qwen3.5": Published(
        "qwen3_5",
        "qwen3_5",
        "chat_template.jinja",
        {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_HALF,
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        {
            "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_HALF,
            "processor_class": "Qwen3VLProcessor",
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
        more_weights=("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight", "mtp.norm.weight"),
        generation={"do_sample": True, "top_p": 0.95, "top_k": 20},
        untied=False,
    ),
    "GLM-4.1V": Published(
        "glm4v",
        "glm",
        "chat_template.jinja",
        {
            "size": {"shortest_edge": 12544, "longest_edge": 9633792},
            "do_rescale": True,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_CLIP,
            "image_processor_type": "Glm4vImageProcessor",
            "processor_class": "Glm4vProcessor",
        },
        {
            "size": {"shortest_edge": 12544, "longest_edge": 47040000},
            "do_rescale": True,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **_CLIP,
            "video_processor_type": "Glm4vVideoProcessor",
            "processor_class": "Glm4vProcessor",
        },
        generation={"do_sample": True, "top_p": 0.6, "temperature": 0.8, "top_k": 2},
    ),
}
_TEXTS = ["What is this? It is a red disc.", "Where is the cat? On the table."] * 9


def publish_family(name: str, folder: Path) -> Path:
    """Write a folder as a family is published, with random weights in bfloat16."""
    one = PUBLISHED[name]
    family = load_family(one.family)
    processor = new_processor(Model(family=one.family, size="tiny"), Image(), _TEXTS)
    tokenizer, names = processor.tokenizer, family.facts.token_names
    image = f"{names.vision_start}{names.image}{names.vision_end}"
    tokenizer.chat_template = TEMPLATES[one.template].replace("<image>", image)
    marks = set(re.findall(r"<\|\w+\|>|\[gMASK\]<sop>|</?think>", tokenizer.chat_template))
    tokenizer.add_tokens(sorted(mark for mark in marks if "|" in mark), special_tokens=True)
    ends = [tokenizer.eos_token_id]
    if one.template == "glm":
        ends.append(tokenizer.convert_tokens_to_ids("<|user|>"))
    config = family.random_config("tiny", len(tokenizer) + 64, processor.ids)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = not one.untied
    torch.manual_seed(0)
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, **family.save_arguments(model.state_dict()))
    tokenizer.save_pretrained(folder)
    _rename(folder, one)
    _write_config(folder, one)
    _write(folder / "preprocessor_config.json", one.images)
    if one.videos is not None:
        _write(folder / "video_preprocessor_config.json", one.videos)
    generation = {"eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id, **one.generation}
    _write(folder / "generation_config.json", generation)
    own = json.loads((folder / "tokenizer.json").read_text())["model"]
    _write(folder / "vocab.json", own["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in own["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    if one.template_file.endswith("json"):
        (folder / "chat_template.jinja").unlink()
        _write(folder / one.template_file, {"chat_template": tokenizer.chat_template})
    assert {file.name for file in folder.iterdir()} == one.files
    return folder


def _rename(folder: Path, one: Published) -> None:
    tensors = {}
    for own, tensor in load_file(folder / WHOLE).items():
        name = own
        for pattern, old in one.old_names:
            name = re.sub(pattern, old, name)
        tensors[name] = tensor
    tensors |= {name: torch.ones(8, dtype=torch.bfloat16) for name in one.more_weights}
    (folder / WHOLE).unlink()
    write(folder, tensors)


def _write_config(folder: Path, one: Published) -> None:
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    config["torch_dtype"] = config.pop("dtype", "bfloat16")
    if one.flat:
        del config["text_config"]
        rope = text.pop("rope_parameters")
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        text["rope_theta"] = rope["rope_theta"]
        config = text | config
        vision = config["vision_config"]
        vision["in_chans"] = vision.pop("in_channels")
        vision["spatial_patch_size"] = vision["patch_size"]
        for each in ("model_type", "rope_parameters"):
            vision.pop(each)
        config["rope_scaling"]["type"] = "mrope"
    config["transformers_version"] = "4.41.2"
    _write(folder / "config.json", config)


def _write(file: Path, settings: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def copy_without(folder: Path, into: Path, *names: str) -> Path:
    """Copy a folder without some of its files."""
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns(*names))
    return into
