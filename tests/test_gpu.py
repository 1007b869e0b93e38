"""The tests that need a CUDA device: `make test-gpu`. Elsewhere they are not run, and say so."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.models.test_by_lengths import FORMS, LENGTHS
from tests.runs import request, session
from tests.watch.forks import ROOT, outside
from vtool.data.head_nll import summed_nll_of_hidden
from vtool.data.loader import load_steps
from vtool.engines.ranks import Ranks
from vtool.models.by_lengths import Form, attend_by_lengths
from vtool.models.spans import Spans
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

pytestmark = pytest.mark.gpu

QUIET = ("data.validation=[]", "evaluation.every_steps=null", "train.steps=5")
ENGINES = {
    "ddp": "engine=ddp",
    "fsdp2": "engine=fsdp2",
    "megatron": "engine=megatron",
}


def lines(folder: Path, device: torch.device, *settings: str) -> list[tuple[float, float]]:
    """The loss and the gradient's norm of five steps of `digits`."""
    kind = f"device.kind={device.type}"
    made = request("digits", *QUIET, kind, f"run.dir={folder}", *settings)
    opened, progress = session(made, Ranks(device=device))
    steps = load_steps(opened.rows["train"], range(1, 6), opened.micro_batches, 0, device=device)
    found = []
    for number, batches in enumerate(steps, 1):
        metrics, _ = train_step(opened, progress, number, batches, StopRequest())
        found.append((metrics["loss"], metrics["grad_norm"]))
    return found


def apart(one: Any, other: Any) -> float:
    a, b = (torch.as_tensor(each).double().cpu() for each in (one, other))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("no_process_group")
def test_steps_on_a_gpu_are_those_of_a_cpu(tmp_path: Path, gpu: torch.device, engine: str) -> None:
    expected = lines(tmp_path / "cpu", torch.device("cpu"))
    found = lines(tmp_path / "gpu", gpu, ENGINES[engine])
    assert apart(found, expected) <= 1e-4
    assert found == lines(tmp_path / "again", gpu, ENGINES[engine]), "not the same each time"


@pytest.mark.usefixtures("no_process_group")
def test_packed_rows_by_lengths_train_as_rows_of_their_own(
    tmp_path: Path, gpu: torch.device
) -> None:
    narrow = "model.dtype=bfloat16"
    packed = ("data.packing=token_budget", "data.micro_batch_tokens=1024")
    alone = lines(tmp_path / "alone", gpu, narrow)
    found = lines(tmp_path / "packed", gpu, narrow, "model.attention=varlen", *packed)
    assert apart(found, alone) <= 1e-2


def attended(form: Form, kernel: str, given: list[Tensor]) -> list[Tensor]:
    """Attention by lengths, and its gradients."""
    own = [each.detach().requires_grad_() for each in given]
    spans = Spans.of(LENGTHS).map(lambda ends: ends.to(given[0].device))
    out = attend_by_lengths(*own, spans, form, kernel)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), own)]


@pytest.mark.parametrize("form", FORMS)
def test_attention_by_lengths_is_what_is_emulated_on_a_cpu(gpu: torch.device, form: str) -> None:
    torch.manual_seed(0)
    given = [torch.randn(sum(LENGTHS), heads, 64).bfloat16() for heads in (4, 2, 2)]
    exact = attended(FORMS[form], "sdpa", [each.double() for each in given])
    rounded = attended(FORMS[form], "sdpa", given)
    found = attended(FORMS[form], "varlen", [each.to(gpu) for each in given])
    for ours, theirs, truth in zip(found, rounded, exact, strict=True):
        assert apart(ours, truth) <= 2 * apart(theirs, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_heads_loss_in_chunks_is_that_of_all_logits(
    gpu: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.head_nll._BLOCK_BYTES", 2**18)
    monkeypatch.setattr("vtool.data.head_nll._CHUNK_BYTES", 0)
    torch.manual_seed(0)
    given = [torch.randn(1, 300, 64).to(dtype), (torch.randn(997, 64) / 8).to(dtype)]
    targets = torch.randint(997, (1, 300))
    targets[:, ::7] = -100

    def computed(device: torch.device, to: torch.dtype) -> list[Tensor]:
        own = [each.to(device, to).requires_grad_() for each in given]
        nll = summed_nll_of_hidden(*own, targets.to(device))
        return [nll.detach(), *torch.autograd.grad(nll / 257, own)]

    exact = computed(torch.device("cpu"), torch.float64)
    found = computed(gpu, dtype)
    bound = 1e-2 if dtype == torch.bfloat16 else 5e-6
    assert all(apart(ours, truth) <= bound for ours, truth in zip(found, exact, strict=True))


def test_attention_of_torch_has_heads_that_share_keys(gpu: torch.device) -> None:
    """The FLOPs of a plan and of a profile count such heads."""
    q, k, v = (torch.randn(1, heads, 8, 64, device=gpu) for heads in (4, 2, 2))
    assert scaled_dot_product_attention(q, k, v, enable_gqa=True).shape == q.shape


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from tests.models.tiny import tiny_model
device, autocast = sys.argv[1], len(sys.argv) > 3
model = tiny_model("qwen2_5_vl", torch.float32).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(0)
for _ in range(3):
    ids = torch.randint(10, 40, (2, 24), generator=generator)
    labels = ids.clone()
    labels[:, :6] = -100
    given = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        loss = model(**{name: one.to(device) for name, one in given.items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("ended")
"""


@pytest.mark.parametrize("how", ["float32", "autocast"])
def test_a_watch_reads_on_a_gpu_what_it_reads_on_a_cpu(
    tmp_path: Path, gpu: torch.device, how: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    more = ["autocast"] if how == "autocast" else []
    found = []
    for place, device in enumerate(("cpu", gpu.type)):
        facts = tmp_path / str(place)
        command = [sys.executable, "-m", "vtool", "watch", "--to", str(facts), "--format", "json"]
        done = subprocess.run(
            [*command, "--", sys.executable, "train.py", device, str(ROOT), *more],
            cwd=tmp_path,
            env=outside(HF_HUB_OFFLINE="1"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "ended" in done.stdout) == (0, True), done.stderr[-3000:]
        found.append([one["kind"] for one in _facts(facts)])
    expected, seen = found
    assert "error" not in seen
    assert sorted(seen) == sorted(expected)
    assert expected.count("solved") == 3


def _facts(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, file.read_text().splitlines())
