"""Every entry of the table of stubs is needed by the class that it names, and does for it."""

import json
import re
import subprocess
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.load_check_commands import VLLM, needs_vllm
from vtool.loading.probe import sglang_stubs, vllm_stubs
from vtool.loading.probe.stubs import STUBS, Stub

NOT_LOADED = {
    "Dots3NoteForCausalLM": "No module named 'vllm.third_party.deep_gemm'",
    "OpenPanguVLForConditionalGeneration": "Invalid type of HuggingFace processor",
}
"""Classes that something else keeps from being loaded, which comes after what was stubbed."""
NUMBERED = [
    pytest.param(number, stub, id=f"{stub.framework} {stub.version} {stub.replaces}")
    for number, stub in enumerate(STUBS)
]


@pytest.mark.parametrize(("number", "stub"), NUMBERED)
def test_every_entry_says_what_it_replaces_in_which_version_and_why(
    number: int, stub: Stub
) -> None:
    assert stub.framework in ("vllm", "sglang")
    assert re.fullmatch(r"\d+\.\d+\.\d+", stub.version)
    assert stub.replaces
    assert stub.why
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
def runs() -> dict[str, Any]:
    """The runs of all entries in one interpreter: importing vLLM takes longer than one of them."""
    script = Path(__file__).parent / "stub_runs.py"
    done = subprocess.run([str(VLLM), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@needs_vllm
@pytest.mark.soak
@pytest.mark.parametrize(("number", "stub"), NUMBERED)
def test_the_class_that_needs_a_stub_is_not_made_without_it_and_loads_with_it(
    number: int, stub: Stub, runs: dict[str, Any]
) -> None:
    if stub.framework != "vllm" or stub.version != runs["version"]:
        pytest.skip(
            f"not run: {stub.framework} {stub.version} is not installed (vLLM {runs['version']} is)"
        )
    assert stub.needed_by, "an entry of the installed version names the class that needs it"
    without, whole = runs["entries"][str(number)]["without"], runs["entries"][str(number)]["with"]
    match = re.search(stub.pattern, without["raised"] or "")
    assert match, without
    assert stub.replaces.format(*match.groups()) in whole["replaced"]
    if stub.needed_by in NOT_LOADED:
        assert NOT_LOADED[stub.needed_by] in whole["raised"]
        assert not re.search(stub.pattern, whole["raised"])
    else:
        assert (whole["raised"], whole["stage"]) == (None, "load"), whole
