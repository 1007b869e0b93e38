"""Outputs of a class, against transformers' class; and of frameworks' classes, in theirs."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cli.load_check_commands import (
    ROOT,
    SGLANG,
    VLLM,
    needs_sglang,
    needs_vllm,
    results,
)
from vtool.loading.probe.errors import NotRun
from vtool.loading.probe.facts import About, CheckFacts, Item, SubjectFacts
from vtool.loading.probe.twin import TWIN_FOLDER, save_twin
from vtool.loading.probe.twin_outputs import Outputs, Twin, compare_outputs
from vtool.loading.verdict import judge

NAME = "Qwen2ForCausalLM"
RULE = "computes-differently"
GEMMA2 = "Gemma2ForCausalLM"
NO_SOFT_CAP = "SGLang's attention in torch has no soft cap; its kernels for GPUs have"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twin")
    save_twin(NAME, {}, folder, NAME)
    return folder / TWIN_FOLDER


def changed(saved: Path, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Twin:
    """The twin with other weights."""
    (folder / "config.json").write_text((saved / "config.json").read_text())
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Twin(NAME, folder)


def compare(own: Outputs, twin: Twin, tokens: Tensor) -> CheckFacts:
    expected = twin.outputs(tokens)
    return compare_outputs(own, expected, roundings(twin, tokens, expected))


def roundings(twin: Twin, tokens: Tensor, expected: Outputs) -> dict[str, float]:
    return twin.roundings(lambda: twin.outputs(tokens), expected)


def in_float64(twin: Twin, tokens: Tensor) -> Tensor:
    return twin.model.double()(input_ids=tokens[None]).logits[0].detach()


def test_the_same_weights_computed_otherwise_are_within_their_rounding(saved: Path) -> None:
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    facts = compare({"logits": in_float64(Twin(NAME, saved), tokens)}, twin, tokens)
    assert not facts.items
    assert facts.measured["compared"] == "logits"
    assert facts.measured["distance"] < 1e-5 < facts.measured["rounding"] < 0.2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight"),
        ("layers.1.input_layernorm.weight", "layers.1.post_attention_layernorm.weight"),
        ("layers.0.self_attn.k_proj.bias", "layers.1.self_attn.k_proj.bias"),
        ("layers.0.self_attn.o_proj.weight", "layers.1.self_attn.o_proj.weight"),
    ],
)
def test_two_weights_of_one_shape_that_are_exchanged_are_found(
    saved: Path, tmp_path: Path, one: str, other: str
) -> None:
    def exchange(tensors: dict[str, Tensor]) -> None:
        names = [f"model.{name}" for name in (one, other)]
        tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]

    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    own = {"logits": changed(saved, tmp_path, exchange).outputs(tokens)["logits"]}
    (item,) = compare(own, twin, tokens).items
    assert item.kind == "differs"
    assert str(item.seen).startswith("logits that are ")


def test_rounding_leaves_the_weights_as_they_were(saved: Path) -> None:
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    before = twin.outputs(tokens)
    roundings(twin, tokens, before)
    assert torch.equal(twin.outputs(tokens)["logits"], before["logits"])


def test_no_token_of_the_text_has_a_meaning(saved: Path, tmp_path: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    # all but two are special
    config |= {"eos_token_id": list(range(1000)), "image_token_id": 1000}
    config["vision"] = {"video_token_ids": list(range(1001, 1022))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(saved / "model.safetensors"), tmp_path / "model.safetensors")
    assert set(Twin(NAME, tmp_path).tokens().tolist()) == {1022, 1023}


def test_what_cannot_be_compared_is_not_run(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(NotRun, match="transformers has no NoSuchClass"):
        Twin("NoSuchClass", saved)
    with pytest.raises(NotRun, match=r"finds no model\.norm\.weight"):
        changed(saved, tmp_path, lambda tensors: tensors.__delitem__("model.norm.weight"))
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    with pytest.raises(NotRun, match="its twin has no scores"):
        compare({"scores": torch.zeros(12, 4)}, twin, tokens)
    with pytest.raises(NotRun, match=r"its logits have shape \[3, 4\], its twin's \[12, 1024\]"):
        compare({"logits": torch.zeros(3, 4)}, twin, tokens)


def test_what_another_rule_explains_is_said_once() -> None:
    measured = {"compared": "logits", "distance": 0.9, "rounding": 0.05}
    lost = CheckFacts((Item("differs", tensors=("lm_head.weight",)),))
    checks = {"unconsumed-tensor": lost, RULE: CheckFacts((Item("differs"),), measured)}
    judged = judge("DIR", SubjectFacts("judged", checks=checks), ("unconsumed-tensor", RULE))
    assert [one.rule for one in judged.findings] == ["unconsumed-tensor"]
    assert judged.checks[RULE] == "not-run"
    reason = "unconsumed-tensor says why it computes something else"
    assert judged.details[RULE] == {"reason": reason}


def test_between_two_roundings_nothing_is_said(saved: Path) -> None:
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    right = twin.outputs(tokens)["logits"]
    near = right + 0.02 * right.norm() / right.numel() ** 0.5
    with pytest.raises(NotRun, match="further than float32 rounds"):
        compare({"logits": near}, twin, tokens)


def test_logits_that_are_multiplied_are_distinguished(saved: Path) -> None:
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    facts = compare({"logits": twin.outputs(tokens)["logits"] / 16}, twin, tokens)
    assert facts.measured["times"] == pytest.approx(1 / 16)
    assert facts.measured["distance"] == pytest.approx(15 / 16)
    about = About(like=NAME, own_twin=True)
    judged = SubjectFacts("judged", origin="twin", about=about, checks={RULE: facts})
    (finding,) = judge("vllm:X", judged, (RULE,)).findings
    assert finding.severity == "warning"
    assert finding.message.endswith("they are those times 0.0625")


def test_numbers_that_are_none_are_found(saved: Path) -> None:
    twin = Twin(NAME, saved)
    tokens = twin.tokens()
    own = {"logits": torch.full((12, 1024), float("nan"))}
    assert compare(own, twin, tokens).items


@pytest.mark.parametrize(
    ("about", "origin", "severity"),
    [
        (About(like=NAME, own_twin=True), "twin", "error"),
        (About(like="LlamaForCausalLM"), "twin", "note"),
        (About(served=True), "given", "error"),
    ],
)
def test_only_a_class_that_is_its_twins_is_accused(
    about: About, origin: str, severity: str
) -> None:
    measured = {"compared": "logits", "distance": 0.9, "rounding": 0.05}
    check = CheckFacts((Item("differs", expected="a", seen="b"),), measured)
    facts = SubjectFacts("judged", origin=origin, about=about, checks={RULE: check})
    (finding,) = judge("vllm:X", facts, (RULE,)).findings
    assert finding.severity == severity
    assert "its logits are 0.9 from those of transformers'" in finding.message
    same = replace(facts, checks={RULE: CheckFacts((), measured)})
    assert judge("vllm:X", same, (RULE,)).checks == {RULE: "passed"}


def compared(python: str, host: str, *asked: str) -> list[dict[str, Any]]:
    """Return the outputs of each class, in the framework's interpreter; see `exchanged_loader`."""
    command = [python, "-m", "tests.loading.exchanged_loader", host, *asked]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line[:5] == "FACTS"]
    assert len(lines) == len(asked), done.stdout + done.stderr[-2000:]
    return [json.loads(line) for line in lines]


