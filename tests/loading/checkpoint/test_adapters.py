"""LoRA adapters: both matrices of each module, their rank, alpha, targets and base."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loading.checkpoint.folders import Entry, encode, f32, folder
from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint import audit_folder

Q, V = "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.layers.1.mlp.v_proj"
Change = Callable[[dict[str, Entry], dict[str, Any]], object]


def adapter(path: Path, change: Change = lambda tensors, config: None) -> Path:
    """Two modules of rank 2, over a base of 8 to 6, as PEFT saves them, and changed."""
    path.mkdir(parents=True)
    base = folder(
        path.parent / "base",
        model={
            "model.layers.0.self_attn.q_proj.weight": f32(6, 8),
            "model.layers.1.mlp.v_proj.weight": f32(6, 8),
            "model.embed_tokens.weight": f32(4, 8),
        },
    )
    tensors = {}
    for seed, module in enumerate((Q, V)):
        tensors[f"{module}.lora_A.weight"] = f32(2, 8, seed=seed)
        tensors[f"{module}.lora_B.weight"] = f32(6, 2, seed=seed + 9)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": str(base),
    }
    change(tensors, config)
    (path / "adapter_model.safetensors").write_bytes(encode(tensors))
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def findings(path: Path) -> list[Diagnostic]:
    return list(audit_folder(path).findings)


def without(name: str) -> Change:
    return lambda tensors, config: tensors.pop(name)


def with_config(**more: Any) -> Change:
    return lambda tensors, config: config.update(more)


def with_tensors(**more: Entry) -> Change:
    return lambda tensors, config: tensors.update(
        {name.replace("__", ".").replace("Q", Q).replace("V", V): one for name, one in more.items()}
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, config: None,
        with_config(target_modules=".*_proj"),
        with_config(base_model_name_or_path="some/model"),
        with_config(bias="all", modules_to_save=["score"]),
        with_tensors(base_model__model__score__weight=f32(2, 8)),
    ],
)
def test_a_healthy_adapter_is_clean(change: Change, tmp_path: Path) -> None:
    result = audit_folder(adapter(tmp_path / "adapter", change))
    assert result.verdict == "clean"
    assert result.findings == ()
    assert result.details["adapter-mismatch"]["measured"].startswith("2 modules")


def test_a_rank_of_its_own_is_that_of_the_pattern(tmp_path: Path) -> None:
    def change(tensors: dict[str, Entry], config: dict[str, Any]) -> None:
        tensors[f"{Q}.lora_A.weight"], tensors[f"{Q}.lora_B.weight"] = f32(3, 8), f32(6, 3)
        config["rank_pattern"] = {"q_proj": 3}

    assert findings(adapter(tmp_path / "adapter", change)) == []


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        (without(f"{Q}.lora_B.weight"), "error", "1 of 2 modules have lora_A and no lora_B"),
        (without(f"{V}.lora_A.weight"), "error", "1 of 2 modules have lora_B and no lora_A"),
        (with_config(r=4), "error", "the rank of 2 of 2 modules"),
        (with_tensors(Q__lora_B__weight=f32(6, 3)), "error", "the rank of 1 of 2 modules"),
        (with_config(lora_alpha=0), "error", "lora_alpha 0"),
        (with_config(lora_alpha=None), "error", "no lora_alpha"),
        (with_config(target_modules=["q_proj"]), "error", "are no target"),
        (with_config(target_modules=["q_proj", "v_proj", "o_proj"]), "warning", "of o_proj"),
        (with_config(base_model_name_or_path=None), "warning", "names no base_model"),
        (lambda tensors, config: tensors.clear(), "error", "no tensor of the adapter"),
    ],
)
def test_each_wrong_adapter_has_one_finding(
    change: Change, severity: str, words: str, tmp_path: Path
) -> None:
    found = [
        one
        for one in findings(adapter(tmp_path / "adapter", change))
        if one.rule == "adapter-mismatch"
    ]
    assert [(one.severity, words in one.message) for one in found] == [(severity, True)]


@pytest.mark.parametrize("pattern", [0.5, [3], "q_proj"])
def test_a_pattern_of_ranks_that_is_no_object_is_none(pattern: object, tmp_path: Path) -> None:
    assert findings(adapter(tmp_path / "adapter", with_config(rank_pattern=pattern))) == []


def test_an_adapter_without_its_config_is_an_error(tmp_path: Path) -> None:
    path = adapter(tmp_path / "adapter")
    (path / "adapter_config.json").unlink()
    assert "adapter-mismatch" in {one.rule for one in findings(path) if one.severity == "error"}


def test_an_adapter_of_zeros_changes_nothing(tmp_path: Path) -> None:
    zeros: Entry = ("F32", (6, 2), np.zeros((6, 2), np.float32).tobytes())
    change = with_tensors(Q__lora_B__weight=zeros, V__lora_B__weight=zeros)
    (finding,) = findings(adapter(tmp_path / "adapter", change))
    assert (finding.rule, finding.severity) == ("all-zero-weight", "warning")
    assert "before the first step of training" in finding.message
    no_a: Entry = ("F32", (2, 8), np.zeros((2, 8), np.float32).tobytes())
    never = with_tensors(Q__lora_A__weight=no_a, V__lora_A__weight=no_a)
    (finding,) = findings(adapter(tmp_path / "never" / "adapter", never))
    assert (finding.rule, finding.severity) == ("all-zero-weight", "error")
    more = with_tensors(
        Q__lora_B__weight=zeros, V__lora_B__weight=zeros, base_model__model__score__weight=f32(2, 8)
    )
    assert findings(adapter(tmp_path / "more" / "adapter", more)) == []
    one = with_tensors(Q__lora_B__weight=zeros)
    assert findings(adapter(tmp_path / "other" / "adapter", one)) == []
