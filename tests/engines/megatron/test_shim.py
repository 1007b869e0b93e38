"""Megatron-core's questions for CUDA are answered with the CPU, for as long as it is asked, and only where there is no CUDA."""

import pytest
import torch

from vtool.engines.megatron.shim import on_cpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="the shim does nothing where CUDA exists")
class TestWithoutCuda:
    def test_devices_and_types_are_answered_with_the_cpu(self) -> None:
        with on_cpu():
            assert torch.cuda.current_device() == torch.device("cpu")
            torch.cuda.synchronize()
            made = torch.ones(2, dtype=torch.bfloat16, device="cuda")
            assert made.device == torch.device("cpu")
            assert made.cuda() is made
            assert made.type() == "torch.cuda.BFloat16Tensor"
            assert torch.ones(1).type() == "torch.cuda.FloatTensor"
            assert made.type(torch.float32).dtype == torch.float32

    def test_nothing_is_left_behind(self) -> None:
        before = torch.cuda.current_device, torch.cuda.synchronize
        with pytest.raises(KeyError), on_cpu(), on_cpu():
            raise KeyError
        assert (torch.cuda.current_device, torch.cuda.synchronize) == before
        assert torch.ones(1).type() == "torch.FloatTensor"
        with pytest.raises((RuntimeError, AssertionError)):
            torch.ones(1, device="cuda")


def test_where_cuda_exists_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.cuda.current_device, torch.cuda.synchronize
    with on_cpu():
        assert (torch.cuda.current_device, torch.cuda.synchronize) == before
        assert torch.ones(1).type() == "torch.FloatTensor"
