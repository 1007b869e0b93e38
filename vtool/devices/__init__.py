"""What the devices can do: the only place that tells one from another."""

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
