"""Tests that leave something behind: it is put back, and they are named."""

import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests import process_state

CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "threads": (lambda: torch.set_num_threads(3), "torch's threads: 1 → 3"),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), "torch's dtype"),
    "determinism": (lambda: torch.use_deterministic_algorithms(True), "torch's deterministic"),
    "determinism that only warns": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        "torch's deterministic: (False, False) → (True, True)",
    ),
    "grad mode": (lambda: torch.set_grad_enabled(False), "torch's gradients: True → False"),
    "default device": (lambda: torch.set_default_device("meta"), "torch's device: cpu → meta"),
    "attention": (
        lambda: AttentionInterface.register("sdpa", lambda *_: None),
        "attention function attention:sdpa was replaced",
    ),
    "a new attention function": (
        lambda: AttentionInterface.register("left", lambda *_: None),
        "attention function attention:left was registered",
    ),
    "an attention function gone": (
        lambda: ALL_ATTENTION_FUNCTIONS._global_mapping.pop("sdpa"),
        "attention function attention:sdpa was removed",
    ),
    "a mask function gone": (
        lambda: ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop("sdpa"),
        "attention function mask:sdpa was removed",
    ),
    "a variable": (lambda: os.environ.update(HF_HUB_OFFLINE="0"), "HF_HUB_OFFLINE: '1' → '0'"),
    "a new variable": (lambda: os.environ.update(LEFT="1"), "variable LEFT: None → '1'"),
    "a variable of a launcher": (
        lambda: os.environ.update(TORCHELASTIC_RUN_ID="1"),
        "variable TORCHELASTIC_RUN_ID: None → '1'",
    ),
    "a variable gone": (lambda: os.environ.pop("HF_HUB_OFFLINE"), "HF_HUB_OFFLINE: '1' → None"),
    "directory": (lambda: os.chdir("/"), "working directory"),
    "a handler": (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "handler of SIGTERM"),
    "a stand-in": (
        lambda: sys.modules.update({"torch_npu": SimpleNamespace()}),  # type: ignore[dict-item]
        "sys.modules['torch_npu'] is a stand-in",
    ),
    "another module": (
        lambda: sys.modules.update({"json": ModuleType("json")}),
        "sys.modules['json'] was replaced",
    ),
    "a module gone": (lambda: sys.modules.pop("json"), "sys.modules['json'] was removed"),
}


def test_a_warning_in_the_place_of_an_error_is_put_back() -> None:
    """Both say that deterministic algorithms are used: the first value of the pair is the same."""
    outside = process_state.snapshot()
    torch.use_deterministic_algorithms(True)
    before = process_state.snapshot()
    torch.use_deterministic_algorithms(True, warn_only=True)
    after = process_state.snapshot()
    process_state.restore(before)
    restored = process_state.snapshot()
    process_state.restore(outside)
    assert len(process_state.differences(before, after)) == 1
    assert process_state.differences(before, restored) == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_put_back(name: str) -> None:
    change, message = CHANGES[name]
    before = process_state.snapshot()
    assert process_state.differences(before, process_state.snapshot()) == []
    try:
        change()
        found = process_state.differences(before, process_state.snapshot())
    finally:
        process_state.restore(before)
    assert len(found) == 1, found
    assert message in found[0]
    assert process_state.differences(before, process_state.snapshot()) == []


LEAKY = """
import os, pytest

@pytest.fixture(scope="module")
def made():
    os.environ["LEFT_BY_A_FIXTURE"] = "1"

def test_leaks(made):
    os.environ["LEFT_BY_A_TEST"] = "1"

def test_finds_nothing():
    assert not {"LEFT_BY_A_FIXTURE", "LEFT_BY_A_TEST"} & os.environ.keys()
"""


IMPORTS = """
import sys

def test_imports():
    assert "transformers.modeling_utils" not in sys.modules
    import transformers.modeling_utils
"""


REGISTERS = """
import sys

def test_registers():
    assert "transformers.modeling_utils" not in sys.modules
    from transformers import AttentionInterface
    AttentionInterface.register("left", lambda *_: None)

def test_finds_nothing():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert "sdpa" in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert "left" not in ALL_ATTENTION_FUNCTIONS.valid_keys()
"""


@pytest.mark.full
def test_what_a_test_registers_with_the_library_that_it_imports_is_a_leak(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("from tests.conftest import *\nfrom tests.conftest import _process_state")
    pytester.makepyfile(REGISTERS)
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:randomly", "--fail-on-leaks"
    )
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*left behind: *attention:left was registered*"])


@pytest.mark.full
def test_a_module_that_a_test_is_the_first_to_import_is_no_leak(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("from tests.conftest import *\nfrom tests.conftest import _process_state")
    pytester.makepyfile(IMPORTS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--fail-on-leaks")
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(("options", "errors"), [((), 0), (("--fail-on-leaks",), 1)])
def test_the_next_test_finds_nothing_and_a_leak_fails_where_it_is_asked(
    pytester: pytest.Pytester, options: tuple[str, ...], errors: int
) -> None:
    pytester.makeconftest("from tests.conftest import *\nfrom tests.conftest import _process_state")
    pytester.makepyfile(LEAKY)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    done.assert_outcomes(passed=2, errors=errors)
    if errors:
        done.stdout.fnmatch_lines(["*left behind: *LEFT_BY_A_TEST*"])


def test_tests_compute_with_one_thread() -> None:
    assert torch.get_num_threads() == 1
