"""The tools that record: torch's profiler, torch_npu's, Nsight Systems, the allocator's history."""

import csv
import io
import itertools
import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from vtool.config.schema.profiler import Profiler as Settings
from vtool.devices.profiling import npu_profiler
from vtool.profiling.files import replace_file
from vtool.profiling.own_lines import without_own_lines
from vtool.profiling.trace import Packed, check_trace, highest_points, write_trace

TOP = 50
"""Operations in the tables."""
COLUMNS = ("name", "calls", "self_us", "total_us", "share", "flops", "shapes")
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "torch": ("trace.json.gz", "kernels.txt", "kernels.csv"),
    "npu": ("ascend_pt",),
    "memory": ("memory.pickle",),
    "nsys": (),
}
"""The files that a tool promises of each rank: `rank-R-steps-A-B.` and one of these."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The results of a tool: its files, and what the summary takes from them."""

    files: tuple[Path, ...]
    kernels: tuple[dict[str, Any], ...] = ()
    """The operations with the most time of their own, by `COLUMNS`; the CPU's where it computes."""
    flops: int | None = None
    """Arithmetic of the recorded steps on this rank; None where it was not counted."""
    memory: tuple[tuple[float, float], ...] = ()
    """Seconds since the recording began, and bytes."""
    memory_of: str = ""
    left_out: int = 0
    """Operations that were left out of the trace, to limit its size."""
    broken: Mapping[Path, str] = field(default_factory=dict)
    """The reason why a file of `files` is missing."""


class Tool(Protocol):
    """A tool that records.

    Its methods are called in this order; `step` after each step from the one in which it was
    started.
    """

    def start(self, step: int) -> None:
        """Start recording, before the first step of the warm-up or of the interval."""

    def step(self, ended: int) -> None:
        """Take in the number of a step that has ended."""

    def stop(self) -> None:
        """Stop recording, after the last step or wherever the run ends."""

    def write(self, stem: Path, steps: Sequence[int]) -> Recording:
        """Write what was recorded of these steps to files whose names begin with the stem's."""

    def problem(self, path: Path, steps: Sequence[int]) -> str | None:
        """Return the problem of a file that `write` has written; None where it is whole."""


def make_tool(settings: Settings, device: torch.device, folder: Path, rank: int) -> Tool:
    """Return the tool that `profiler.tool` names."""
    match settings.tool:
        case "torch":
            return TorchTool(settings, device)
        case "npu":
            return NpuTool(settings, folder, rank)
        case "nsys":
            return NsysTool()
        case _:
            return MemoryTool(settings, torch.get_device_module(device).memory)


def actions(settings: Settings, kinds: Any) -> Callable[[int], Any]:
    """Return the schedule of a profiler: its action in each step, by the step's number in the run.

    Args:
        kinds: `ProfilerAction`, torch's or torch_npu's.
    """
    first, last = settings.profile_interval

    def action(step: int) -> Any:
        if step > last:
            return kinds.NONE
        if step < first:
            return kinds.WARMUP
        return kinds.RECORD if step < last else kinds.RECORD_AND_SAVE

    return action


@dataclass(slots=True)
class ScheduledProfile:
    """The part that torch's profiler and torch_npu's have in common."""

    settings: Settings
    profile: Any = field(default=None, init=False)

    def make_profile(self, **record: Any) -> Any:
        """Make the profile, which is given what to record of each operation."""
        raise NotImplementedError

    def start(self, step: int) -> None:
        record = self.settings.record
        self.profile = self.make_profile(
            record_shapes=record.shapes,
            profile_memory=record.memory,
            with_stack=record.stacks,
            with_flops=record.flops,
        )
        # It counts steps as the run does, also in a resumed run: its trace names them.
        self.profile.step_num = step
        self.profile.current_action = self.profile.schedule(step)
        with without_own_lines():
            self.profile.start()

    def step(self, ended: int) -> None:
        with without_own_lines():
            self.profile.step()

    def stop(self) -> None:
        with without_own_lines():
            self.profile.stop()


