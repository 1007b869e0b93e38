"""A folder that is too large to be loaded whole, and vLLM's class of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cli.load_check_commands import ROOT, VLLM, load_check, needs_vllm
from tests.loading.large_folder import write_llama

pytestmark = [pytest.mark.full, needs_vllm]
BY_PARTS = "limits.memory_mib=500"
UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two layers in shards of a MiB."""
    folder = tmp_path_factory.mktemp("large") / "healthy"
    write_llama(folder, 2, 256, 512, shard=2**20)
    return folder


def with_tensors(healthy: Path, to: Path, change: Callable[[Tensors], Tensors]) -> Path:
    shutil.copytree(healthy, to)
    index = to / "model.safetensors.index.json"
    names: dict[str, str] = {}
    for file in sorted(to.glob("*.safetensors")):
        tensors = change(load_file(file))
        save_file(tensors, file)
        names |= dict.fromkeys(tensors, file.name)
    index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    return to


def with_config(healthy: Path, to: Path, **values: Any) -> Path:
    shutil.copytree(healthy, to)
    config = json.loads((to / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps(config | values), encoding="utf-8")
    return to


def with_a_ghost(healthy: Path, to: Path) -> Path:
    shutil.copytree(healthy, to)
    index = to / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["model.ghost.weight"] = content["weight_map"][UP]
    index.write_text(json.dumps(content), encoding="utf-8")
    return to


def results(*arguments: str | Path, status: int) -> dict[str, dict[str, Any]]:
    done = load_check(*map(str, arguments), "--python", str(VLLM), "--format", "json", cwd=ROOT)
    assert done.status == status, done.output
    return {Path(one["subject"]).name: one for one in json.loads(done.stdout)["results"]}


def errors(result: dict[str, Any]) -> list[str]:
    told = [one["rule"] for one in result["findings"] if one["severity"] == "error"]
    return [rule for rule in told if rule != "weights-not-of-class"]  # transformers' own word


def test_what_does_not_land_is_found_by_headers(healthy: Path, tmp_path: Path) -> None:
    def renamed(name: str) -> str:
        return name.replace("layers.1.mlp.up_proj", "layers.1.mlp.upper")

    def kept(tensors: Tensors, left_out: str) -> Tensors:
        return {name: one for name, one in tensors.items() if name != left_out}

    def shorter(name: str, one: Tensor) -> Tensor:
        return one[:-8].contiguous() if name == UP else one

    with_tensors(healthy, tmp_path / "no_up", lambda tensors: kept(tensors, UP))
    with_tensors(healthy, tmp_path / "no_norm", lambda tensors: kept(tensors, NORM))
    with_tensors(
        healthy,
        tmp_path / "misnamed",
        lambda tensors: {renamed(name): one for name, one in tensors.items()},
    )
    with_tensors(
        healthy,
        tmp_path / "shape",
        lambda tensors: {name: shorter(name, one) for name, one in tensors.items()},
    )
    with_config(healthy, tmp_path / "more_layers", num_hidden_layers=3)
    with_config(healthy, tmp_path / "qwen2", architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    with_config(healthy, tmp_path / "bert", architectures=["BertModel"], model_type="bert")
    with_config(healthy, tmp_path / "key_heads", num_key_value_heads=1)
    with_config(healthy, tmp_path / "fp8", quantization_config=FP8)
    with_a_ghost(healthy, tmp_path / "ghost")
    found = results(*sorted(tmp_path.iterdir()), BY_PARTS, status=1)
    assert {name: errors(one) for name, one in found.items()} == {
        "no_up": ["partly-written-parameter"],
        "no_norm": ["unwritten-parameter"],
        "misnamed": ["load-failed"],
        "shape": ["load-failed"],
        "more_layers": ["unwritten-parameter"],
        "qwen2": ["unwritten-parameter"],
        "bert": ["load-failed"],
        "key_heads": ["partly-loaded-tensor"],
        "fp8": ["missing-scale"],
        "ghost": ["index-mismatch"],
    }


def test_key_heads_that_the_config_does_not_know_are_found_in_a_folder_that_is_loaded_whole(
    healthy: Path, tmp_path: Path
) -> None:
    with_config(healthy, tmp_path / "key_heads", num_key_value_heads=1)
    found = results(tmp_path / "key_heads", status=1)["key_heads"]
    assert errors(found) == ["partly-loaded-tensor"]
    (finding,) = (one for one in found["findings"] if one["rule"] == "partly-loaded-tensor")
    cut = {f"model.layers.{n}.self_attn.{part}_proj.weight" for n in (0, 1) for part in "kv"}
    assert set(finding["tensors"]) == cut
    assert "[32:64, :] of shape [64, 256]" in finding["message"]


def test_healthy_folders_are_clean_and_every_value_was_compared(
    healthy: Path, tmp_path: Path
) -> None:
    import transformers

    small: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    }
    torch.manual_seed(0)
    for model in (
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, tie_word_embeddings=True)),
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**small, num_local_experts=4)),
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4)),
    ):
        folder = tmp_path / type(model).__name__
        model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="1MB")
    found = results(healthy, *sorted(tmp_path.iterdir()), BY_PARTS, "--strict", status=0)
    assert len(found) == 4
    for one in found.values():
        values = one["details"]["subject"]["values"]
        assert (one["verdict"], one["findings"]) == ("clean", [])
        assert values["loaded"] == "part by part"
        assert values["compared"] == values["tensors"] > 15


def test_a_folder_just_below_the_limit_of_whole_loads_is_not_stopped(tmp_path: Path) -> None:
    write_llama(tmp_path / "model", 9, 512, 32000)  # 121 MiB
    found = results(tmp_path / "model", status=0)["model"]
    reasons = {rule: one["reason"] for rule, one in found["details"].items() if "reason" in one}
    assert reasons.pop("expert-mismatch") == "it has no experts"
    assert list(reasons) == ["computes-differently"]
    assert "more than the 1,536 of limits.memory_mib" in reasons["computes-differently"]
    assert found["verdict"] == "clean"
    assert found["details"]["subject"]["took"]["peak_mib"] < 1536


def test_values_that_do_not_fit_are_not_run_in_verdict_text_and_status(tmp_path: Path) -> None:
    write_llama(tmp_path / "model", 1, 512)
    asked = (str(tmp_path / "model"), BY_PARTS, "--python", str(VLLM))
    found = results(tmp_path / "model", BY_PARTS, "limits.parts_mib=1000", status=0)
    assert found["model"]["verdict"] == "clean"
    assert found["model"]["details"]["subject"]["took"]["peak_mib"] < 1000
    done = load_check(*asked, "limits.parts_mib=600", cwd=ROOT)
    assert done.status == 0, done.output
    assert "files, names, shapes and dtypes clean, values not-run of 2 of 12" in done.stdout
    done = load_check(*asked, "limits.parts_mib=600", "--strict", cwd=ROOT)
    assert done.status == 2
    assert "values not-run of 2 of 12 tensors: one part takes 250 MiB" in done.stderr
    found = results(tmp_path / "model", BY_PARTS, "limits.parts_mib=600", status=0)
    assert found["model"]["verdict"] == "not-run"
    assert found["model"]["checks"]["stale-reference"] == "not-run"
