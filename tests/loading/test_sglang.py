"""SGLang's classes, where `make sglang-env` has built what they need."""

import os
from pathlib import Path

import pytest

from tests.cli.test_load_check import results

ENVIRONMENT = Path(__file__).parents[2] / ".vllm-venv"
BUILT = str(ENVIRONMENT / "bin/python") if (ENVIRONMENT / "sglang").exists() else None
SGLANG = os.environ.get("VTOOL_SGLANG_PYTHON") or BUILT

pytestmark = pytest.mark.skipif(SGLANG is None, reason="`make sglang-env` builds what it needs")


def test_a_class_that_copies_is_clean_and_those_that_keep_are_named_with_their_line() -> None:
    names = ("LlamaForCausalLM", "Qwen2ForRewardModel", "WhisperForConditionalGeneration")
    found = results(*(f"sglang:{name}" for name in names), "--python", str(SGLANG), status=1)
    llama, reward, whisper = (found[name] for name in names)
    assert llama["verdict"] == "clean"
    for judged, text in ((reward, "(name, w) for name, w in weights"), (whisper, "dict(weights)")):
        (stale,) = (finding for finding in judged["findings"] if finding["rule"] == "stale-reference")
        line = Path(stale["origin"]["file"]).read_text().splitlines()[stale["origin"]["line"] - 1]
        assert text in line
        # The mark of SGLang's own Run:ai loader does not help a class that does not look at it.
        assert "load_format=runai_streamer" in judged["details"]["stale-reference"]["reachable_via"]


def test_no_such_class_is_told_with_near_names() -> None:
    assert SGLANG is not None
    (judged,) = results("sglang:LlamaForCausalML", "--python", SGLANG, status=2).values()
    assert "`sglang:LlamaForCausalLM`" in judged["findings"][0]["help"]
