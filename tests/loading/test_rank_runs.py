"""Mistakes in vLLM's own loading, put in where two ranks share a model: each is found, alone."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.load_check_commands import VLLM, needs_vllm

pytestmark = [pytest.mark.full, needs_vllm]
FOUND = {
    "nothing": {},
    "a_stage_that_skips_its_layer": {"stage-mismatch": "elements differ, on rank 1"},
    "a_layer_on_both_stages": {"stage-mismatch": "on both"},
    "the_first_experts_on_each_rank": {"expert-mismatch": "of expert 2 on rank 1"},
    "an_expert_that_no_rank_has": {"expert-mismatch": "on no rank"},
}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the findings of every check on two ranks about each mistake, in one interpreter."""
    script = Path(__file__).parent / "rank_runs.py"
    done = subprocess.run([str(VLLM), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mistake", FOUND)
def test_a_mistake_is_found_by_its_check_and_by_no_other(
    mistake: str, results: dict[str, Any]
) -> None:
    for rule, facts in results[mistake].items():
        assert facts["reason"] is None, (rule, facts)
        assert facts["measured"]["ranks"] == 2
        words = FOUND[mistake].get(rule)
        assert bool(facts["items"]) == (words is not None), (rule, facts)
        if words is not None:
            assert words in facts["items"][0][1]
