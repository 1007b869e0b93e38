"""`vtool load-check vllm:CLASS`, as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.cli.load_check_commands import VLLM, load_check, needs_vllm, results
from vtool.diagnostics.rules_loading import FRAMEWORK_CLASS_RULES
from vtool.loading.probe.formats import FORMATS_BY_NAME

UNSAFE = {
    "BertModel": "weights_list = list(weights)",
    "ColPaliForRetrieval": "weights_list = list(weights)",
    "Llama4ForConditionalGeneration": "other_weights.append((renamed, weight))",
}
"""The classes that vllm#42244 was followed by, each with the line that keeps tensors, in 0.32."""
CLEAN = (
    "LlamaForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3MoeForCausalLM",
    "MixtralForCausalLM",
    "Gemma3ForCausalLM",
    "WhisperForConditionalGeneration",
    "NemotronH_Nano_VL_V2",
)
REAL = "sources=[owned,reusable_buffer,bucketed,shuffled,runai,runai_distributed]"


@pytest.fixture(scope="module")
def of_vllm() -> dict[str, object]:
    """Ten classes by one command: importing vLLM takes longer than judging a class."""
    return results(
        *(f"vllm:{name}" for name in (*UNSAFE, *CLEAN)), REAL, "--python", str(VLLM), status=1
    )


@pytest.mark.full
@needs_vllm
def test_of_ten_classes_of_vllm_the_three_known_ones_are_found_with_their_lines(
    of_vllm: dict[str, object],
) -> None:
    found = of_vllm
    assert {name: found[name]["verdict"] for name in found} == dict.fromkeys(
        UNSAFE, "unsafe"
    ) | dict.fromkeys(CLEAN, "clean")
    for name, line in UNSAFE.items():
        finding = next(
            each for each in found[name]["findings"] if each["rule"] == "stale-reference"
        )
        origin = finding["origin"]
        assert Path(origin["file"]).read_text().splitlines()[origin["line"] - 1].strip() == line
        detail = found[name]["details"]["stale-reference"]
        assert "model.load_weights" in detail["reachable_via"]
        assert "load_format=safetensors" in detail["protected_by"]
    # what generates
    assert found["LlamaForCausalLM"]["details"]["subject"]["class"].endswith(
        ".llama.LlamaForCausalLM"
    )
    reasons = [found[name]["details"]["stale-reference"].get("reason", "") for name in found]
    if any("No module" in reason for reason in reasons):
        pytest.skip("the environment has no Run:ai streamer")
    wrong = {
        name: found[name]["details"]["stale-reference"]["measured"]["sources"] for name in found
    }
    for name, sources in wrong.items():
        for source in (sources["runai"], *sources["runai_distributed"].split(", ")):
            count = int(source.split(": ")[-1].split()[0])
            assert (count > 0) == (name in UNSAFE), (name, sources)


@pytest.mark.full
@needs_vllm
def test_classes_of_vllm_are_asked_on_ranks_quantized_and_processed(
    of_vllm: dict[str, object],
) -> None:
    for name in ("LlamaForCausalLM", "Qwen3MoeForCausalLM"):
        states = {rule: of_vllm[name]["checks"][rule] for rule in FRAMEWORK_CLASS_RULES}
        without_experts = {"expert-mismatch": "not-run"} if name == "LlamaForCausalLM" else {}
        assert states == dict.fromkeys(FRAMEWORK_CLASS_RULES, "passed") | without_experts
    reason = of_vllm["LlamaForCausalLM"]["details"]["expert-mismatch"]["reason"]
    assert reason == "it has no experts"
    assert of_vllm["LlamaForCausalLM"]["details"]["quantised-load"]["measured"] == {
        "quantised_tensors": 14,
        "formats": {"fp8-channel": {"quantised_tensors": 14, "layers": 14, "followed": 8}},
    }
    assert of_vllm["LlamaForCausalLM"]["details"]["shard-mismatch"]["measured"]["parted"] > 0


@pytest.mark.full
@needs_vllm
def test_what_vllm_reloads_for_one_check_is_not_shared_with_the_models_of_another() -> None:
    rules = "checks=[stale-reference,shard-mismatch]"
    of_class = "Eagle3DeepseekV2ForCausalLM"
    found = results(f"vllm:{of_class}", rules, "--python", str(VLLM), status=1)[of_class]
    assert found["checks"] == {"stale-reference": "failed", "shard-mismatch": "passed"}


@pytest.mark.full
@needs_vllm
def test_a_class_of_vllm_with_experts_is_followed_in_each_format() -> None:
    of_formats = [
        "checks=[quantised-load]",
        f"formats=[{','.join(map(json.dumps, FORMATS_BY_NAME))}]",
    ]
    done = load_check(
        "vllm:Qwen3MoeForCausalLM", *of_formats, "--python", str(VLLM), "--format", "json"
    )
    (found,) = json.loads(done.stdout)["results"]
    detail = found["details"]["quantised-load"]
    formats = detail["measured"]["formats"]
    assert found["findings"] == []
    assert found["checks"]["quantised-load"] == "not-run"
    assert detail["reason"].startswith("bitsandbytes: ")
    assert "Unknown quantization method" in formats.pop("bitsandbytes")["not_run"]
    # q, k and v, then o, and of four experts two matrices, in two layers
    assert {name: (one["layers"], one["followed"]) for name, one in formats.items()} == (
        dict.fromkeys(formats, (32, 8))
    )


@pytest.mark.soak
@needs_vllm
def test_a_real_loader_finds_what_a_ring_of_more_buffers_does_not() -> None:
    of_runai = ["slots=50", "sources=[owned,reusable_buffer,runai]", "checks=[stale-reference]"]
    done = load_check("vllm:BertModel", *of_runai, "--python", str(VLLM), "--format", "json")
    (found,) = json.loads(done.stdout)["results"]
    if "No module" in found["details"]["stale-reference"].get("reason", ""):
        pytest.skip("the environment has no Run:ai streamer")
    assert found["verdict"] == "unsafe"
    assert "read by runai, 20 tensors have other values" in found["findings"][0]["message"]
