"""Objects of other libraries: whether accelerate holds a step for an accumulation."""

import importlib.util
import subprocess
import sys

import pytest

from vtool.watch.inject.vtool_watch import alive

# in a process of its own: accelerate's state is the process's
_LOOP = """
import torch
from accelerate import Accelerator
from vtool.watch.inject.vtool_watch.alive import is_accumulating
seen = [is_accumulating()]
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = accelerator.prepare(torch.nn.Linear(2, 2))
for _ in range(4):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 2)).sum())
        seen.append(is_accumulating())
print(seen)
"""


def test_the_middle_of_an_accumulation_is_known_from_accelerate() -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    done = subprocess.run(
        [sys.executable, "-c", _LOOP], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[None, True, False, True, False]"


def test_nothing_is_said_where_accelerate_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)
    assert alive.is_accumulating() is None
