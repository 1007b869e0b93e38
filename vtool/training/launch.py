"""Start the ranks of a run: in this process, under an outer launcher, or by torchrun's API."""

import atexit
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from vtool.config.rules.device import why_unbound
from vtool.config.schema import Run
from vtool.devices import attention_without_cudnn, bind, device_kind, keep_freed_memory, place
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import NotConnectedError, Ranks, SharedFindings, meet
from vtool.launchers import check_launch
from vtool.profiling.after import incomplete_profiles
from vtool.training.run_folder import RunFolder
from vtool.training.session import RunRequest
from vtool.training.sft import RunOutcome, train
from vtool.training.stop import SAME_REQUEST, SignalContext, leave_terminal
from vtool.words import first_line

Report = Callable[[Findings], None]

# How long ranks have to end after a second signal before they are killed.
LAST_SECONDS = 5.0


def launch(request: RunRequest, report: Report) -> RunOutcome:
    """Run `train` on every rank, and return how it ended.

    Under a launcher of the user's, every rank calls this, and every rank returns that.

    Args:
        report: prints the findings of a single rank, in its own process.

    Raises:
        Findings: what stopped the run. Those of a single rank have been printed by it, and
            `rank-failed` is raised here.
    """
    if check_launch(request.run.launch.nproc):
        ranks = Ranks.from_environment()
        try:
            _check_bound(request.run, ranks.local_world, outer=True)
            return run_rank(request, ranks)
        except SharedFindings:
            if ranks.rank == 0:
                raise
            raise SystemExit(1) from None  # rank 0 speaks for all
        except RuntimeError as error:
            if not _lost_a_peer(error):
                raise
            raise Findings(Diagnostic("rank-failed", _what_was_lost(ranks, error))) from error
    nproc = request.run.launch.nproc or 1
    _check_bound(request.run, nproc)
    if nproc == 1:
        return run_rank(request, Ranks())
    return _launch_ranks(request, nproc, report)


def run_rank(request: RunRequest, ranks: Ranks) -> RunOutcome:
    """Set up this process's device, threads and process group, and train.

    A process that trains alone, such as a notebook's, has its number of threads back afterwards.
    """
    threads = torch.get_num_threads()
    ranks, begun = meet(request.run, ranks)
    keep_freed_memory()
    try:
        with attention_without_cudnn(ranks.device):
            outcome = train(request, ranks)
    finally:
        if ranks.world == 1 or not begun:
            torch.set_num_threads(threads)
    if begun:
        dist.destroy_process_group()
    return outcome


def _check_bound(run: Run, nproc: int, *, outer: bool = False) -> None:
    """Check `device.numa` again, now that the device is chosen and the processes are counted."""
    if run.device.numa is not None and (
        found := tuple(why_unbound(run, device_kind(run), nproc, outer=outer))
    ):
        raise SharedFindings(found)


def _launch_ranks(request: RunRequest, nproc: int, report: Report) -> RunOutcome:
    run = request.run
    place(run, 0, nproc)  # a missing device is reported once, and not by each rank

    def others(rank: int, how: str) -> Iterator[Diagnostic]:
        yield from incomplete_profiles(run, nproc, RunFolder(run.folder).metrics, {rank: how})

    numa = bind(run, device_kind(run))
    outcome: RunOutcome = start_ranks(
        partial(run_rank, request), nproc, run.run.name, report, numa=numa, others=others
    )
    return outcome


