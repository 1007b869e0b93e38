"""The reports of docs/found: short scripts, and each fails as it says."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOUND = Path(__file__).parents[2] / "docs/found"
REPORTS = sorted(file for file in FOUND.glob("*.md") if file.name != "README.md")
SAYS = {
    "sglang-glm-image-mlp": ("sglang", "the vision MLP is not loaded"),
    "sglang-glm-ocr-merger": ("sglang", "512 of 4608 channels of the merger are not loaded"),
    "sglang-gptj-head-bias": ("sglang", "the bias of the head is dropped"),
    "sglang-llama4-text-experts": ("sglang", "no expert is loaded"),
    "sglang-longcat-norm-scales": ("sglang", "norms of one are scaled by [4.0, 2.0]"),
    "sglang-runai-held-tensors": ("sglang", "9 of 15 parameters hold another's bytes"),
    "sglang-torch-native-llama": ("sglang", "9 of 9 parameters are not loaded"),
    "sglang-transformers-fused-experts": ("sglang", "no expert is loaded"),
    "transformers-47688": ("transformers", "4.000 times the gradient"),
    "transformers-logit-scale": ("transformers", "the logits of a text are not scaled by"),
    "trl-image-placeholders": ("trl", "4 placeholders of an image are labels"),
    "verl-mm-token-type-ids": ("verl", "mm_token_type_ids is gone"),
    "vllm-awq-outer-modules": ("vllm", "a layer that is quantized in the file is made plain"),
    "vllm-colpali-bias": ("vllm", "the bias of the projection is dropped"),
    "vllm-cpu-softmax-bias": ("vllm", "the correction bias is left out"),
    "vllm-eagle-mistral-large-3": ("vllm", "no attribute 'is_fused_shared_expert_enabled'"),
    "vllm-ernie-tied-stages": ("vllm", "'PPMissingLayer' object has no attribute"),
    "vllm-gemma3n-per-layer": ("vllm", "per-layer embeddings are left out"),
    "vllm-held-checkpoints": ("vllm", "71 of 71 tensors are in memory at once"),
    "vllm-laguna-correction-bias": ("vllm", "the correction bias of the experts is not loaded"),
    "vllm-mimo-v2-fp8-scale": ("vllm", "the fused qkv_proj in fp8 is not loaded"),
    "vllm-minimax-m3-block-scales": ("vllm", "the scales of fp8 in blocks are not loaded"),
    "vllm-nemotron-parse-ranks": ("vllm", "Attempted to load weight"),
    "vllm-transformers-untied-head": ("vllm", "lm_head.weight is not read"),
}

PYTHONS = {name: os.environ.get(f"VTOOL_{name.upper()}_PYTHON") for name in ("vllm", "sglang")}
"""Frameworks that have an environment of their own."""


def script_of(report: Path) -> str:
    (script,) = re.findall(r"```python\n(.*?)```", report.read_text("utf-8"), re.S)
    return str(script)


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: one.stem)
def test_a_report_has_a_script_of_thirty_lines_and_is_listed(report: Path) -> None:
    assert len([line for line in script_of(report).splitlines() if line.strip()]) <= 30
    assert f"[{report.stem}]({report.name})" in (FOUND / "README.md").read_text("utf-8")
    assert "**The smallest patch**" in report.read_text("utf-8")
    assert report.stem in SAYS


@pytest.mark.full
@pytest.mark.parametrize("name", SAYS)
def test_the_script_of_a_report_fails_as_it_says(name: str, tmp_path: Path) -> None:
    package, message = SAYS[name]
    own = PYTHONS.get(package, sys.executable)
    if own is None or (package not in PYTHONS and importlib.util.find_spec(package) is None):
        pytest.skip(f"{package} is not installed")
    (tmp_path / "failing.py").write_text(script_of(FOUND / f"{name}.md"), encoding="utf-8")
    ended = subprocess.run(
        [own, "failing.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert message in ended.stderr.strip().splitlines()[-1]
