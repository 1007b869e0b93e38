"""A data worker that ends by itself is reported with the row that it was at."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import encoded, messages, request
from vtool.data.inspect_rows import inspect_rows
from vtool.data.loader import EncodedRows, MicroBatch, load_steps
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.data.worker_failures import RowsInWork, with_named_failures
from vtool.diagnostics import Findings

ROWS, BAD = 12, 7
RULE = "data-worker-failed"


def crashing_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, signal_number: int = signal.SIGKILL
) -> EncodedRows:
    """Return rows of which one ends the data worker that reads it."""
    write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, text_only=(1, 5)))
    own = Rows.row

    def row(self: Rows, index: int) -> Row:
        if index == BAD and get_worker_info() is not None:
            os.kill(os.getpid(), signal_number)
        return own(self, index)

    monkeypatch.setattr(Rows, "row", row)
    return encoded(request("rows", messages(folder / "rows.jsonl")))[0]


def message_of(work: Callable[[], object]) -> str:
    """Return the message of the finding that a function raises, in a process of its own.

    torch reports a lost worker by an exception that its signal handler raises wherever the process
    is, which may be in pytest.
    """
    receiving, sending = multiprocessing.Pipe(duplex=False)
    if not (pid := os.fork()):
        try:
            work()
            sending.send(("nothing was raised", ""))
        except Findings as findings:
            (finding,) = findings.diagnostics
            sending.send((finding.rule, finding.message))
        except BaseException as error:
            sending.send((type(error).__name__, str(error)))
        finally:
            os._exit(0)
    sending.close()
    rule, message = receiving.recv()
    os.waitpid(pid, 0)
    assert rule == RULE, message
    return str(message)


def failing(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_is_lost_names_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, ended_by: int
) -> None:
    rows = crashing_rows(tmp_path, monkeypatch, ended_by)
    steps = load_steps(
        rows, range(ROWS // 2), lambda step: [MicroBatch((2 * step, 2 * step + 1))], workers
    )

    assert f"rows.jsonl:{BAD + 1} (process " in message_of(
        lambda: with_named_failures(lambda: list(steps), lambda: rows.in_work, rows.rows.name)
    )


def test_an_audit_that_is_lost_names_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = crashing_rows(tmp_path, monkeypatch)
    assert f"rows.jsonl:{BAD + 1} (process " in message_of(
        lambda: inspect_rows(rows, range(ROWS), 2)
    )


def test_a_picture_that_crashes_the_audit_is_reported_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtool.data import encode

    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, ROWS))
    rows = encoded(request("rows", messages(tmp_path / "rows.jsonl")))[0]
    own, bad = encode.visuals_of, rows.rows.row(BAD).images

    def visuals_of(row: Row, *given: Any, **named: Any) -> Any:
        if row.images == bad and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGSEGV)
        return own(row, *given, **named)

    monkeypatch.setattr(encode, "visuals_of", visuals_of)
    assert f"rows.jsonl:{BAD + 1} (process " in message_of(
        lambda: inspect_rows(rows, range(ROWS), 1)
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("expected all tensors on the same device"),
        FileNotFoundError(2, "No such file"),
        ValueError("a bad value"),
    ],
)
def test_another_error_is_left_as_it_is(tmp_path: Path, error: Exception) -> None:
    write_rows(tmp_path / "rows.jsonl", [chat("What is it?", "a cat") for _ in range(4)])
    rows = encoded(request("rows", messages(tmp_path / "rows.jsonl")))[0]
    steps = load_steps(rows, range(4), lambda step: [MicroBatch((step,))], 1)
    next(steps)  # there is a worker, and it is well
    with pytest.raises(type(error)) as raised:
        with_named_failures(failing(error), lambda: rows.in_work, rows.rows.name)
    assert raised.value is error


def test_torchs_handler_may_come_while_a_pipes_error_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = crashing_rows(tmp_path, monkeypatch)
    handler = RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
    comes = iter([True])

    def in_work() -> RowsInWork:
        if next(comes, False):
            raise handler
        work = RowsInWork(1)
        work._marks[0] = torch.tensor([2**22 + 1, BAD])  # no process has this number
        return work

    with pytest.raises(Findings) as raised:
        with_named_failures(failing(ConnectionResetError(104, "reset")), in_work, rows.rows.name)
    assert f"at {rows.rows.name(BAD)} (process " in str(raised.value)


def test_without_workers_nothing_is_noted(tmp_path: Path) -> None:
    in_work = RowsInWork(2)
    in_work.mark(3)  # this process is no data worker
    assert not in_work.lost()
    error = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(ConnectionResetError):
        with_named_failures(failing(error), lambda: None, str)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Their batches fill the pipe, which nobody reads any more."""
    (tmp_path / "parent.py").write_text(
        "import os, sys, time\n"
        "from functools import partial\n"
        "from torch.utils.data import DataLoader\n"
        "from vtool.data.worker_failures import end_with_parent\n"
        "init = partial(end_with_parent, os.getpid())\n"
        "rows = [bytes(1 << 20)] * 99\n"
        "loader = iter(DataLoader(rows, None, num_workers=2, worker_init_fn=init))\n"
        "next(loader)\n"
        "print(*[each.pid for each in loader._workers], flush=True)\n"
        "time.sleep(99)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        workers = [*map(int, parent.stdout.readline().split())]
        parent.kill()
    assert len(workers) == 2
    until = time.monotonic() + 20
    while (left := [*filter(_is_there, workers)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever took it over may not have waited for it yet