def start_ranks(
    work: Callable[[Ranks], Any],
    nproc: int,
    name: str,
    report: Report,
    *,
    numa: Any = None,
    others: Callable[[int, str], Iterable[Diagnostic]] = lambda rank, how: (),
) -> Any:
    """Have torchrun's agent start ranks, and return what the first one's `work` returns.

    Args:
        work: of each rank; it can be pickled, and so can what it returns.
        nproc: the number of ranks.
        name: of what they do.
        report: prints the findings of a single rank, in its own process.
        numa: how they are bound to cores, if they are.
        others: given a rank that failed and how, what is to be reported in addition.

    Raises:
        Findings: `rank-failed`, and `others`. What a rank has printed by itself is not repeated.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its own lines report processes that it ends; ours say why the run ended.
    for logger in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with _Forward() as forward:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=name,
            max_restarts=0,
            monitor_interval=0.2,
            logs_specs=_no_logs(),
            numa_options=numa,
            # those of stop.py are handled here: the ranks finish their step
            signals_to_handle="SIGQUIT",
        )
        try:
            with _sigint_blocked():
                outcomes: dict[int, Any] = elastic_launch(config, _rank_main)(
                    work, report, os.getpid()
                )
        except ChildFailedError as error:
            if forward.first == signal.SIGINT:
                raise KeyboardInterrupt from None
            # the ranks were stopped before their first step, or did not end in time
            if forward.first is not None:
                raise _stopped(forward.first) from None
            first, failure = min(error.failures.items(), key=lambda item: _blame_order(item[1]))
            code = failure.exitcode
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            found = tuple(others(first, how))
            if code != 1:
                raise Findings(
                    (Diagnostic("rank-failed", f"rank {first} ended with {how}"), *found)
                ) from error
            if found:
                raise Findings(found) from error
            raise SystemExit(1) from None  # it has said why
    return outcomes[0]


def _no_logs() -> Any:
    """Return the launcher's settings for logs: none, as the ranks print to this terminal.

    Its own would make a folder in the temporary directory, and a `kill -9` leave it there.
    """
    from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

    class NoLogs(LogsSpecs):
        @property
        def root_log_dir(self) -> str:
            return os.devnull

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            for environment in envs.values():
                environment["TORCHELASTIC_ERROR_FILE"] = ""
            here = dict.fromkeys(envs, "")
            return LogsDest(here, dict(here), error_files=dict.fromkeys(envs, os.devnull))

    return NoLogs()


def _blame_order(failure: Any) -> tuple[int, int]:
    """Return a sort key that puts first the rank for which the others failed.

    A rank that was killed or has spoken comes before one that lost its peer, and that before one
    that was ended with the others; the earliest of each kind first.
    """
    order = (
        2
        if failure.exitcode == -signal.SIGTERM
        else 0
        if failure.exitcode < 0 or failure.exitcode == 1
        else 1
    )
    return order, failure.timestamp


def _rank_main(work: Callable[[Ranks], Any], report: Report, launcher: int) -> Any:
    """Do the work of a rank in its own process, and end it.

    It leaves the terminal's process group, so that a Ctrl-C reaches it once, through its parent.
    """
    os.setpgrp()
    atexit.register(_end_quietly)
    threading.Thread(target=_end_with_launcher, args=(launcher,), daemon=True).start()
    ranks = Ranks.from_environment()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return work(ranks)
    except Findings as findings:
        if ranks.rank == 0 or not isinstance(findings, SharedFindings):
            report(findings)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        # seventy lines of gloo's would hide whose fault it is, and the other rank reports that
        # or the launcher
        if _lost_a_peer(error):
            print(_what_was_lost(ranks, error), file=sys.stderr)
        else:
            traceback.print_exc()
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    # at once: other ranks may wait in a collective, and leaving the process group would wait for
    # them
    os._exit(code)


def _lost_a_peer(error: Exception) -> bool:
    """Return whether a collective failed because its peer's process ended (gloo, NCCL)."""
    phrases = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "remote process exited",
    )
    return isinstance(error, NotConnectedError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in phrases)
    )


def _what_was_lost(ranks: Ranks, error: Exception) -> str:
    what = (
        "could not connect to the other ranks"
        if isinstance(error, NotConnectedError)
        else "has lost its connection to another rank"
    )
    reason = first_line(error).partition(" This is typically caused by")[0]
    return f"rank {ranks.rank} {what}: {reason}"


def _end_with_launcher(launcher: int) -> None:
    """End this process when its launcher has gone: nobody else would."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(1)


def _end_quietly() -> None:
    """End the process before torch's own exit handlers run.

    With a process group that DDP has used, these abort about one time in ten (torch 2.13, gloo),
    and a finished run would count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and so in the processes that it starts.

    `_rank_main` unblocks it: a rank that is still importing must not answer a Ctrl-C with its
    traceback. Another thread is left to take the signal; its handler runs in the main one.
    """
    # a process would start it otherwise, and unblock SIGINT on the way
    resource_tracker.ensure_running()
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        done.set()


class _Forward(SignalContext):
    """A context that passes the signals of `stop.py` on to the ranks.

    After a second one they have a few seconds, and are then killed.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._received = 0
        self._came = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
            self._came = time.monotonic()
        elif time.monotonic() - self._came < SAME_REQUEST:
            return
        self._received += 1
        if number == signal.SIGHUP:
            leave_terminal()
        if multiprocessing.active_children():
            _signal_ranks(number)
        # signalled once they are there: an exception raised here might come out where it is ignored
        else:
            threading.Thread(target=_signal_when_there, args=(number,), daemon=True).start()
        if self._received == 2:
            threading.Thread(target=_kill_ranks_after, args=(LAST_SECONDS,), daemon=True).start()


def _stopped(number: int) -> SystemExit:
    """Return the exit for a signal other than Ctrl-C's that came before the first step."""
    sys.stderr.write(f"stopped by {signal.Signals(number).name}\n")
    return SystemExit(128 + number)


def _signal_ranks(number: int) -> None:
    for process in multiprocessing.active_children():
        if process.pid is not None:
            os.kill(process.pid, number)


def _signal_when_there(number: int) -> None:
    while not multiprocessing.active_children():
        time.sleep(0.05)
    _signal_ranks(number)


def _kill_ranks_after(seconds: float) -> None:
    time.sleep(seconds)
    _signal_ranks(signal.SIGKILL)
