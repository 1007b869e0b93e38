"""The device on which a rank computes.

No NPU is here, nor CANN, without which torch_npu cannot be imported: nothing of this has run on
hardware. What stands for it has the names and the arguments that the wheel of torch_npu declares
(`torch_npu.json`, which `record_torch_npu.py` writes), and no others; it comes to torch the wheel's
own way (`torch_npu/_init/registry/backend.py`).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.runs import request
from vtool.devices import attention_without_cudnn, bind, place
from vtool.diagnostics import Findings

DECLARED = json.loads(Path(__file__).with_name("torch_npu.json").read_text())["torch.npu"]
ANSWERS = {"is_available": True, "device_count": 2}
FUNCTION = """
def {name}({arguments}):
    calls.append(({name!r}, *map(str, locals().values())))
    return {answer}
npu.{name} = {name}
"""
RECORDED = (
    "import torch, types\ntorch.utils.rename_privateuse1_backend('npu')\nnpu, calls ="
    " types.ModuleType('torch.npu'), []\n"
    + "".join(
        FUNCTION.format(name=name, arguments=about["arguments"], answer=ANSWERS.get(name))
        for name, about in DECLARED.items()
    )
    + "torch._register_device_module('npu', npu)\n"
)
ASKS = """
import sys, torch
from tests.runs import request
from vtool.devices import place, seed
made = place(request("digits", "device.kind=" + sys.argv[1]).run, 1, int(sys.argv[2]))
torch.get_device_module(made.device).set_device(made.device)
seed(made.device, 7)
print(made.device, made.backend, [call for call in sys.modules["torch_npu"].calls if len(call) > 1])
"""


def asked(
    folder: Path, kind: str, local_world: int, recorded: str = RECORDED
) -> subprocess.CompletedProcess[str]:
    (folder / "torch_npu.py").write_text(recorded)
    # torch imports an installed one by itself
    code = ("import torch_npu\n" if kind == "auto" else "") + ASKS
    command = [sys.executable, "-c", code, kind, str(local_world)]
    paths = f"{folder}:{Path(__file__).parents[2]}"
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": paths, "PATH": "/usr/bin"},
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["npu", pytest.param("auto", marks=pytest.mark.full)])
def test_a_rank_gets_the_npu_of_its_number_and_hccl(tmp_path: Path, kind: str) -> None:
    done = asked(tmp_path, kind, 2)

    assert (
        done.stdout == "npu:1 cpu:gloo,npu:hccl [('set_device', 'npu:1'), ('manual_seed', '7')]\n"
    ), done.stderr


@pytest.mark.full
def test_more_ranks_than_npus_are_refused(tmp_path: Path) -> None:
    done = asked(tmp_path, "npu", 4)

    assert "4 processes need an NPU each" in done.stderr
    assert "sees 2" in done.stderr


@pytest.mark.full
def test_what_the_import_of_torch_npu_says_is_said(tmp_path: Path) -> None:
    done = asked(
        tmp_path, "npu", 1, "raise ImportError('libhccl.so: cannot open shared object file')"
    )

    assert "torch_npu cannot be imported with torch" in done.stderr
    assert "libhccl.so: cannot open shared object file" in done.stderr


def test_without_torch_npu_the_finding_names_it() -> None:
    with pytest.raises(Findings) as raised:
        place(request("digits", "device.kind=npu").run, 0, 1)

    (found,) = raised.value.diagnostics
    assert (found.rule, found.parameter) == ("device-missing", "device.kind")
    assert "No module named 'torch_npu'" in found.message


def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    made = place(request("digits").run, 0, 2)

    assert (str(made.device), made.backend) == ("cpu", "gloo")


def test_an_environment_variable_makes_torch_npu_bind_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = request("digits", "device.kind=npu", "device.numa=node", "launch.nproc=2").run
    monkeypatch.setattr("os.environ", environment := {})
    assert bind(run, "npu") is None
    assert environment == {"CPU_AFFINITY_CONF": "1"}
    environment["CPU_AFFINITY_CONF"] = "2"
    with pytest.raises(Findings, match=r"launch-conflict.*in the environment it is 2"):
        bind(run, "npu")
    environment["CPU_AFFINITY_CONF"] = ""
    assert bind(run, "npu") is None
    environment.clear()
    assert bind(request("digits", "device.kind=npu").run, "npu") is None
    assert environment == {}


def test_a_gpus_attention_does_not_plan_for_each_shape_while_it_trains() -> None:
    asked = torch.backends.cuda.cudnn_sdp_enabled
    before = asked()
    with attention_without_cudnn(torch.device("cpu")):
        assert asked() == before
    with attention_without_cudnn(torch.device("cuda", 0)):
        assert not asked()
    assert asked() == before


@pytest.mark.parametrize(
    ("variable", "ranks", "expected"),
    [
        ("3", 1, 3),
        ("5,2", 1, 5),
        ("3", 2, 3),
        ("1", 1, 1),
        ("1", 2, 8 // 2),  # as torchrun sets it
        ("many", 1, 8),
        ("", 1, 8),
    ],
)
def test_threads_are_those_that_the_variable_asks_for(
    monkeypatch: pytest.MonkeyPatch, variable: str, ranks: int, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    run = request("digits", "device={kind: cpu, threads: null}").run
    assert place(run, 0, ranks).threads == expected
    run = request("digits", "device={kind: cpu, threads: 2}").run
    assert place(run, 0, ranks).threads == 2
