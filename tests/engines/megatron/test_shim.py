"""Megatron-core's questions for CUDA are answered with the CPU, for as long as it is asked, and
only in a run on the CPU.
"""

import pytest
import torch

from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import CPU


@pytest.mark.parametrize("cuda", [False, True])
class TestOnTheCpu:
    def test_devices_and_types_are_answered_with_the_cpu(
        self, cuda: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        with on_cpu(CPU):
            assert torch.cuda.current_device() == torch.device("cpu")
            torch.cuda.synchronize()
            made = torch.ones(2, dtype=torch.bfloat16, device="cuda")
            assert made.device == torch.device("cpu")
            assert made.cuda() is made
            assert made.type() == "torch.cuda.BFloat16Tensor"
            assert torch.ones(1).type() == "torch.cuda.FloatTensor"
            assert made.type(torch.float32).dtype == torch.float32

    def test_nothing_is_left_behind(self, cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        before = torch.cuda.current_device, torch.cuda.synchronize
        with pytest.raises(KeyError), on_cpu(CPU), on_cpu(CPU):
            raise KeyError
        assert (torch.cuda.current_device, torch.cuda.synchronize) == before
        assert torch.ones(1).type() == "torch.FloatTensor"
        if not torch.backends.cuda.is_built():
            with pytest.raises((RuntimeError, AssertionError)):
                torch.ones(1, device="cuda")


def test_in_a_run_on_a_gpu_nothing_is_replaced() -> None:
    before = torch.cuda.current_device, torch.cuda.synchronize
    with on_cpu(torch.device("cuda", 0)):
        assert (torch.cuda.current_device, torch.cuda.synchronize) == before
        assert torch.ones(1).type() == "torch.FloatTensor"