@dataclass(slots=True)
class TorchTool(ScheduledProfile):
    """torch.profiler: the CPU and, on CUDA, the device's kernels."""

    device: torch.device
    ready: bool = field(default=False, init=False)

    def make_profile(self, **record: Any) -> Any:
        on_cuda = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
        return torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *on_cuda],
            schedule=actions(self.settings, ProfilerAction),
            on_trace_ready=self._ready,
            **record,
        )

    def write(self, stem: Path, steps: Sequence[int]) -> Recording:
        if not self.ready:
            raise RuntimeError("torch's profiler has not said that its trace is ready")
        trace, text, table = (
            stem.with_name(f"{stem.name}.{ending}") for ending in ENDINGS["torch"]
        )
        broken: dict[Path, str] = {}
        packed = None
        try:  # a disk that has no room for the trace may have room for the tables
            packed = self._write_trace(trace, steps)
        except (OSError, ValueError) as error:
            broken[trace] = str(error)
        sums = self.profile.key_averages(group_by_input_shape=self.settings.record.shapes)
        rows = top_operations(sums, self.device.type)
        for path, write in ((text, in_columns), (table, as_csv)):
            try:
                replace_file(path, write(rows))
            except OSError as error:
                broken[path] = str(error)
        # The FLOPs of attention are in the trace alone.
        record = self.settings.record
        return Recording(
            (trace, text, table),
            tuple(rows),
            flops=(
                sum(one.flops for one in sums) + packed.facts.attention_flops
                if record.flops and packed
                else None
            ),
            memory=packed.facts.memory if record.memory and packed else (),
            memory_of=(
                "of tensors, over what was allocated before"
                if self.device.type == "cpu"
                else "of tensors on the device"
            ),
            left_out=packed.left_out if packed else 0,
            broken=broken,
        )

    def _write_trace(self, trace: Path, steps: Sequence[int]) -> Packed:
        raw = trace.with_name(f".writing-{trace.name.removesuffix('.gz')}")
        beside = raw.with_name(f"{raw.name}.tmp")  # where torch begins it
        try:
            self.profile.export_chrome_trace(str(raw))
            if not raw.exists() or not raw.stat().st_size:  # on a full disk torch says nothing
                begun = beside.stat().st_size / 2**20 if beside.exists() else 0.0
                free = shutil.disk_usage(trace.parent).free / 2**20
                raise OSError(
                    f"torch could not write it: there was room for {begun + free:.0f} MiB of it,"
                    " before it is compressed"
                )
            return write_trace(raw, trace, self.device.type, steps, self.settings.max_trace_mb)
        finally:
            raw.unlink(missing_ok=True)
            if beside.exists():
                # torch keeps a file open that it could not finish, and with it the room on the disk
                os.truncate(beside, 0)
                beside.unlink()

    def problem(self, path: Path, steps: Sequence[int]) -> str | None:
        return (
            check_trace(path, steps, self.device.type)
            if path.name.endswith(".trace.json.gz")
            else check_table(path)
        )

    def _ready(self, _: Any) -> None:
        self.ready = True


