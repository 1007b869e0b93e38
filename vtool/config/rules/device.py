"""The rule about `device.numa`: who binds a process to the cores near its device."""

from collections.abc import Iterator, Mapping

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule


def why_unbound(
    run: Run, kind: str, nproc: int | None, origins: Origins | None = None, *, outer: bool = False
) -> Iterator[Diagnostic]:
    """Yield the reason why `device.numa` would do nothing.

    Args:
        kind: of device; `auto` where it has not been chosen.
        nproc: processes on this machine; None where they are not known.
        outer: whether a torchrun of the user's own has started them.
    """
    numa = run.device.numa
    if numa is None:
        return
    if outer:
        message, help = (
            "the processes have been started by a torchrun, which alone can bind them",
            f"torchrun --numa-binding={numa} …",
        )
    elif kind == "cpu":
        message, help = (
            "a process on a CPU is near no device; its cores are those it was started with",
            "leave it out; `taskset` chooses cores",
        )
    elif nproc == 1:
        message, help = (
            "a single process is started by no launcher that could bind it",
            "leave it out; `numactl` binds a process",
        )
    elif kind == "npu" and numa != "node":
        message, help = (
            "torch_npu binds to whole NUMA nodes (CPU_AFFINITY_CONF=1)",
            "device.numa=node",
        )
    else:
        return
    origin = origins.near("device.numa") if origins else None
    yield Diagnostic(
        "numa-unbound", f"device.numa is {numa}, but {message}", help, "device.numa", origin
    )


def bound_otherwise(
    run: Run, environment: Mapping[str, str], origins: Origins | None = None
) -> Diagnostic | None:
    """Return the `launch-conflict` of an NPU whose processes the environment binds otherwise."""
    given = environment.get("CPU_AFFINITY_CONF")
    if run.device.numa is None or given in (None, "", "1"):
        return None
    message = (
        f"device.numa is {run.device.numa}, which sets CPU_AFFINITY_CONF=1, and in the environment"
        f" it is {given}"
    )
    origin = origins.near("device.numa") if origins else None
    return Diagnostic("launch-conflict", message, "leave one of them out", "device.numa", origin)


@settings_rule(
    Rule(
        name="numa-unbound",
        code="VT223",
        summary="device.numa is set where nothing binds a process to the cores near its device.",
        why=(
            "It would be ignored: torchrun binds the processes that it starts itself, torch_npu"
            " each of its own by CPU_AFFINITY_CONF."
        ),
        bad="device.kind=cpu device.numa=node launch.nproc=2",
        good="device.kind=cuda device.numa=node launch.nproc=2",
        fix=(
            "Leave it out on a CPU and with one process; under a torchrun of your own, give it"
            " --numa-binding."
        ),
    ),
)
def numa_unbound(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that device.numa is set only where a launcher or torch_npu binds processes.

    What only the launch knows, it asks there.
    """
    yield from why_unbound(run, run.device.kind, run.launch.nproc, origins)
