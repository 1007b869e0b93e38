"""The probe is a folder that runs anywhere."""

import ast
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import vtool.loading.worker
from tests.loading.models import KeepsAll, checkpoint
from vtool.config.schema.load_check import ClassFramework
from vtool.loading.probe.facts import Done, Finished, ProbeRequest, Ready, Unusable
from vtool.loading.probe.host import HOSTS, Host, OnProgress, open_host
from vtool.loading.probe.pool import Pool, TimeSpent, is_over
from vtool.loading.probe.subject import Subject

PROBE = vtool.loading.worker._PROBE
FRAMEWORKS = {
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
    "vllm",
    "sglang",
    "torchvision",
    "runai_model_streamer",
    "fastsafetensors",
}


@pytest.mark.parametrize("file", sorted(PROBE.rglob("*.py")), ids=lambda file: file.name)
def test_it_imports_itself_the_standard_library_torch_and_frameworks_only(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            named = [node.module or ""]
        else:
            continue
        for name in named:
            assert name.partition(".")[0] in sys.stdlib_module_names | FRAMEWORKS, (
                f"{file.name} imports {name}"
            )


def test_every_framework_that_a_user_can_name_has_a_host() -> None:
    assert set(HOSTS) == {*get_args(ClassFramework), "python"}


@pytest.mark.parametrize("name", HOSTS)
def test_every_host_of_the_registry_opens_without_its_framework(name: str) -> None:
    host = open_host(name)
    assert isinstance(host, Host)
    assert host.subjects_are_users == (name == "python")


@pytest.mark.full
def test_none_of_its_files_hides_a_module_of_others() -> None:
    """Python puts the folder of a script first in `sys.path`; the probe takes it out."""
    ready, finished, done = vtool.loading.worker.probe_events(
        sys.executable, request(["nothing.py:factory"])
    )
    assert (type(ready), type(done)) == (Ready, Done)
    assert isinstance(finished, Finished)
    assert finished.facts.status == "failed"


def test_an_interpreter_that_is_none_is_reported() -> None:
    with pytest.raises(ValueError, match="cannot be started"):
        list(vtool.loading.worker.probe_events("/no/such/python", request([])))


def test_an_interpreter_without_torch_is_reported(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -I -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    (event,) = vtool.loading.worker.probe_events(str(bare), request([]))
    assert isinstance(event, Unusable)
    assert "cannot import torch" in event.reason


class Tiny(Host):
    """A host with one subject, whose ranks end as they are given."""

    name = "tiny"

    def __init__(self, on_ranks: Callable[[], None]) -> None:
        self.on_ranks = on_ranks

    def import_framework(self) -> str:
        return "1"

    def list_subjects(self) -> list[str]:
        return ["one"]

    def make_subject(self, name: str, folder: Path, progress: OnProgress) -> Subject:
        return Subject(
            KeepsAll,
            checkpoint(),
            KeepsAll.load_weights,
            "twin",
            paths=lambda _: {"load_weights": "unprotected"},
            on_ranks=lambda *_: self.on_ranks(),
        )


@pytest.mark.full
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda: _held(3 * 2**30), "it took more than 2048 MiB"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "it was ended by SIGKILL"),
        (lambda: os._exit(0), "it exited with status 0"),
    ],
    ids=["grows", "crashes", "leaves"],
)
def test_what_a_later_check_ends_keeps_what_was_found_before(
    end: Any, reason: str, tmp_path: Path
) -> None:
    asked = ("stale-reference", "shard-mismatch", "quantised-load")
    wanted = ProbeRequest("vllm", None, asked, ("reusable_buffer",))
    events: list[Finished] = []
    Pool(Tiny(end), wanted, tmp_path, events.append).run(["one"])
    facts = events[0].facts
    assert (facts.status, facts.reason) == ("judged", f"{reason} (at: shard-mismatch)")
    assert facts.checks["stale-reference"].items
    assert facts.paths == {"load_weights": "unprotected"}
    assert [facts.checks[rule].reason for rule in asked[1:]] == [
        f"{reason} (at: shard-mismatch)"
    ] * 2


@pytest.mark.parametrize(
    ("before", "now", "over"),
    [
        (TimeSpent(0, 0), TimeSpent(59, 59), False),
        (TimeSpent(0, 0), TimeSpent(61, 60.5), True),
        (TimeSpent(0, 0), TimeSpent(61, 0.2), True),
        (TimeSpent(0, 0), TimeSpent(61, 12), False),
        (TimeSpent(290, 58), TimeSpent(300, 59.9), False),
        (TimeSpent(300, 59.9), TimeSpent(310, 61.0), True),
        (TimeSpent(290, 40), TimeSpent(300, 40.1), True),
    ],
    ids=["in time", "slow", "idle", "waits", "waits long", "ends late", "stands still later"],
)
def test_a_subject_has_its_seconds_of_computing(
    before: TimeSpent, now: TimeSpent, over: bool
) -> None:
    assert is_over(60, before, now) is over


def test_a_subject_does_not_destroy_what_was_garbage_before_its_fork(tmp_path: Path) -> None:
    class EndsOtherProcesses:
        """A stand-in for a process group of gloo, which ends a process without its threads."""

        def __init__(self) -> None:
            self.itself, self.process = self, os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.process:
                os.kill(os.getpid(), signal.SIGSEGV)

    events: list[Finished] = []
    wanted = ProbeRequest("vllm", None, ("stale-reference",), ("reusable_buffer",))
    gc.collect()
    gc.disable()
    try:
        EndsOtherProcesses()
        Pool(Tiny(lambda: None), wanted, tmp_path, events.append).run(["one"])
    finally:
        gc.enable()
    assert (events[0].facts.status, events[0].facts.reason) == ("judged", "")


def _held(size: int) -> None:
    _memory = b"x" * size
    time.sleep(60)


@pytest.mark.full
def test_what_a_subject_leaves_in_temporary_folders_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "litters.py"
    file.write_text(
        f"import tempfile\ndef f():\n    open({str(tmp_path / 'where')!r},"
        " 'w').write(tempfile.mkdtemp())\n"
    )
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    list(vtool.loading.worker.probe_events(sys.executable, request([f"{file}:f"])))
    assert (tmp_path / "where").read_text().startswith(str(tmp_path / "temporary"))
    assert not list((tmp_path / "temporary").iterdir())


def request(subjects: list[str]) -> ProbeRequest:
    return ProbeRequest("python", tuple(subjects), checks=(), sources=())
