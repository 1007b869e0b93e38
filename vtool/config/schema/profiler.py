"""Settings `profiler`: which steps of a run are recorded, with what, and on which ranks."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ActsLater, Settings

OFF = (-1, -1)
"""`profile_interval`, where nothing is recorded."""


class Record(Settings):
    """The facts recorded of each operation. `torch` and `npu`."""

    arrival: ClassVar = ActsLater()
    shapes: bool = False
    """The shapes of its inputs; the tables then have a line for each shape."""
    stacks: bool = False
    """The lines of Python that it comes from. Steps take much longer while they are recorded."""
    flops: bool = True
    """The arithmetic of matrix products, convolutions and attention.

    Model FLOPs utilisation (MFU) is not known without it.
    """
    memory: bool = True
    """The memory that it allocates and frees, as a curve."""


class NpuProfiler(Settings):
    """Further settings of torch_npu's profiler. `npu`."""

    arrival: ClassVar = ActsLater()
    level: Literal["level_none", "level0", "level1", "level2"] = "level1"
    """The part of the device's own work that is collected: from nothing but marks to all of it."""
    aic_metrics: (
        Literal[
            "PipeUtilization",
            "ArithmeticUtilization",
            "Memory",
            "MemoryL0",
            "MemoryUB",
            "ResourceConflictRatio",
            "L2Cache",
            "MemoryAccess",
        ]
        | None
    ) = None
    """A group of counters of the AI cores. It takes level1 or level2."""
    export_type: Literal["text", "db"] = "text"
    """The format of what the analysis writes: JSON and CSV, or a data base."""
    analysis: bool = True
    """Make a trace and tables of the raw data when the interval ends, while the run waits;

    else `torch_npu.profiler.analyse` does.
    """


class MemoryHistory(Settings):
    """The history of the device's allocator. `memory`."""

    arrival: ClassVar = ActsLater()
    max_entries: int = Field(default=100_000, ge=1)
    """The number of allocations and frees that are kept, the newest ones."""


class Profiler(Settings):
    """The steps and ranks that are recorded, and the tool.

    Files go to the run's folder, under profile/.
    """

    arrival: ClassVar = ActsLater()
    tool: Literal["none", "torch", "npu", "nsys", "memory"] = "none"
    """`torch`:

    torch.profiler. `npu`: torch_npu.profiler. `nsys`: Nsight Systems' range. `memory`: a snapshot
    of the allocator.
    """
    profile_interval: tuple[int, int] = OFF
    """The first and the last step that is recorded, counted from 1 over the whole run, both
    included. [-1, -1] records nothing.
    """
    warmup: int = Field(default=1, ge=0)
    """Steps before the first in which the tool runs and nothing is kept:

    its own first step is slow. `torch` and `npu`.
    """
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """The ranks that record. Default: all of them."""
    record: Record = Record()
    npu: NpuProfiler = NpuProfiler()
    memory: MemoryHistory = MemoryHistory()
    max_trace_mb: int | None = Field(default=100, ge=1)
    """The largest trace of a rank, in MB as it is on the disk:

    of a larger one the shortest operations are left out. `torch`.
    """

    @property
    def starts(self) -> int:
        """The step in which the tool starts: the first one, or that in which its warm-up begins."""
        return self.profile_interval[0] - (self.warmup if self.tool in ("torch", "npu") else 0)