@pytest.mark.full
@needs_vllm
def test_a_loader_of_vllm_that_exchanges_two_weights_is_found() -> None:
    asked = {
        "Qwen2ForCausalLM": False,
        "Qwen2ForCausalLM gate_proj up_proj": True,
        "Gemma2ForCausalLM": False,
        "Gemma2ForCausalLM pre_feedforward_layernorm post_attention_layernorm": True,
        "MixtralForCausalLM": False,
        "MixtralForCausalLM .w1. .w3.": True,
        "BertModel": False,
        "BertModel attention.self.query attention.self.key": True,
    }
    found = compared(str(VLLM), "vllm", *asked)
    assert [bool(facts["items"]) for facts in found] == list(asked.values()), found


@pytest.mark.full
@needs_sglang
def test_a_loader_of_sglang_that_exchanges_two_weights_is_found() -> None:
    asked = {
        "Qwen2ForCausalLM": False,
        "Qwen2ForCausalLM gate_proj up_proj": True,
        "Qwen3MoeForCausalLM": False,
        "Qwen3MoeForCausalLM q_norm k_norm": True,
        "MixtralForCausalLM .w1. .w3.": True,
        "DeepseekV3ForCausalLM": False,
        "Qwen3Model": False,
        "Qwen3Model input_layernorm post_attention_layernorm": True,
    }
    found = compared(str(SGLANG), "sglang", *asked)
    assert [bool(facts["items"]) for facts in found] == list(asked.values()), found
    compared_outputs = [facts["measured"]["compared"] for facts in found[-3:]]
    assert compared_outputs == ["logits", "hidden states", "hidden states"]
    # as far apart as float32 rounds
    assert all(facts["measured"]["distance"] < 1e-5 for facts in found if not facts["items"])


@pytest.mark.full
@needs_sglang
def test_of_sglang_what_cannot_be_compared_is_not_run_and_what_differs_is_found() -> None:
    no_cap, no_sinks, no_head = GEMMA2, "GptOssForCausalLM", "GlmAsrForConditionalGeneration"
    no_bias = "GPTJForCausalLM"  # its head's bias is loaded, and SGLang's LogitsProcessor has none
    names = (NAME, no_cap, no_sinks, no_head, no_bias)
    asked = (f"checks=[{RULE}]", "--python", str(SGLANG))
    found = results(*(f"sglang:{name}" for name in names), *asked, status=1)
    states = {name: found[name]["checks"][RULE] for name in names}
    assert states == dict.fromkeys(names, "not-run") | {NAME: "passed", no_bias: "failed"}
    reasons = {name: found[name]["details"][RULE].get("reason", "") for name in names}
    assert reasons[no_cap] == NO_SOFT_CAP
    assert "'sinks'" in reasons[no_sinks]
    assert reasons[no_head].endswith("no tensor is loaded into language_model.lm_head.weight")
    assert found[NAME]["details"]["subject"]["oracle"].endswith("and its logits")
    (finding,) = found[no_bias]["findings"]
    assert "its logits are 0.12 from those of transformers' GPTJForCausalLM" in finding["message"]
