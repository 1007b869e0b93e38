"""A folder's weights beside its class of transformers: damage is named, healthy ones are clean."""

import json
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.published import WHOLE, publish
from tests.models.tiny import tiny_model
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.weights_of_class import work

Weights = dict[str, Tensor]
V, DOWN, OUT = (
    f"model.language_model.layers.0.{name}.weight"
    for name in ("self_attn.v_proj", "mlp.down_proj", "self_attn.o_proj")
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names") / "model"
    tiny_model("qwen3_vl").save_pretrained(folder)
    return folder


def damaged(saved: Path, into: Path, change: Callable[[Weights], object]) -> Path:
    into.mkdir()
    (into / "config.json").write_text((saved / "config.json").read_text())
    weights = load_file(saved / WHOLE)
    change(weights)
    save_file(weights, into / WHOLE, metadata={"format": "pt"})
    return into


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.pop(V), f"1 is not there, and begins with random values: {V}"),
        (
            lambda one: one.update({OUT: one[OUT][:, :64].contiguous()}),
            f"1 of another shape: {OUT} [128, 64], by the class [128, 128]",
        ),
        (
            lambda one: one.update({DOWN.replace("down", "dwn"): one.pop(DOWN)}),
            f"`{DOWN.replace('down', 'dwn')}` is nearly the name of `{DOWN}`: rename it,",
        ),
        (  # a letter for a number
            lambda one: one.update({DOWN.replace(".0.", ".O."): one.pop(DOWN)}),
            f"`{DOWN.replace('.0.', '.O.')}` is nearly the name of `{DOWN}`: rename it,",
        ),
    ],
)
def test_a_weight_that_the_class_does_not_find_is_named(
    saved: Path, tmp_path: Path, change: Callable[[Weights], object], words: str
) -> None:
    (finding,), measured, judged = work(str(damaged(saved, tmp_path / "m", change)), tmp_path, 0)
    assert judged
    assert measured.endswith("weights of Qwen3VLForConditionalGeneration, by name and shape")
    assert (finding.rule, finding.severity) == ("weights-not-of-class", "error")
    assert words in f"{finding.message} {finding.help}"


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "glm4v"])
def test_the_names_are_the_files_own(name: str, tmp_path: Path) -> None:
    """Published folders have older names, which transformers changes while it reads."""
    tiny_model(name).save_pretrained(tmp_path / "m")
    folder = publish(tmp_path / "m", tmp_path / "published")
    shards = [load_file(file) for file in folder.glob("*.safetensors")]
    save_file(dict(ChainMap(*shards)), folder / WHOLE)
    own = next(
        one for one in load_file(folder / WHOLE) if one.endswith("layers.0.mlp.down_proj.weight")
    )
    mistaken = own.replace(".0.", ".O.").replace("down", "dwn")
    renamed = damaged(folder, tmp_path / "r", lambda one: one.update({mistaken: one.pop(own)}))
    (finding,), _, _ = work(str(renamed), tmp_path, 0)
    assert f"begins with random values: {own};" in finding.message
    assert finding.message.endswith(f"1 that nothing reads: {mistaken}")
    assert finding.help == (
        f"`{mistaken}` is nearly the name of `{own}`: rename it, or save the folder again"
    )


def test_a_weight_that_nothing_reads_is_a_note(saved: Path, tmp_path: Path) -> None:
    """A head of another training may lie beside the weights: the model is whole."""
    more = damaged(saved, tmp_path / "m", lambda one: one.update(reward=torch.ones(2)))
    (finding,), _, _ = work(str(more), tmp_path, 0)
    assert finding.severity == "note"
    assert "1 that nothing reads: reward" in finding.message


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layout", ["whole", "published"])
def test_what_a_family_saves_is_clean(name: str, layout: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    state = load_family(name).save_arguments(model.state_dict())
    model.save_pretrained(tmp_path / "m", **state)
    folder = tmp_path / "m"
    if layout == "published":
        folder = publish(folder, tmp_path / "published")
    found, measured, judged = work(str(folder), tmp_path, 0)
    assert judged, measured
    assert not found
    assert measured.split()[0] == str(sum(1 for _ in model.parameters()))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "nobody_knows"}, "does not load it"),
        ({"model_type": "llama"}, "config.json names no class"),
        ({"model_type": "llama", "architectures": ["MyLlama"]}, "has no class MyLlama"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "no model has"),
    ],
)
def test_a_class_that_cannot_be_asked_is_said_and_not_passed(
    config: dict[str, object], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.ones(1)}, tmp_path / WHOLE, metadata={"format": "pt"})
    found, words, judged = work(str(tmp_path), tmp_path, 0)
    assert not found
    assert not judged
    assert why in words


@pytest.mark.parametrize(
    "kind", ["LlamaForCausalLM", "BertModel", "Gemma3ForConditionalGeneration"]
)
def test_other_classes_are_clean_and_lose_no_weight_unseen(kind: str, tmp_path: Path) -> None:
    small = {
        **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 99},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
    }
    made = getattr(transformers, kind)
    parts = {"text_config": small, "vision_config": {**small, "image_size": 28, "patch_size": 14}}
    config = made.config_class(**(parts if kind.startswith("Gemma3") else small))
    made(config).save_pretrained(tmp_path / "m")
    found, measured, judged = work(str(tmp_path / "m"), tmp_path, 0)
    assert (found, judged) == ([], True), measured
    weights = load_file(tmp_path / "m" / WHOLE)
    name = next(one for one in weights if one.endswith("v_proj.weight") or "value.weight" in one)
    lost = damaged(tmp_path / "m", tmp_path / "lost", lambda one: one.pop(name))
    (finding,), _, _ = work(str(lost), tmp_path, 0)
    assert "1 is not there" in finding.message
