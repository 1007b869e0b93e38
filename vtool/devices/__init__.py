"""Devices: the choice of each rank's, and what differs between CPU, CUDA and NPU."""

import ctypes
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.numa.binding import AffinityMode, NumaOptions

from vtool.config.rules.device import bound_otherwise
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.words import plural


@dataclass(frozen=True, slots=True)
class Placement:
    """The device that one rank computes on, and the backends over which ranks talk."""

    device: torch.device
    backend: str
    """One, or one for each kind of device, as `torch.distributed` takes them."""
    threads: int


# Tensors of the device go over its own library. Python's numbers and objects, which are tensors of
# the CPU on their way, go over gloo, so that no rank waits for its device to send them.
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}
_WORDS = {"cuda": "a CUDA device", "npu": "an NPU"}


def place(run: Run, local_rank: int, local_world: int) -> Placement:
    """Choose this rank's device and thread count, as `device.kind` and `device.threads` say.

    Raises:
        Findings: `device-missing`, where the recipe asks for a device that is not there.
    """
    threads = run.device.threads or _asked_threads(local_world) or own_cores(run, local_world)
    kind = device_kind(run)
    if kind == "cpu":
        return Placement(torch.device("cpu"), "gloo", threads)
    if kind == "npu":
        _import_torch_npu()
    if (there := _count(kind)) < local_world:
        need = f"need {_WORDS[kind]} each" if local_world > 1 else f"needs {_WORDS[kind]}"
        raise _missing(
            f"{plural(local_world, 'process', 'processes')} {need}, and torch {torch.__version__}"
            f" sees {there}",
            "use device.kind=cpu, fewer processes (launch.nproc), or a torch build for this"
            " machine's devices",
        )
    return Placement(torch.device(kind, local_rank), BACKENDS[kind], threads)


@contextmanager
def attention_without_cudnn(device: torch.device) -> Iterator[None]:
    """Keep scaled dot product attention on a GPU off cuDNN, which torch would take first.

    cuDNN plans its kernels again for each shape, and rows of a step have lengths of their own: a
    step of Qwen2.5-VL-3B with pictures waited longer for plans than it computed (H100, torch 2.11).
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def device_kind(run: Run) -> str:
    """Return `device.kind`, or the kind that `auto` finds here."""
    return kind_here() if run.device.kind == "auto" else run.device.kind


def kind_here() -> str:
    """Return the kind of device that is there."""
    return next((each for each in BACKENDS if _count(each)), "cpu")


def bind(run: Run, kind: str) -> NumaOptions | None:
    """Return the options by which torchrun binds processes to cores, if any.

    For NPUs none: torch_npu reads the environment that processes are started in, which is set.

    Raises:
        Findings: `launch-conflict`, where that environment says otherwise.
    """
    if run.device.numa is None or kind != "npu":
        return None if run.device.numa is None else NumaOptions(AffinityMode(run.device.numa))
    if conflict := bound_otherwise(run, os.environ):
        raise Findings(conflict)
    os.environ["CPU_AFFINITY_CONF"] = "1"
    return None


def own_cores(run: Run, local_world: int) -> int:
    """Return a rank's share of the cores of its machine, at least one."""
    return max(1, _cores(run) // local_world)


def _asked_threads(local_world: int) -> int | None:
    """Return the threads that OMP_NUM_THREADS asks for; None: it does not, or is a launcher's.

    torchrun sets it to 1 for several processes, whatever cores there are.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    asked = int(first) if first.isdecimal() else 0
    return None if asked == 0 or (asked == 1 and local_world > 1) else asked


def spare_cores(run: Run, local_world: int, kind: str) -> int:
    """Return the cores of a rank that compute nothing: on a CPU all but its threads."""
    busy = torch.get_num_threads() if kind == "cpu" else 1
    return max(0, own_cores(run, local_world) - busy)


def _cores(run: Run) -> int:
    """Return the number of cores that the run's processes on this machine share.

    A process that is bound to some of them does not see the others.
    """
    return len(os.sched_getaffinity(0)) if run.device.numa is None else os.cpu_count() or 1


def _count(kind: str) -> int:
    """Return the number of devices of a kind that torch sees.

    It knows of NPUs once torch_npu is imported, which torch does by itself where it is installed.
    """
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def _import_torch_npu() -> None:
    """Give torch its device `npu`.

    Raises:
        Findings: `device-missing`, with what the import printed: without CANN's libraries, or with
            another torch, it raises.
    """
    try:
        importlib.import_module("torch_npu")
    except Exception as error:
        raise _missing(
            f"torch_npu cannot be imported with torch {torch.__version__}:"
            f" {type(error).__name__}: {error}",
            "install torch_npu of torch's own version and source CANN's set_env.sh; `npu-smi info`"
            " shows the devices",
        ) from error


def _missing(message: str, advice: str) -> Findings:
    return Findings(Diagnostic("device-missing", message, parameter="device.kind", help=advice))


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a step frees for the next one.

    Left alone it gives the top of the heap back to the system after each step of `digits`, and gets
    it again in 2300 page faults: a twentieth of the step's time. Other C libraries have no
    `mallopt`, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # M_MMAP_THRESHOLD: the largest there is; blocks above it are mapped, and returned at once
        mallopt(-3, 32 * 2**20)
        # M_TRIM_THRESHOLD: free memory at the top of the heap beyond this is returned
        mallopt(-1, 256 * 2**20)


def seed(device: torch.device, number: int) -> None:
    """Seed the generators that work on this device draws from.

    `torch.manual_seed` seeds those of every device there could be, and formats a stack trace for
    the ones that have not been used.
    """
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
