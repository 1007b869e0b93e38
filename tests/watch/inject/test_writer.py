"""Facts reach their file whole, or it is reported once that they do not; nothing is raised."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from vtool.watch.inject.vtool_watch.facts import FactWriter
from vtool.watch.inject.vtool_watch.settings import WatchSettings


def lines(folder: Path) -> list[dict[str, object]]:
    (file,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_are_whole_where_the_system_writes_a_few_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:7]))
    writer = FactWriter(WatchSettings(str(tmp_path)))
    writer.write_all("rows", [(0, {"n": 1}), (1, {"n": math.nan})], 0)
    found = [(one["kind"], one["step"], one.get("n")) for one in lines(tmp_path)]
    assert found == [("process", 0, None), ("rows", 0, 1), ("rows", 1, None)]
    assert (writer.rows, writer.failed) == (2, False)


def test_a_full_disk_is_reported_once_and_nothing_is_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = FactWriter(WatchSettings(str(tmp_path)))
    writer.write("rows", step=0)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        writer.write("rows", step=1)
        writer.write("rows", step=2)
    writer.write("rows", step=3)
    assert writer.failed
    assert capsys.readouterr().err.count("facts are no longer written") == 1
    assert [one["step"] for one in lines(tmp_path)] == [0, 0]


def test_a_fork_of_the_process_writes_nothing(tmp_path: Path) -> None:
    writer = FactWriter(WatchSettings(str(tmp_path)))
    writer.pid += 1
    writer.write("rows")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("variables", "rank", "world", "local_rank"),
    [
        ({"LOCAL_RANK": "abc"}, 0, 1, 0),
        ({"RANK": "", "LOCAL_RANK": ""}, 0, 1, 0),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 1, 2, 1),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}, 1, 2, 0),
        # the script of sbatch, which is alone
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1, 0),
    ],
)
def test_a_rank_is_read_of_any_launcher_and_never_stops_the_facts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    rank: int,
    world: int,
    local_rank: int,
) -> None:
    # an engine of another test may have begun a process group, which is asked first
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    FactWriter(WatchSettings(str(tmp_path))).write("rows", step=0)
    process = lines(tmp_path)[0]
    assert (process["rank"], process["world"], process["local_rank"]) == (rank, world, local_rank)
