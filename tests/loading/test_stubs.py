"""Every entry of the table of stubs is needed by the class that it names, and does for it."""

import json
import re
import subprocess
from collections.abc import Callable
from functools import cache
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.load_check_commands import SGLANG, VLLM
from vtool.loading.probe import sglang_stubs, vllm_stubs
from vtool.loading.probe.stubs import STUBS, Stub

NOT_LOADED = {
    "Dots3NoteForCausalLM": "No module named 'vllm.third_party.deep_gemm'",
    "OpenPanguVLForConditionalGeneration": "Invalid type of HuggingFace processor",
}
"""Classes that something else keeps from being loaded, which comes after what was stubbed."""
PYTHONS = {"vllm": VLLM, "sglang": SGLANG}
NUMBERED = [
    pytest.param(number, stub, id=f"{stub.framework} {stub.version} {stub.replaces}")
    for number, stub in enumerate(STUBS)
]


@pytest.mark.parametrize(("number", "stub"), NUMBERED)
def test_every_entry_says_what_it_replaces_in_which_version_why_and_for_which_class(
    number: int, stub: Stub
) -> None:
    assert stub.framework in ("vllm", "sglang")
    assert re.fullmatch(r"\d+\.\d+\.\d+", stub.version)
    assert stub.replaces
    assert stub.why
    assert re.fullmatch(r"[A-Z]\w+", stub.needed_by)
    braces = set(re.findall(r"\{(\d)\}", stub.replaces))
    groups = re.compile(stub.pattern).groups
    assert {int(brace) for brace in braces} <= set(range(groups))


@pytest.mark.parametrize("module", [vllm_stubs, sglang_stubs])
def test_every_function_that_makes_a_stub_is_in_the_table(module: ModuleType) -> None:
    made = {
        one
        for name, one in vars(module).items()
        if isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
    }
    assert made - {vllm_stubs.save_processor} == made & {stub.install for stub in STUBS}


@pytest.fixture(scope="module")
def runs() -> Callable[[str], dict[str, Any]]:
    """The runs of a framework's entries in one interpreter: its import takes longer than a run."""

    @cache
    def run(framework: str) -> dict[str, Any]:
        command = [str(PYTHONS[framework]), str(Path(__file__).parent / "stub_runs.py"), framework]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("number", "stub"), NUMBERED)
def test_the_class_that_needs_a_stub_is_not_made_without_it_and_loads_with_it(
    number: int, stub: Stub, runs: Callable[[str], dict[str, Any]]
) -> None:
    if PYTHONS[stub.framework] is None:
        pytest.skip(f"`make {stub.framework}-env` builds what it needs")
    found = runs(stub.framework)
    if found["version"] != stub.version:
        pytest.skip(f"{stub.framework} {found['version']} is installed, not {stub.version}")
    without, whole = found["entries"][str(number)]["without"], found["entries"][str(number)]["with"]
    assert without["raised"], "it is made without the stub"
    assert without["stage"] != "load", without
    matches = (re.search(stub.pattern, text) for text in without["unknown"])
    match = next(filter(None, matches), None)
    assert match, without
    assert stub.replaces.format(*match.groups()) in whole["installed"]
    if stub.needed_by in NOT_LOADED:
        assert NOT_LOADED[stub.needed_by] in whole["raised"]
        assert not re.search(stub.pattern, whole["raised"])
    else:
        assert (whole["raised"], whole["stage"]) == (None, "load"), whole
