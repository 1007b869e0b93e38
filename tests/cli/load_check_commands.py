"""`vtool load-check` for the tests, and the interpreters that have vLLM and SGLang, if any."""

import json
import os
from pathlib import Path

import pytest

from tests.commands import Completed, run_vtool

ROOT = Path(__file__).parents[2]
VLLM = os.environ.get("VTOOL_VLLM_PYTHON") or next(
    (str(path) for path in [ROOT / ".vllm-venv/bin/python"] if path.exists()), None
)
needs_vllm = pytest.mark.skipif(VLLM is None, reason="`make vllm-env` builds what it needs")
SGLANG = os.environ.get("VTOOL_SGLANG_PYTHON") or (
    str(ROOT / ".vllm-venv/bin/python") if (ROOT / ".vllm-venv/sglang").exists() else None
)
needs_sglang = pytest.mark.skipif(SGLANG is None, reason="`make sglang-env` builds what it needs")


def load_check(*arguments: str, cwd: Path = ROOT) -> Completed:
    return run_vtool(cwd, "load-check", *arguments)


def results(*arguments: str, status: int) -> dict[str, object]:
    done = load_check(*arguments, "--format", "json")
    assert done.status == status, done.stderr
    return {
        result["subject"].rpartition(":")[2]: result
        for result in json.loads(done.stdout)["results"]
    }
