"""Classes of vLLM 0.32.0 and SGLang 0.5.23 whose defects were called clean, or a note, once."""

import pytest

from tests.cli.load_check_commands import SGLANG, VLLM, needs_sglang, needs_vllm, results

OF_VLLM = {
    "LagunaForCausalLM": ("never-loaded", "e_score_correction_bias"),
    "ColPaliForRetrieval": ("unconsumed-tensor", "embedding_proj_layer.bias"),
    "ColQwen3": ("unconsumed-tensor", "custom_text_proj.bias"),
    "OpsColQwen3Model": ("unconsumed-tensor", "custom_text_proj.bias"),
    "DeepseekV32ForCausalLM": ("quantised-load", "wk_weights_proj.weight"),
    "GlmMoeDsaForCausalLM": ("quantised-load", "wk_weights_proj.weight"),
    "MolmoForCausalLM": ("stale-reference", "model.embed_tokens.weight"),
}
OF_SGLANG = {
    "Llama4ForCausalLM": ("never-loaded", "experts.w2_weight"),
    "GlmImageForConditionalGeneration": ("never-loaded", "mlp.linear_fc1.weight"),
    "TransformersMultiModalMoEForCausalLM": ("never-loaded", "experts.w2_weight"),
}
RENAMED_TWIN = "Cosmos3EdgeForConditionalGeneration"
"""Was called unsafe for tensors of a twin that load-check had renamed itself."""


def check(found: dict[str, dict], known: dict[str, tuple[str, str]]) -> None:  # type: ignore[type-arg]
    """Assert that each class has an error of its rule, about its parameter or tensor."""
    for name, (rule, about) in known.items():
        assert found[name]["verdict"] == "unsafe", name
        errors = [
            (one["rule"], one["message"])
            for one in found[name]["findings"]
            if one["severity"] == "error"
        ]
        assert any(rule == of and about in message for of, message in errors), (name, errors)


@pytest.mark.full
@needs_vllm
def test_each_known_defect_of_vllm_is_an_error_of_its_rule() -> None:
    names = [f"vllm:{name}" for name in OF_VLLM]
    check(results(*names, "--python", str(VLLM), status=1), OF_VLLM)


@pytest.mark.full
@needs_sglang
def test_each_known_defect_of_sglang_is_an_error_of_its_rule() -> None:
    names = [f"sglang:{name}" for name in (*OF_SGLANG, RENAMED_TWIN)]
    found = results(*names, "--python", str(SGLANG), status=1)
    check(found, OF_SGLANG)
    about_tensors = ("never-loaded", "unconsumed-tensor", "unwritten-parameter", "wrong-place")
    assert {rule: found[RENAMED_TWIN]["checks"][rule] for rule in about_tensors} == dict.fromkeys(
        about_tensors, "passed"
    )
