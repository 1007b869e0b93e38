"""SGLang's classes, where `make sglang-env` has built what they need."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.load_check_commands import SGLANG, needs_sglang, results

pytestmark = [pytest.mark.full, needs_sglang]
STAND_IN = "load_format=runai_streamer (a stand-in with one buffer)"
COPIES, KEEP = "LlamaForCausalLM", ("Qwen2ForRewardModel", "WhisperForConditionalGeneration")
MISSPELT, MARKED, WITHOUT_A_TWIN, WITHOUT_NAMES, TAKES_NOTHING = (
    "LlamaForCausalML",
    "DeepseekV3ForCausalLM",
    "DotsOCRForCausalLM",
    "LlavaLlamaForCausalLM",
    "TorchNativePhi3ForCausalLM",
)


def _runai_version() -> str | None:
    """Return the version of Run:ai's streamer that is installed with SGLang."""
    code = "import importlib.metadata as m; print(m.version('runai-model-streamer'))"
    done = subprocess.run([str(SGLANG), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Results of all classes by one command: importing SGLang takes longer than judging one."""
    names = (COPIES, *KEEP, MISSPELT, MARKED, WITHOUT_A_TWIN, WITHOUT_NAMES, TAKES_NOTHING)
    return results(*(f"sglang:{name}" for name in names), "--python", str(SGLANG), status=1)


def test_a_class_that_copies_is_clean_and_those_that_keep_are_named_with_their_line(
    found: dict[str, Any],
) -> None:
    llama, reward, whisper = (found[name] for name in (COPIES, *KEEP))
    assert llama["verdict"] == "clean"
    for judged, text in ((reward, "(name, w) for name, w in weights"), (whisper, "dict(weights)")):
        (stale,) = (
            finding for finding in judged["findings"] if finding["rule"] == "stale-reference"
        )
        line = Path(stale["origin"]["file"]).read_text().splitlines()[stale["origin"]["line"] - 1]
        assert text in line
        # The mark of SGLang's own Run:ai loader does not help a class that does not look at it.
        assert STAND_IN in judged["details"]["stale-reference"]["reachable_via"]
        if real := _runai_version():
            # since 0.17 the library itself hands over what stays, and a class that is reached by
            # a version before is not reported as reached by this one
            paths = judged["details"]["stale-reference"]
            owned = tuple(map(int, real.split(".")[:2])) >= (0, 17)
            named = paths["protected_by" if owned else "reachable_via"]
            assert f"load_format=runai_streamer (runai-model-streamer {real})" in named


def test_no_such_class_is_reported_with_near_names(found: dict[str, Any]) -> None:
    judged = found[MISSPELT]
    assert judged["verdict"] == "not-run"
    assert "`sglang:LlamaForCausalLM`" in judged["findings"][0]["help"]


def test_a_class_that_looks_at_the_mark_is_protected_where_the_loader_sets_it_and_not_elsewhere(
    found: dict[str, Any],
) -> None:
    judged = found[MARKED]
    assert judged["verdict"] == "unsafe"
    stale = judged["details"]["stale-reference"]
    assert STAND_IN in stale["protected_by"]
    assert "model.load_weights" in stale["reachable_via"]
    assert judged["details"]["subject"]["parts_replaced"]


def test_a_class_without_a_twin_is_given_names_that_it_takes(found: dict[str, Any]) -> None:
    judged = found[WITHOUT_A_TWIN]
    assert judged["details"]["subject"]["checkpoint"] == "names that the class was found to take"
    (stale,) = (finding for finding in judged["findings"] if finding["rule"] == "stale-reference")
    line = Path(stale["origin"]["file"]).read_text().splitlines()[stale["origin"]["line"] - 1]
    assert "list(weights)" in line
    # A list of all weights, as weight updates hand over, stays until the call is over; so do the
    # tensors of safetensors' loader.
    assert {"load_format=safetensors", "update_weights_from_distributed"} <= set(
        judged["details"]["stale-reference"]["protected_by"]
    )


def test_a_class_that_takes_no_name_is_an_error_where_the_names_of_its_files_are_certain(
    found: dict[str, Any],
) -> None:
    judged = found[TAKES_NOTHING]
    assert judged["verdict"] == "unsafe"
    never = [one for one in judged["findings"] if one["rule"] == "never-loaded"]
    parameters = {name for one in never for name in one["parameters"]}
    assert {"model.embed_tokens.weight", "model.layers.1.mlp.gate_up_proj.weight"} <= parameters
    assert len(parameters) == 15  # all that two layers, the embedding, the norm and the head have
    assert {one["severity"] for one in judged["findings"]} == {"error"}


@pytest.mark.full
def test_without_a_verdict_the_class_says_itself_why_no_names_are_found(
    found: dict[str, Any],
) -> None:
    judged = found[WITHOUT_NAMES]
    assert judged["verdict"] == "not-run"
    (reason,) = {detail["reason"] for detail in judged["details"].values()}
    assert "even without weights its load_weights raises" in reason