def top_operations(sums: Any, device: str) -> list[dict[str, Any]]:
    """Return the operations with the most time of their own, as rows of `COLUMNS`."""
    own, total_name = (
        ("self_device_time_total", "device_time_total")
        if device == "cuda"
        else ("self_cpu_time_total", "cpu_time_total")
    )
    # A step and its parts are no operations: theirs is the time between these.
    found = [one for one in sums if not one.is_user_annotation and getattr(one, own) > 0]
    total = sum(getattr(one, own) for one in found) or 1.0
    return [
        {
            "name": one.key,
            "calls": one.count,
            "self_us": round(getattr(one, own), 3),
            "total_us": round(getattr(one, total_name), 3),
            "share": getattr(one, own) / total,
            "flops": one.flops or "",  # of which torch counts nothing
            "shapes": str(one.input_shapes) if one.input_shapes else "",
        }
        for one in sorted(found, key=lambda one: -getattr(one, own))[:TOP]
    ]


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def in_columns(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table as text in columns."""
    head = f"{'self ms':>12} {'share':>7} {'calls':>9} {'total ms':>12} {'GFLOP':>10}  operation\n"
    lines = []
    for row in rows:
        flops = f"{row['flops'] / 1e9:.3f}" if row["flops"] else ""
        name = f"{row['name']} {row['shapes']}".rstrip()
        times = (
            f"{row['self_us'] / 1000:12.3f} {row['share']:7.2%} {row['calls']:9,}"
            f" {row['total_us'] / 1000:12.3f}"
        )
        lines.append(f"{times} {flops:>10}  {name}\n")
    return head + "".join(lines)


def check_table(path: Path) -> str | None:
    """Return the problem of a written table; None where there is a line in it."""
    with path.open(newline="") as file:
        if path.suffix == ".csv":
            rows = list(csv.DictReader(file))
            return None if rows and all(row["self_us"] for row in rows) else "it has no operation"
        return None if file.read().strip() else "it is empty"


@dataclass(slots=True)
class NpuTool(ScheduledProfile):
    """torch_npu.profiler.

    It catches its own errors and continues: only its files show whether it worked.
    """

    folder: Path
    rank: int

    def make_profile(self, **record: Any) -> Any:
        npu, own = npu_profiler(), self.settings.npu
        config = npu._ExperimentalConfig(
            profiler_level=getattr(npu.ProfilerLevel, own.level.replace("level", "Level")),
            aic_metrics=getattr(npu.AiCMetrics, own.aic_metrics or "AiCoreNone"),
            mstx=True,  # the spans
            export_type=getattr(npu.ExportType, own.export_type.capitalize()),
        )
        return npu.profile(
            activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
            schedule=actions(self.settings, npu.ProfilerAction),
            on_trace_ready=npu.tensorboard_trace_handler(
                str(self.folder), f"rank-{self.rank}", own.analysis
            ),
            experimental_config=config,
            **record,
        )

    def write(self, stem: Path, steps: Sequence[int]) -> Recording:
        found = sorted(
            self.folder.glob(f"rank-{self.rank}_*_ascend_pt"), key=lambda path: path.stat().st_mtime
        )
        if not found:
            raise RuntimeError(
                f"torch_npu's profiler has made no folder rank-{self.rank}_*_ascend_pt; its log"
                " says why"
            )
        target = stem.with_name(f"{stem.name}.ascend_pt")
        os.rename(found[-1], target)
        return Recording((target,))

    def problem(self, path: Path, steps: Sequence[int]) -> str | None:
        if not any(path.glob("PROF_*")):
            return (
                "there is no PROF_* of the device in it; the environment may have another profiler,"
                " or ASCEND_RT_VISIBLE_DEVICES"
            )
        if not self.settings.npu.analysis:
            return None
        as_text = self.settings.npu.export_type == "text"
        pattern = "trace_view.json" if as_text else "ascend_pytorch_profiler*.db"
        if any(file.stat().st_size for file in path.glob(f"ASCEND_PROFILER_OUTPUT/{pattern}")):
            return None
        return (
            f"its analysis has made no ASCEND_PROFILER_OUTPUT/{pattern};"
            " `torch_npu.profiler.analyse` makes it again"
        )


@dataclass(slots=True)
class NsysTool:
    """The capture range of Nsight Systems (`--capture-range=cudaProfilerApi`).

    Its file is nsys' own, and is written when nsys ends.
    """

    started: bool = False

    def start(self, step: int) -> None:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        self.started = True

    def step(self, ended: int) -> None:
        pass

    def stop(self) -> None:
        if self.started:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            self.started = False

    def write(self, stem: Path, steps: Sequence[int]) -> Recording:
        return Recording(())

    def problem(self, path: Path, steps: Sequence[int]) -> str | None:
        raise AssertionError("nsys promises no file of ours")


@dataclass(slots=True)
class MemoryTool:
    """The device's allocator: a snapshot with its history, for https://pytorch.org/memory_viz."""

    settings: Settings
    memory: Any
    """The module `torch.cuda.memory`."""
    recording: bool = field(default=False)
    snapshot: Any = None

    def start(self, step: int) -> None:
        self.memory._record_memory_history(max_entries=self.settings.memory.max_entries)
        self.recording = True

    def step(self, ended: int) -> None:
        pass

    def stop(self) -> None:
        self.snapshot = self.memory._snapshot()
        if self.recording:
            self.memory._record_memory_history(enabled=None)
            self.recording = False

    def write(self, stem: Path, steps: Sequence[int]) -> Recording:
        path = stem.with_name(f"{stem.name}.memory.pickle")
        with path.open("wb") as file:
            pickle.dump(self.snapshot, file)
        return Recording(
            (path,), memory=memory_curve(self.snapshot), memory_of="of tensors on the device"
        )

    def problem(self, path: Path, steps: Sequence[int]) -> str | None:
        try:
            with path.open("rb") as file:
                segments = pickle.load(file)["segments"]
        except (pickle.UnpicklingError, EOFError, KeyError) as error:
            return f"it does not parse: {error}"
        return None if segments else "the allocator has nothing in it"


def memory_curve(snapshot: Any) -> tuple[tuple[float, float], ...]:
    """Return the allocated bytes over seconds, from a snapshot's history.

    It ends at what is allocated when the snapshot is taken.
    """
    changes = [
        (one["time_us"] / 1e6, one["size"] if one["action"] == "alloc" else -one["size"])
        for one in itertools.chain(*snapshot["device_traces"])
        if one["action"] in ("alloc", "free_completed")
    ]
    now = sum(segment["allocated_size"] for segment in snapshot["segments"])
    level = now - sum(change for _, change in changes)
    points = []
    for seconds, change in changes:
        level += change
        points.append((round(seconds - changes[0][0], 6), float(level)))
    return highest_points(points)
