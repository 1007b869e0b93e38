"""`vtool validate-config --live`:

start the processes that build a run's objects, and say what they have found. Imports no torch
itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vtool.config.load import Loaded
from vtool.config.schema import Run
from vtool.config.schema.base import ActsLater, NotReadable
from vtool.config.settings import arrivals
from vtool.diagnostics import Diagnostic
from vtool.verify.live_task import Task, WorkerResult
from vtool.verify.processes import Ended, run_processes
from vtool.verify.shrink_run import StandIn, shrink_run

ASKED = ("objects-not-built", "setting-not-arrived", "device-not-used")


@dataclass(frozen=True, slots=True)
class Live:
    """What --live has come to."""

    checks: Mapping[str, str]
    findings: tuple[Diagnostic, ...] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """For people:

    what was read back, what was made smaller for that, and what could not be told.
    """


def not_run(reason: str = "") -> Live:
    """Nothing was built."""
    return Live(
        dict.fromkeys(ASKED, "not-run"),
        details={rule: {"reason": reason} for rule in ASKED} if reason else {},
    )


def check_live(loaded: Loaded) -> Live:
    """Build the objects of a recipe that the rules have nothing against, and hold its settings
    against them.
    """
    if not isinstance(loaded.settings, Run):
        return not_run("a recipe of kind load_check builds nothing")
    small = shrink_run(loaded.run)
    everyone = _processes(loaded, small)
    findings = tuple(dict.fromkeys(finding for told in everyone for finding in told.findings))
    failed = {finding.rule for finding in findings}
    if failed - {"setting-not-arrived", "device-not-used"}:
        checks = {
            rule: "failed" if rule in failed else "not-run" for rule in ASKED
        } | dict.fromkeys(failed, "failed")
        return Live(checks, findings)
    checks = {rule: "failed" if rule in failed else "passed" for rule in ASKED}
    details: dict[str, dict[str, Any]] = {}
    if "device.kind" in small.not_asked:
        checks["device-not-used"] = "not-run"
        details["device-not-used"] = {"reason": small.not_asked["device.kind"]}
    told = _read(everyone, small)
    details["setting-not-arrived"] = {"processes": small.processes, **told}
    return Live(checks, findings, details, tuple(_lines(small, told)))


def _read(everyone: list[WorkerResult], small: StandIn) -> dict[str, Any]:
    """By what is known of them, the settings that the recipe's kinds of engine, rows and adapters
    have.
    """
    leaves = arrivals()
    read = frozenset[str]().union(*(told.read for told in everyone))
    unshown = (
        frozenset[str].intersection(*(told.unseen for told in everyone))
        if everyone
        else frozenset()
    )
    # A decay that is asked of a part is asked of what is trained in it, and a frozen part has
    # nothing of it.
    missed = {
        name: _why(name, small)
        for name in leaves
        if name in unshown and not name.startswith("optim.groups.")
    }
    missed = {name: why for name, why in missed.items() if name not in small.not_asked}
    return {
        "read": [name for name in leaves if name in read and name not in small.not_asked],
        "acts_later": [name for name, arrival in leaves.items() if arrival == ActsLater()],
        "not_readable": {
            name: arrival.why
            for name, arrival in leaves.items()
            if isinstance(arrival, NotReadable)
        },
        "not_asked": small.not_asked | missed,
        "smaller": list(small.changes),
    }


def _why(name: str, small: StandIn) -> str:
    if name.startswith("engine.") and small.processes == 1:
        return "one process has no such object"
    if name == "data.micro_batch_size" and small.run.data.packing != "none":
        return "a packed row has as many as data.micro_batch_tokens has room for"
    if name.startswith("data."):
        return "the file is large, or not here, and was left closed"
    return (
        "on a CPU it is no choice"
        if name == "engine.cpu_offload"
        else "it has no object in this run"
    )


def _lines(small: StandIn, told: Mapping[str, Any]) -> list[str]:
    several = "es" * (small.processes > 1)
    lines = [
        f"live: {len(told['read'])} settings read back from the objects of {small.processes}"
        f" process{several}; {len(told['acts_later'])} act later, and have a test each"
    ]
    lines += [f"live: smaller here: {change}" for change in told["smaller"]]
    reasons: dict[str, list[str]] = {}
    for name, why in told["not_asked"].items():
        if name != "device.kind":  # a check of its own
            reasons.setdefault(why, []).append(name)
    return lines + [
        f"live: not asked here: {', '.join(names)}: {why}" for why, names in reasons.items()
    ]


def _processes(loaded: Loaded, small: StandIn) -> list[WorkerResult]:
    """What each process has found; of one that has ended without a word, that."""
    task = Task(loaded.run, small, loaded.origins)
    told = run_processes(
        "vtool.verify.live_rank", task, small.processes, lambda told: bool(told.findings)
    )
    return [
        (
            WorkerResult((Diagnostic("objects-not-built", f"process {rank} of --live {one.how}"),))
            if isinstance(one, Ended)
            else one
        )
        for rank, one in enumerate(told)
        if one is not None
    ]
