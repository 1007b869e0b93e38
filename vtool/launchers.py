"""The place that a launcher gives this process: torchrun and its contract, Slurm, MPI.

The contract is torch's: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which say who is who, and
how all meet. Where it is complete, nothing else is read. Standard library alone: every command asks
before it imports anything.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

_RANK, _WORLD = "RANK", "WORLD_SIZE"
_LOCAL_RANK, _LOCAL_WORLD = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_OF_A_RANK = (_RANK, _WORLD, _LOCAL_RANK, _LOCAL_WORLD, _TORCHRUN)
# The highest id of a step that srun starts; the script of sbatch, the shell of salloc, and what
# watches over a job have ids above it.
_LAST_STEP = 0xFFFFFFF0
_SPEAKS_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """This process's place among those that a launcher has started."""

    command: str
    """The launcher, in words."""
    said: str
    """The variables that say so, with their values."""
    rank: int
    world: int
    """0 where the launcher does not say it."""
    local_rank: int | None = None
    local_world: int | None = None
    """None where the launcher does not say it."""
    meets: bool = True
    """False where the processes do not know where they meet."""
    help: str = ""
    """The way to start vtool instead, where they do not."""


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of a launcher that does not keep torch's contract."""

    command: str
    rank: str
    world: tuple[str, ...]
    local_rank: str
    local_world: str = ""


