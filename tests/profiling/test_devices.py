"""The tools of devices that are not here.

What stands for them has the names and arguments that torch and torch_npu declare, no others.
"""

import inspect
import json
import pickle
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs import request
from vtool.devices import profiling as device_profiling
from vtool.engines.ranks import Ranks
from vtool.profiling.profiler import open_profiler
from vtool.profiling.tools import MemoryTool, NpuTool, NsysTool

RECORD = json.loads((Path(__file__).parents[1] / "devices/torch_npu.json").read_text())
DECLARED, NAMES = RECORD["torch_npu.profiler"], RECORD["torch_npu.profiler, names"]
STEPS = range(2, 6)


def given(name: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    """The arguments of a call by name, defaults included;

    a call that the wheel would refuse raises TypeError.
    """
    text = DECLARED[name]["arguments"]
    scope: dict[str, Any] = {}
    exec(f"def {name}({text}): return dict(locals())", scope)
    return scope[name](*arguments, **named)  # type: ignore[no-any-return]


class Profile:
    """torch_npu's `profile` as its source does it:

    actions follow the schedule, the handler is called when RECORD_AND_SAVE ends.
    """

    made: list["Profile"]

    def __init__(self, **named: Any) -> None:
        self.given = given("profile", **named)
        self.schedule = self.given["schedule"]
        self.step_num = 0
        self.current_action = self.schedule(0)
        self.actions: list[str] = []
        Profile.made.append(self)

    def start(self) -> None:
        self.actions.append(self.current_action)

    def step(self) -> None:
        self._ends()
        self.step_num += 1
        self.current_action = self.schedule(self.step_num)
        self.actions.append(self.current_action)

    def stop(self) -> None:
        self._ends()
        self.current_action = "NONE"

    def _ends(self) -> None:
        if self.current_action == "RECORD_AND_SAVE":
            self.given["on_trace_ready"](self)


def handler(*arguments: Any, **named: Any) -> Any:
    about = given("tensorboard_trace_handler", *arguments, **named)

    def write(_: Any) -> None:
        folder = Path(about["dir_name"]) / f"{about['worker_name']}_20260101000000000_ascend_pt"
        (folder / "PROF_000001").mkdir(parents=True)
        (folder / "PROF_000001/data").write_text("counters")
        if about["analyse_flag"]:
            (folder / "ASCEND_PROFILER_OUTPUT").mkdir()
            (folder / "ASCEND_PROFILER_OUTPUT/trace_view.json").write_text("[]")

    return write


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    parts: dict[str, Any] = {
        name: types.SimpleNamespace(**{word: word for word in words})
        for name, words in NAMES.items()
    }
    activities = types.SimpleNamespace(CPU="CPU", NPU="NPU")
    parts |= {
        "profile": Profile,
        "tensorboard_trace_handler": handler,
        "ProfilerActivity": activities,
    }
    parts["_ExperimentalConfig"] = lambda **named: given("_ExperimentalConfig", **named)
    assert parts.keys() <= set(RECORD["torch_npu.profiler, offered"])
    assert {"step_num", "current_action", "schedule"} <= set(
        RECORD["torch_npu.profiler.profile, set"]
    ), "what begin_at sets"
    Profile.made = []
    made = types.SimpleNamespace(**parts)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", made)
    return made


def recorded(folder: Path, *overrides: str) -> tuple[NpuTool, Path]:
    npu = ("device.kind=npu", "profiler=npu", "profiler.profile_interval=[3,5]")
    tool = NpuTool(request("digits", *npu, *overrides).run.profiler, folder, 0)
    tool.start(2)
    for step in STEPS:
        tool.step(step)
    tool.stop()
    (made,) = tool.write(folder / "rank-0-steps-3-5", range(3, 6)).files
    return tool, made


def test_torch_npu_is_asked_for_what_the_settings_say_in_its_own_words(
    torch_npu: object, tmp_path: Path
) -> None:
    tool, made = recorded(
        tmp_path,
        "profiler.npu={level:level2,aic_metrics:Memory,export_type:text}",
        "profiler.record.stacks=true",
    )
    (live,) = Profile.made
    config = live.given["experimental_config"]
    assert live.given["activities"] == ["CPU", "NPU"], "never the CPU alone"
    assert (live.given["with_stack"], live.given["record_shapes"], live.given["with_flops"]) == (
        True,
        False,
        True,
    )
    assert (
        config["profiler_level"],
        config["aic_metrics"],
        config["export_type"],
        config["mstx"],
    ) == ("Level2", "Memory", "Text", True)
    assert live.actions == ["WARMUP", "RECORD", "RECORD", "RECORD_AND_SAVE", "NONE"]
    assert made.name == "rank-0-steps-3-5.ascend_pt"
    assert tool.problem(made, []) is None


@pytest.mark.parametrize("level", ["level_none", "level0", "level1"])
def test_counters_are_none_unless_they_are_named(
    torch_npu: object, tmp_path: Path, level: str
) -> None:
    recorded(tmp_path, f"profiler.npu.level={level}", "profiler.npu.export_type=db")
    config = Profile.made[0].given["experimental_config"]
    assert (config["profiler_level"], config["aic_metrics"], config["export_type"]) == (
        level.replace("l", "L", 1),
        "AiCoreNone",
        "Db",
    )


def test_what_torch_npu_has_not_written_is_missed(torch_npu: object, tmp_path: Path) -> None:
    tool, made = recorded(tmp_path)
    (made / "ASCEND_PROFILER_OUTPUT/trace_view.json").unlink()
    assert "trace_view.json" in str(tool.problem(made, []))
    (made / "PROF_000001/data").unlink()
    (made / "PROF_000001").rmdir()
    assert "no PROF_*" in str(tool.problem(made, []))
    with pytest.raises(RuntimeError, match="has made no folder"):
        tool.write(tmp_path / "rank-0-steps-3-5", [])


def test_roles_are_mstx_ranges_on_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    declared = RECORD["torch.npu.mstx"]
    scope: dict[str, Any] = {"calls": calls}
    for name in declared:
        exec(
            f"def {name}({declared[name]['arguments']}):\n calls.append(({name!r},"
            " *locals().values()))\n return 7",
            scope,
        )
    mstx = types.SimpleNamespace(range_start=scope["range_start"], range_end=scope["range_end"])
    module = types.SimpleNamespace(mstx=mstx, current_stream=lambda device=None: "stream")
    monkeypatch.setattr(device_profiling.torch, "get_device_module", lambda _: module)
    npu: Any = types.SimpleNamespace(type="npu")  # torch.device knows of it once torch_npu is there
    named = device_profiling.ranges(npu)
    assert named is not None
    with named("forward"):
        pass
    assert calls == [("range_start", "forward", "stream", "default"), ("range_end", 7, "default")]


class Memory:
    """`torch.cuda.memory`: its functions' own signatures, over a snapshot as torch writes it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def _record_memory_history(self, *arguments: Any, **named: Any) -> None:
        # Takes anything itself; the implementation that it calls names them.
        self.calls.append(
            dict(
                inspect.signature(torch.cuda.memory._record_memory_history_impl)
                .bind(*arguments, **named)
                .arguments
            )
        )

    def _snapshot(self) -> dict[str, Any]:
        changes: Sequence[tuple[str, int]] = (
            ("alloc", 300),
            ("alloc", 500),
            ("free_requested", 300),
            ("free_completed", 300),
        )
        trace = [
            {"action": action, "size": size, "time_us": 1_000_000 * place}
            for place, (action, size) in enumerate(changes)
        ]
        return {"segments": [{"allocated_size": 600}], "device_traces": [trace]}


def test_the_allocators_history_is_kept_and_its_curve_ends_at_what_is_allocated(
    tmp_path: Path,
) -> None:
    memory = Memory()
    tool = MemoryTool(
        request(
            "digits", "profiler=memory", "profiler.memory.max_entries=5", "device.kind=cuda"
        ).run.profiler,
        memory,
    )
    tool.start(5)
    tool.step(5)
    tool.stop()
    made = tool.write(tmp_path / "rank-0-steps-5-5", [5])
    assert memory.calls == [{"max_entries": 5}, {"enabled": None}]
    assert made.memory == ((0.0, 400.0), (1.0, 900.0), (3.0, 600.0))
    assert pickle.loads(made.files[0].read_bytes()) == memory._snapshot()
    assert tool.problem(made.files[0], [5]) is None
    made.files[0].write_bytes(b"half")
    assert "does not parse" in str(tool.problem(made.files[0], [5]))


def test_an_end_for_lack_of_memory_writes_a_snapshot_also_outside_of_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = request("digits", "profiler=memory").run
    module = types.SimpleNamespace(
        memory=Memory(),
        max_memory_allocated=lambda device: 1,
        reset_peak_memory_stats=lambda device: None,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    profiler = open_profiler(run, Ranks(device=torch.device("cuda")), tmp_path, 0, 600, print)

    def step() -> None:
        with profiler:
            profiler.begin(1)
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        step()
    assert [path.name for path in (tmp_path / "profile").iterdir()] == [
        "rank-0-steps-1-1.memory.pickle"
    ]


def test_nsys_range_is_opened_at_the_first_step_and_closed_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    tool = NsysTool()
    tool.start(5)
    tool.step(5)
    tool.stop()
    tool.stop()
    assert calls == ["start", "synchronize", "stop"]
