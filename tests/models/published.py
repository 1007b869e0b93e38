"""Folders as published ones are: bfloat16, several files, an index."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def publish(model: Path, folder: Path, **changed: Tensor) -> Path:
    """A folder of one file again, in two of bfloat16, of which one weight is in float32.

    Args:
        changed: tensors by the beginning of a name's last two parts, such as `lm_head_weight`.
    """
    shutil.copytree(model, folder)
    tensors = {name: one.bfloat16() for name, one in load_file(folder / WHOLE).items()}
    wide = next(name for name in tensors if name.endswith("norm.weight"))
    tensors[wide] = tensors[wide].float() + 2**-20  # no bfloat16
    for name in [one for one in tensors if one.replace(".", "_").endswith(tuple(changed))]:
        end = next(end for end in changed if name.replace(".", "_").endswith(end))
        tensors[name] = changed[end].clone()
    if "lm_head_weight" in changed:
        tensors["lm_head.weight"] = changed["lm_head_weight"]
    (folder / WHOLE).unlink()
    return write(folder, tensors)


def write(folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write weights as two files."""
    names = sorted(tensors)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weight_map = {name: files[place % 2] for place, name in enumerate(names)}
    for file in files:
        own = {name: tensors[name].contiguous() for name in names if weight_map[name] == file}
        save_file(own, folder / file, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def untie(folder: Path) -> None:
    """Let a folder's config say that the head is no embedding."""
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))


def as_loaded(folder: Path, kind: type, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The model as transformers loads it."""
    model, report = kind.from_pretrained(  # type: ignore[attr-defined]
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    assert not any(report[one] for one in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    loaded: torch.nn.Module = model
    return loaded