# Of two that say as many processes the first is named: Slurm sets PMI_RANK too, and Open MPI
# starts its own daemons by srun.
_OTHERS = (
    *(
        _Variables(
            "mpirun",
            f"{prefix}_COMM_WORLD_RANK",
            (f"{prefix}_COMM_WORLD_SIZE",),
            f"{prefix}_COMM_WORLD_LOCAL_RANK",
            f"{prefix}_COMM_WORLD_LOCAL_SIZE",
        )
        for prefix in ("OMPI", "MV2", "MVP")
    ),
    _Variables("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID"),
    _Variables("mpiexec", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Variables("an MPI launcher", "PMIX_RANK", (), ""),
)


def read_launch(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """Return this process's place by the environment; None where nothing has started several.

    Raises:
        Findings: `rank-variables`, fatal.
    """
    given = _given(environment, (_RANK, _WORLD, _LOCAL_RANK, _LOCAL_WORLD))
    if not {_RANK, _WORLD} <= given.keys():
        if other := _of_other_launchers(environment):
            return other
        if given in ({}, {_WORLD: "1"}):
            return None
        for each in given:
            _number(environment, each)
        lacking = [name for name in (_RANK, _WORLD) if name not in given]
        empty = [name for name in lacking if name in environment]
        is_not = "empty" if empty == lacking else "not set"
        verb = "are" if len(lacking) > 1 else "is"
        _refuse(environment, f"{' and '.join(lacking)} {verb} {is_not}")
    rank, world = _number(environment, _RANK), _number(environment, _WORLD)
    local_rank = _number(environment, _LOCAL_RANK) if _LOCAL_RANK in given else None
    # DeepSpeed's launcher has a name of its own
    local = next(iter(_given(environment, (_LOCAL_WORLD, "LOCAL_SIZE"))), None)
    local_world = _number(environment, local) if local else None
    for name, value, last, of in (
        (_RANK, rank, world - 1, _WORLD),
        (_LOCAL_RANK, local_rank or 0, (local_world or world) - 1, local or _WORLD),
        (local, local_world or 1, world, _WORLD),
    ):
        if value > last:
            _refuse(environment, f"{name} is {value}, and with this {of} {last} at most")
    if world > 1 and (missing := [name for name in _MEETING if not environment.get(name)]):
        verb = "are" if len(missing) > 1 else "is"
        _refuse(environment, f"{' and '.join(missing)} {verb} not set: where the ranks meet")
    if world > 1:
        _check_port(environment)
    by = "torchrun" if _TORCHRUN in environment else "a launcher"
    return LaunchedProcess(by, _said(environment), rank, world, local_rank, local_world)


def joined_launch(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """Return the launch whose ranks this process joins; None where it trains alone.

    Raises:
        Findings: `launcher-not-joined`, `rank-variables`, fatal.
    """
    found = read_launch(environment)
    if found is None or found.meets:
        return found
    from vtool.diagnostics import Diagnostic, Findings

    several = f"{found.world} processes" if found.world else "this process as one of several"
    message = (
        f"{found.command} has started {several} ({found.said}), which do not know where they meet:"
        " each would do all of it by itself, in one folder"
    )
    raise Findings(Diagnostic("launcher-not-joined", message, found.help), fatal=True)


def check_launch(nproc: int | None) -> LaunchedProcess | None:
    """Return the launch whose ranks this process joins, with `launch.nproc` held against it.

    Raises:
        Findings: `launch-conflict`, `launcher-not-joined`, `rank-variables`, fatal.
    """
    found = joined_launch()
    if not is_joined(found):
        return None
    here = (found.local_world or 1) if found else 1
    if found is not None and nproc not in (None, here):
        from vtool.diagnostics import Diagnostic, Findings

        of = f"{here} process{'es' * (here > 1)} here" if found.local_world else "this process"
        message = (
            f"launch.nproc is {nproc}, but {found.command} has started {of} already ({found.said})"
        )
        help = (
            "leave launch.nproc out; or start one torchrun in the place of each process, which"
            f" starts {nproc}: torchrun --nnodes {found.world} --node-rank {found.rank}"
            f" --nproc-per-node {nproc} --master-addr $MASTER_ADDR --master-port $MASTER_PORT -m"
            " vtool …"
            if not found.local_world
            else f"leave launch.nproc out, or leave {found.command} out"
        )
        raise Findings(Diagnostic("launch-conflict", message, help, "launch.nproc"), fatal=True)
    return found


def is_joined(found: LaunchedProcess | None) -> bool:
    """Check whether a process is a rank that something else has started.

    One process that is alone, as in a pod, may start ranks itself; one of torchrun's may not.
    """
    return found is not None and (found.world != 1 or _TORCHRUN in os.environ)


def is_rank() -> bool:
    """Check whether this process is one of several, or of torchrun."""
    try:
        return is_joined(read_launch())
    except ValueError:
        return False


def is_first() -> bool:
    """Check whether this process speaks for all: no launcher says that another one does."""
    try:
        found = read_launch()
    except ValueError:
        return True
    return found is None or found.rank == 0


def wait_for_first() -> None:
    """Wait until the first process has spoken for all, and say in a line that it has.

    A launcher ends all when one has ended with an error: mpirun at once.
    """
    time.sleep(_SPEAKS_WITHIN)
    found = read_launch()
    said = f" ({found.said})" if found else ""
    sys.stderr.write(f"nothing is done here{said}: the first process says why\n")


def without_rank(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment for a process that is no rank of this run."""
    return {key: value for key, value in environment.items() if key not in _OF_A_RANK}


def _of_other_launchers(environment: Mapping[str, str]) -> LaunchedProcess | None:
    """Return the place by Slurm or MPI, where they have started several processes."""
    found: list[LaunchedProcess] = []
    for one in _OTHERS:
        if not environment.get(one.rank) or (one.command == "srun" and not _in_a_step(environment)):
            continue
        if not one.world and ("SLURM_JOB_ID" in environment or found):
            continue  # Slurm, or a launcher that was asked before, says how many there are
        sizes = [name for name in one.world if environment.get(name)][:1]
        world = _number(environment, sizes[0]) if sizes else 0
        names = (one.rank, *sizes)
        if world == 1 and one.world:
            found.append(LaunchedProcess(one.command, "", 0, 1))
            continue
        local_rank, local_world = (
            _number(environment, name) if name and environment.get(name) else None
            for name in (one.local_rank, one.local_world)
        )
        meets = bool(world and all(environment.get(name) for name in _MEETING))
        if meets:
            _check_port(environment)
        said = ", ".join(f"{name}={environment[name]}" for name in names)
        found.append(
            LaunchedProcess(
                one.command,
                said,
                _number(environment, one.rank),
                world,
                local_rank,
                local_world,
                meets,
                _how_instead(one, environment, world, local_world),
            )
        )
    several = [launch for launch in found if launch.world != 1]
    return max(several, key=lambda launch: launch.world, default=None)


def _in_a_step(environment: Mapping[str, str]) -> bool:
    """Check whether srun has started this process: not the script of sbatch, nor salloc's shell.

    Nor a shell that `srun --pty` has opened, whatever the allocation's number of tasks.
    """
    if "SLURM_PTY_PORT" in environment and environment["SLURM_PROCID"] == "0":
        return False
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or ""
    if step.isdecimal():
        return int(step) < _LAST_STEP
    return not step and environment["SLURM_PROCID"] != "0"


def _how_instead(
    one: _Variables, environment: Mapping[str, str], world: int, local_world: int | None
) -> str:
    """Return the way to start what was meant."""
    alone = "for processes that each do a run of their own, set RANK=0 WORLD_SIZE=1 in each"
    machines = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
    if world and (local_world == world or (one.command == "srun" and machines == "1")):
        started = "srun --ntasks 1" if one.command == "srun" else f"without {one.command}"
        return f"start vtool once ({started}) and give it --nproc {world}; {alone}"
    each = "--ntasks-per-node 1" if one.command == "srun" else "--map-by ppr:1:node"
    command = one.command if one.command in ("srun", "mpirun") else "mpirun"
    return (
        f"start one torchrun on each machine: {command} {each} torchrun --nnodes N"
        " --nproc-per-node GPUS --rdzv-backend c10d --rdzv-id NAME --rdzv-endpoint HOST:29500 -m"
        f" vtool …; or set MASTER_ADDR and MASTER_PORT, and each joins as a rank; {alone}"
    )


def _given(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that are set; an empty one is not."""
    return {name: value for name in names if (value := environment.get(name, "").strip())}


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name].strip()
    if not (text.isascii() and text.isdecimal()) or (text.strip("0") == "" and "SIZE" in name):
        least = "a number above 0" if "SIZE" in name else "a number from 0 on"
        _refuse(environment, f"{name} is `{text}`, and takes {least}", name)
    return int(text)


def _check_port(environment: Mapping[str, str]) -> None:
    if not 0 < _number(environment, _MEETING[1]) < 65536:
        _refuse(environment, f"{_MEETING[1]} is no port")


def _said(environment: Mapping[str, str], *more: str) -> str:
    """Return the variables of the contract that are there, with their values."""
    names = dict.fromkeys((_RANK, _WORLD, _LOCAL_RANK, _LOCAL_WORLD, *more))
    return ", ".join(f"{name}={environment[name]}" for name in names if name in environment)


def _refuse(environment: Mapping[str, str], problem: str, *more: str) -> NoReturn:
    from vtool.diagnostics import Diagnostic, Findings

    said = _said(environment, *more, *_MEETING)
    raise Findings(Diagnostic("rank-variables", f"{problem}; here: {said}"), fatal=True)
