"""`vtool validate-config --live`: settings compared with a run's real objects, in processes.

The command starts them, and imports no torch itself. Each process builds the objects at a tiny size
(`small_session`), and reads the settings back.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.load import Loaded
from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.config.schema.base import ActsLater, NotReadable
from vtool.config.settings import arrivals
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import working
from vtool.processes import Ended, join_ranks, run_processes
from vtool.verification.shrink_run import SmallRun, shrink_run
from vtool.words import first_line

LIVE_CHECKS = ("objects-not-built", "setting-not-arrived", "device-not-used")


@dataclass(frozen=True, slots=True)
class LiveTask:
    """The task of each process that builds the objects."""

    run: Run
    """The recipe's."""
    small: SmallRun
    origins: Origins


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The findings of one process, and the settings that it could compare."""

    findings: tuple[Diagnostic, ...] = ()
    read: frozenset[str] = frozenset()
    """Settings that were compared with an object."""
    unseen: frozenset[str] = frozenset()
    """Settings that no object shows."""


@dataclass(frozen=True, slots=True)
class LiveResult:
    """The result of --live."""

    checks: Mapping[str, str]
    findings: tuple[Diagnostic, ...] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """A summary for people: what was read back, made smaller, and not checked."""


def live_not_run(reason: str = "") -> LiveResult:
    """Return the result where nothing was built."""
    details = {rule: {"reason": reason} for rule in LIVE_CHECKS} if reason else {}
    return LiveResult(dict.fromkeys(LIVE_CHECKS, "not-run"), details=details)


def check_live(loaded: Loaded) -> LiveResult:
    """Build the objects of a valid recipe in processes, and compare its settings with them."""
    if not isinstance(loaded.settings, Run):
        return live_not_run("a recipe of kind load_check builds nothing")
    small = shrink_run(loaded.run)
    with working("building the objects"):
        results = _observe_in_processes(LiveTask(loaded.run, small, loaded.origins))
    findings = tuple(dict.fromkeys(finding for result in results for finding in result.findings))
    failed = {finding.rule for finding in findings}
    built = failed <= {"setting-not-arrived", "device-not-used"}
    checks = dict.fromkeys(LIVE_CHECKS, "passed" if built else "not-run")
    checks |= dict.fromkeys(failed, "failed")
    if not built:
        return LiveResult(checks, findings)
    details: dict[str, dict[str, Any]] = {}
    if "device.kind" in small.not_asked:
        checks["device-not-used"] = "not-run"
        details["device-not-used"] = {"reason": small.not_asked["device.kind"]}
    settings = _sort_settings(results, small)
    details["setting-not-arrived"] = {"processes": small.processes, **settings}
    return LiveResult(checks, findings, details, tuple(_describe(small, settings)))


def _sort_settings(results: list[WorkerResult], small: SmallRun) -> dict[str, Any]:
    """Return the settings that were read back, that act later, and that could not be checked."""
    names = arrivals()
    read = frozenset[str]().union(*(result.read for result in results))
    unseen = set(names).intersection(*(result.unseen for result in results)) if results else set()
    not_asked = dict(small.not_asked)
    for name in names:
        # A decay of a part is asked of what is trained in it, and a frozen part has nothing of it.
        if name in unseen and not name.startswith("optim.groups."):
            not_asked.setdefault(name, _why_unseen(name, small))
    return {
        "read": [name for name in names if name in read and name not in small.not_asked],
        "acts_later": [name for name, arrival in names.items() if arrival == ActsLater()],
        "not_readable": {
            name: arrival.why for name, arrival in names.items() if isinstance(arrival, NotReadable)
        },
        "not_asked": not_asked,
        "smaller": list(small.changes),
    }


def _why_unseen(name: str, small: SmallRun) -> str:
    if name.startswith("engine.") and small.processes == 1:
        return "one process has no such object"
    if name == "data.micro_batch_size" and small.run.data.packing != "none":
        return "a packed row has as many as data.micro_batch_tokens has room for"
    if name.startswith("data."):
        return "the file is large, or not here, and was left closed"
    if name == "engine.cpu_offload":
        return "on a CPU it is no choice"
    return "it has no object in this run"


def _describe(small: SmallRun, settings: Mapping[str, Any]) -> list[str]:
    several = "es" * (small.processes > 1)
    lines = [
        f"live: {len(settings['read'])} settings read back from the objects of {small.processes}"
        f" process{several}; {len(settings['acts_later'])} act later, and have a test each"
    ]
    lines += [f"live: smaller here: {change}" for change in settings["smaller"]]
    reasons: dict[str, list[str]] = {}
    for name, why in settings["not_asked"].items():
        if name != "device.kind":  # a check of its own
            reasons.setdefault(why, []).append(name)
    return lines + [
        f"live: not asked here: {', '.join(names)}: {why}" for why, names in reasons.items()
    ]


def _observe_in_processes(task: LiveTask) -> list[WorkerResult]:
    """Start the processes, and return what each has found: its end, where it ended without that."""
    results = run_processes(
        "vtool.verification.live", task, task.small.processes, lambda result: bool(result.findings)
    )
    return [
        _not_built(f"process {rank} of --live {result.how}")
        if isinstance(result, Ended)
        else result
        for rank, result in enumerate(results)
        if result is not None
    ]


def _not_built(message: str) -> WorkerResult:
    return WorkerResult((Diagnostic("objects-not-built", message),))


def work(task: LiveTask, folder: Path, rank: int) -> WorkerResult:
    """Build and compare in one of the processes."""
    try:
        return observe_small_run(task, folder, rank)
    except Findings as findings:
        return WorkerResult(tuple(findings.diagnostics))
    # whatever the libraries raise while they build what the settings describe
    except Exception as error:
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        return _not_built(f"{type(error).__name__} at {where}: {first_line(error)}")


def observe_small_run(task: LiveTask, folder: Path, rank: int) -> WorkerResult:
    """Build the objects of one process, and compare the settings with them.

    Raises:
        Findings: where they cannot be built.
    """
    import torch

    from vtool.config.expected import expected_settings
    from vtool.config.readback import observed_settings, unobserved
    from vtool.devices import place
    from vtool.engines.ranks import Ranks
    from vtool.training.observe_run import check_arrival, observe_run
    from vtool.verification.small_session import open_small_session

    world = task.small.processes
    torch.set_num_threads(place(task.small.run, rank, world).threads)
    if world > 1:
        join_ranks(folder, rank, world)
    session = open_small_session(task.run, task.small.run, folder, Ranks(rank, world, rank, world))
    observed, expected = observe_run(session), expected_settings(session.run)
    findings: tuple[Diagnostic, ...] = ()
    try:
        check_arrival(session, task.origins)
    except Findings as different:
        findings = different.diagnostics
    return WorkerResult(
        findings,
        frozenset(observed_settings(expected, observed)),
        frozenset(unobserved(expected, observed)),
    )
