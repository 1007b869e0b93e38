"""Problems of `model.attention` are reported by name, before rows are read."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny import tiny_model
from tests.runs import request, session
from vtool.config.attention import FLASH
from vtool.config.load import examine
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.releases import takes_tower_index
from vtool.training.attention_here import check_attention, check_heads, missing_kernel_package

CUDA = Ranks(device=torch.device("cuda", 0))
NARROW = "model.dtype=bfloat16"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))


def findings(*given: str) -> tuple[Diagnostic, ...]:
    return examine("digits", given).findings


def refusals(ranks: Ranks, *given: str) -> list[tuple[str, str]]:
    try:
        check_attention(request("digits", *given).run, ranks)
    except SharedFindings as found:
        return [(one.rule, one.message) for one in found.diagnostics]
    return []


@pytest.mark.parametrize("kernel", FLASH)
def test_a_package_that_is_missing_is_named_and_no_hub_is_asked(gpu: None, kernel: str) -> None:
    ((rule, message),) = refusals(CUDA, f"model.attention={kernel}", NARROW)
    package = "flash-attn" if kernel == "flash_attention_2" else "flash-attn-3"
    assert rule == "extra-not-installed"
    assert f"model.attention={kernel} needs {package}, which is not installed" in message


@pytest.mark.parametrize("kernel", FLASH)
def test_flash_attention_is_of_cuda_alone(kernel: str) -> None:
    ((rule, message),) = refusals(Ranks(), f"model.attention={kernel}", NARROW)
    assert (rule, "the device is a CPU" in message) == ("not-built-on-engine", True)
    (finding,) = findings(f"model.attention={kernel}", NARROW, "device.kind=npu")
    assert (finding.rule, finding.parameter) == ("not-built-on-engine", "model.attention")
    assert "the device is an NPU" in finding.message


def test_on_cuda_the_kernels_are_of_bfloat16(gpu: None) -> None:
    (finding,) = findings("model.attention=varlen", "device.kind=cuda")
    assert "computes on CUDA in bfloat16 alone, and model.dtype is float32" in finding.message
    ((rule, message),) = refusals(CUDA, "model.attention=varlen")
    assert (rule, "bfloat16 alone" in message) == ("not-built-on-engine", True)
    assert refusals(CUDA, "model.attention=varlen", NARROW) == []
    assert findings("model.attention=varlen") == ()
    assert refusals(Ranks(), "model.attention=varlen") == []


def test_an_older_gpu_and_an_older_torch_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("model.attention=varlen", NARROW)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    ((rule, message),) = refusals(CUDA, *given)
    assert (rule, "compute capability 7.5" in message) == ("not-built-on-engine", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    assert refusals(CUDA, *given) == []
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    ((rule, message),) = refusals(CUDA, *given)
    assert (rule, "a torch with varlen_attn" in message) == ("extra-not-installed", True)


def test_this_torch_has_what_is_asked_of_it() -> None:
    assert missing_kernel_package("varlen") is None


@pytest.mark.parametrize(
    ("change", "kernel", "words"),
    [
        ({"attention_dropout": 0.1}, "varlen", "attention_dropout is 0.1: its kernel has none"),
        ({"attention_dropout": 0.1}, "flash_attention_2", None),
        ({"head_dim": 36}, "varlen", "heads of 36 features: its kernel has multiples of 8 up to"),
        ({"head_dim": 264}, "flash_attention_3", "heads of 264 features"),
        ({}, "varlen", None),
        ({"attention_dropout": 0.1}, "sdpa", None),
    ],
)
def test_what_a_model_asks_of_a_kernel_that_has_it_not_is_refused(
    change: dict[str, Any], kernel: str, words: str | None
) -> None:
    model = tiny_model("qwen2_5_vl")
    for name, value in change.items():
        setattr(model.config.get_text_config(), name, value)
    run = request("digits", f"model.attention={kernel}", NARROW).run
    check_heads(run, model, "cpu")
    if words is None:
        check_heads(run, model, "cuda")
        return
    with pytest.raises(SharedFindings, match=words):
        check_heads(run, model, "cuda")


@pytest.mark.skipif(not takes_tower_index(), reason="towers of this transformers take no index")
def test_the_loader_of_a_run_makes_the_towers_index(tmp_path: Path) -> None:
    given = ("data.train=[{format: digits, split: train, limit: 4}]",)
    opened = session(request("digits", *given, f"run.dir={tmp_path / 'run'}"), Ranks())[0]
    batch = opened.rows["train"][opened.micro_batches(1)[0]]
    assert batch.images
    (index,) = batch.towers.values()
    assert sum(index.spans["cu_seqlens"].lengths) == len(batch.inputs["pixel_values"])
