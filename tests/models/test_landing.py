"""An adapter lands where peft loads all of it into the class of its base; else nothing computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.commands import run_vtool, vtool
from vtool.diagnostics import Findings
from vtool.models.adapters import CONFIG, WEIGHTS
from vtool.models.landing import check_landing, judge_landing

Tensors = dict[str, Tensor]
IDS = torch.tensor([[1, 5, 9, 30]])
LAYERS = "base_model.model.model.layers"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing") / "base"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).save_pretrained(folder)
    return folder


def trained(base: Path, folder: Path, **settings: Any) -> Path:
    """An adapter of peft's own, each tensor of it drawn: as if it had been trained."""
    given: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"], **settings}
    model = get_peft_model(Qwen2ForCausalLM.from_pretrained(base), LoraConfig(**given))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def changed(folder: Path, change: Callable[[Tensors], Tensors], **config: Any) -> Path:
    """Give an adapter other tensors, and other values in its config."""
    tensors = {name: one.clone() for name, one in change(load_file(folder / WEIGHTS)).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    written = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(written | config))
    return folder


def renamed(old: str, new: str, only: str = "") -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name.replace(old, new) if only in name else name: one for name, one in tensors.items()
    }


def zeroed(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: one * 0 if part in name else one for name, one in tensors.items()}


def same(tensors: Tensors) -> Tensors:
    return tensors


def moves(base: Path, folder: Path) -> float:
    """The distance of stock peft's logits with the adapter from the base's."""
    model = Qwen2ForCausalLM.from_pretrained(base)
    with torch.no_grad():
        plain = model(IDS).logits
        adapted = PeftModel.from_pretrained(model, str(folder))(IDS).logits
    return float((plain - adapted).abs().max())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"trainable_token_indices": [3, 7]},
        {"target_modules": "all-linear", "exclude_modules": ["v_proj"]},
        {"target_modules": r".*layers\.1\..*q_proj"},
        {"layers_to_transform": [1]},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 16}},
        {"target_modules": [], "target_parameters": ["q_proj.weight"]},
    ],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_what_peft_writes_lands(base: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(base, tmp_path / "adapter", **settings)
    landing = check_landing(folder, base)
    assert landing.in_words().startswith(f"peft loads {landing.tensors} of {landing.tensors} ")
    assert not landing.idle
    assert moves(base, folder) > 1e-4


def test_names_with_the_name_of_the_adapter_land(base: Path, tmp_path: Path) -> None:
    folder = trained(base, tmp_path / "adapter")
    assert check_landing(changed(folder, renamed(".weight", ".default.weight")), base)
    assert moves(base, folder) > 1e-4


@pytest.mark.parametrize(
    ("change", "config", "words"),
    [
        (renamed("model.layers", "layers"), {}, "loads 0 of 8 tensors"),
        (renamed("model.layers", "language_model.layers"), {}, "loads 0 of 8 tensors"),
        (renamed("base_model.model.", "base_model.model.module."), {}, "loads 0 of 8 tensors"),
        (renamed("base_model.model.", ""), {}, "loads 0 of 8 tensors"),
        (renamed("model.layers", "backbone.layers", ".layers.0."), {}, "loads 4 of 8 tensors"),
        (renamed("layers.1", "layers.7"), {}, "has no model.layers.7.self_attn.q_proj"),
        (
            lambda tensors: {name: one for name, one in tensors.items() if ".layers.0." in name},
            {},
            "has them of other layers: model.layers.1.self_attn.q_proj",
        ),
        (same, {"r": 8}, "size mismatch"),
        (same, {"target_modules": ["qkv"]}, "does not load"),
        (same, {"modules_to_save": ["lm_head"]}, "does not load"),
        (zeroed("lora_A"), {}, "each lora_A is all zero"),
    ],
)
def test_what_does_not_land_is_an_error(
    base: Path, change: Callable[[Tensors], Tensors], config: Any, words: str, tmp_path: Path
) -> None:
    folder = changed(trained(base, tmp_path / "adapter"), change, **config)
    with pytest.raises(Findings) as raised:
        check_landing(folder, base)
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.severity) == ("adapter-mismatch", "error")
    assert words in finding.message


def test_the_beginning_that_the_base_has_is_named(base: Path, tmp_path: Path) -> None:
    folder = trained(base, tmp_path / "adapter")
    changed(folder, renamed("model.model.layers", "model.text.layers"))
    (finding,) = judge_landing(folder, base).findings()
    assert "rename `text.` to `model.`" in (finding.help or "")


def test_a_new_adapter_lands_and_adds_nothing(base: Path, tmp_path: Path) -> None:
    folder = trained(base, tmp_path / "adapter")
    assert check_landing(changed(folder, zeroed("lora_B")), base).idle
    assert moves(base, folder) == 0
    saved = trained(base, tmp_path / "saved", modules_to_save=["lm_head"])
    assert not check_landing(changed(saved, zeroed("lora_B")), base).idle
    assert moves(base, saved) > 1e-4


@pytest.fixture
def here(base: Path, tmp_path: Path) -> Path:
    return trained(base, tmp_path / "adapter")


def test_load_check_says_what_lands_and_what_does_not(base: Path, here: Path) -> None:
    command = ("load-check", here.name)
    assert "peft loads 8 of 8 tensors into Qwen2ForCausalLM" in vtool(here.parent, *command)
    changed(here, renamed("model.layers", "language_model.layers"))
    done = run_vtool(here.parent, *command)
    assert (done.status, "adapter-mismatch" in done.stdout) == (1, True)


def test_load_check_of_an_adapter_whose_base_is_not_here_is_not_run(here: Path) -> None:
    changed(here, same, base_model_name_or_path="some/model")
    done = run_vtool(here.parent, "load-check", here.name, "--format", "json")
    (result,) = json.loads(done.stdout)["results"]
    assert (result["verdict"], result["checks"]["adapter-mismatch"]) == ("not-run", "not-run")
    assert "some/model, which is not there" in result["details"]["adapter-mismatch"]["reason"]
    assert result["findings"] == []
