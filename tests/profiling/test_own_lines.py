"""Lines that torch's profiler writes to standard error of itself."""

import os

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vtool.profiling.own_lines import without_own_lines


def test_torchs_own_lines_are_left_out_and_all_others_stay(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept = [torch.ones(3) for _ in range(3)]  # of before the profile
    recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with without_own_lines():
        recorder.start()
        os.write(2, b"a library's line\n")
    kept.clear()
    with without_own_lines():
        recorder.stop()
        os.write(2, b"[W1128 ProcessGroup.cpp:1] a warning\n")
    assert capfd.readouterr().err.splitlines() == [
        "a library's line",
        "[W1128 ProcessGroup.cpp:1] a warning",
    ]


def test_torchs_own_lines_are_known_on_every_rank(capfd: pytest.CaptureFixture[str]) -> None:
    advice = b"[W1128 1 CPUAllocator.cpp:245] Memory block of unknown size was allocated before\n"
    with without_own_lines():
        os.write(2, b"[rank12]:" + advice + advice + b"[rank12]:[W1128 ProcessGroup.cpp:1] other\n")
    assert capfd.readouterr().err == "[rank12]:[W1128 ProcessGroup.cpp:1] other\n"


def test_what_was_written_before_an_error_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="CUPTI"):
        _fail()
    assert capfd.readouterr().err == "why it failed\n"


def _fail() -> None:
    with without_own_lines():
        os.write(2, b"why it failed\n")
        raise RuntimeError("CUPTI")
