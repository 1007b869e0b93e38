"""Settings `run`, `launch` and `device`: where a run lives and what it runs on."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ActsLater, ReadBack, Settings

_BY_RUN = ReadBack("vtool.training.observe_run:observe_run")


class RunSettings(Settings):
    """The name, folder and seed of the run."""

    arrival: ClassVar = _BY_RUN
    name: Annotated[str, ActsLater()] = Field(min_length=1)
    """The run's name. Default: the recipe's name."""
    dir: str | None = Field(default=None, min_length=1)
    """The run's own folder. Default: runs/<name>."""
    seed: int = Field(default=0, ge=0)
    """Seeds random weights, those of `lora` too, dropout, and the order of the rows."""


class Launch(Settings):
    """The processes of a run."""

    arrival: ClassVar = _BY_RUN
    nproc: int | None = Field(default=None, ge=1)
    """Processes on this machine. Default: 1, or what an outer torchrun started."""


class Device(Settings):
    """The device that the run computes on."""

    arrival: ClassVar = _BY_RUN
    kind: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """`auto` takes CUDA where there is one, else an Ascend NPU where torch_npu sees one.

    `npu` has not been run on hardware.
    """
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each process. Default: OMP_NUM_THREADS, else the cores divided by processes.

    A 1 that torchrun sets for several processes by itself is not taken: write `device.threads=1`.
    """
    numa: Annotated[Literal["node", "socket", "exclusive", "core-complex"] | None, ActsLater()] = (
        None
    )
    """The cores a process is bound to, by their way to its device.

    CUDA: torchrun's `--numa-binding`. NPU: `node`, CPU_AFFINITY_CONF=1.
    """
