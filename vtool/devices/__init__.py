"""What the devices can do: the only place that tells one from another."""

import ctypes
import os
from dataclasses import dataclass

import torch

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one rank computes, and the backend over which ranks talk."""

    device: torch.device
    backend: str
    threads: int


def place(run: Run, local_rank: int, local_world: int) -> Placement:
    """Choose this rank's device and thread count, as `device.kind` and `device.threads` say.

    Raises:
        Findings: `device-missing`, where the recipe asks for a device that is not there.
    """
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    threads = run.device.threads or max(1, len(os.sched_getaffinity(0)) // local_world)
    if run.device.kind == "cpu" or (run.device.kind == "auto" and cuda == 0):
        return Placement(torch.device("cpu"), "gloo", threads)
    if cuda < local_world:
        raise Findings(
            Diagnostic(
                "device-missing",
                f"{local_world} processes need a CUDA device each, and torch {torch.__version__} sees {cuda}",
                parameter="device.kind",
                help="use device.kind=cpu, fewer processes (launch.nproc), or a torch build for this machine's GPUs",
            )
        )
    return Placement(torch.device("cuda", local_rank), "nccl", threads)


def keep_freed_memory() -> None:
    """Have glibc keep the memory that a step frees for the next one.

    Left alone it gives the top of the heap back to the system after each step of `digits`, and gets it again in 2300 page faults: a
    twentieth of the step's time. Other C libraries have no `mallopt`, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD: the largest there is; blocks above it are mapped, and returned at once
        mallopt(-1, 256 * 2**20)  # M_TRIM_THRESHOLD: free memory at the top of the heap beyond this is returned


def seed(device: torch.device, number: int) -> None:
    """Seed the generators that work on this device draws from.

    `torch.manual_seed` seeds those of every device there could be, and formats a stack trace for the ones that have not been used.
    """
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
