"""The probe is a folder that runs anywhere."""

import ast
import sys
from pathlib import Path

import pytest

import vtool.loading.worker

PROBE = vtool.loading.worker.PROBE
FRAMEWORKS = {
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
    "vllm",
    "sglang",
    "torchvision",
    "runai_model_streamer",
    "fastsafetensors",
}


@pytest.mark.parametrize("file", sorted(PROBE.rglob("*.py")), ids=lambda file: file.name)
def test_it_imports_itself_the_standard_library_torch_and_frameworks_only(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            named = [node.module or ""]
        else:
            continue
        for name in named:
            assert name.partition(".")[0] in sys.stdlib_module_names | FRAMEWORKS, f"{file.name} imports {name}"


def test_none_of_its_files_hides_a_module_of_others() -> None:
    """It is run by path, which would put the folder first among those that modules come from; it takes itself out."""
    events = list(vtool.loading.worker.probe_events(sys.executable, request(["nothing.py:factory"])))
    assert [event["event"] for event in events] == ["ready", "subject", "done"]
    assert events[1]["status"] == "failed"


def test_an_interpreter_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="cannot be started"):
        list(vtool.loading.worker.probe_events("/no/such/python", request([])))


def test_an_interpreter_without_torch_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -I -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    (event,) = vtool.loading.worker.probe_events(str(bare), request([]))
    assert event["event"] == "unusable"
    assert "cannot import torch" in event["reason"]


def request(subjects: list[str]) -> dict[str, object]:
    return {
        "host": "python", "subjects": subjects, "match": "*", "checks": [], "sources": [], "slots": 1, "jobs": 1, "seconds": 60,
        "memory": 2**31, "checkpoint": None,
    }  # fmt: skip
