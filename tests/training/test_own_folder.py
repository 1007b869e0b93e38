"""A run starts in an empty folder, or resumes in its own; nobody else's files are touched."""

import json
import os
from pathlib import Path

import pytest

from vtool.diagnostics import Diagnostic, Findings
from vtool.report.run_files import in_training
from vtool.training.metrics import append
from vtool.training.own_folder import MARKER, write_atomically
from vtool.training.run_folder import RunFolder


def begin(folder: Path) -> None:
    run = RunFolder(folder)
    run.lock()
    run.unlock()


def refused(folder: Path) -> tuple[Diagnostic, ...]:
    before = contents(folder)
    with pytest.raises(Findings) as caught:
        begin(folder)
    assert contents(folder) == before
    return caught.value.diagnostics


def contents(folder: Path) -> dict[str, bytes | None]:
    try:
        return {
            str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
        }
    except OSError:
        return {}


@pytest.mark.parametrize(
    "name",
    ["processor/keep.txt", "export/model.bin", "data.json", "config.yaml", "notes", ".hidden"],
)
def test_a_folder_with_files_of_the_users_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    (found,) = refused(tmp_path)
    assert found.rule == "run-folder-not-empty"
    assert f"there is {name.partition('/')[0]}" in found.message


def test_a_lock_file_of_another_program_is_refused_and_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("pid 7")
    assert refused(tmp_path)[0].rule == "run-folder-not-empty"


@pytest.mark.parametrize("name", ["step-000001", "a recipe"])
def test_a_recipe_next_to_a_data_file_is_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.yaml").write_text("run: {}\nmodel: {}\ndata: {}\ntrain: {}\noptim: {}\n")
    (tmp_path / "data.json").write_text(json.dumps({"train": [name]}))
    assert refused(tmp_path)[0].rule == "run-folder-not-empty"


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", f".{MARKER}.writing"], ["lost+found/"]])
def test_an_empty_folder_and_what_a_run_leaves_that_is_killed_at_once_are_taken(
    tmp_path: Path, left: list[str]
) -> None:
    for name in left:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    begin(tmp_path)
    assert "begun_by" in json.loads((tmp_path / MARKER).read_text())
    (tmp_path / "processor").mkdir()
    begin(tmp_path)  # it is the run's own now


def test_a_run_of_an_older_vtool_is_known_by_what_only_a_run_writes(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("run: {}\nmodel: {}\ndata: {}\ntrain: {}\noptim: {}\n")
    ledger = {"files": [], "rows": 1, "kept": 1, "tokens": 2}
    (tmp_path / "data.json").write_text(json.dumps({"train": ledger}))
    (tmp_path / "processor").mkdir()
    begin(tmp_path)
    (tmp_path / "data.json").unlink()
    assert refused(tmp_path)[0].rule == "run-folder-not-empty"


def test_a_lock_that_is_a_link_is_refused_and_its_target_keeps_its_content(tmp_path: Path) -> None:
    target, folder = tmp_path / "thesis.txt", tmp_path / "run"
    target.write_text("years of work")
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    (found,) = refused(folder)
    assert found.rule == "run-folder-unwritable"
    assert f"is a link, to {target}" in found.message
    assert target.read_text() == "years of work"


def test_every_link_in_place_of_a_runs_file_is_named_at_once(tmp_path: Path) -> None:
    folder, target = tmp_path / "run", tmp_path / "mine"
    begin(folder)
    target.mkdir()
    for name in ("metrics.jsonl", "samples", "export"):
        (folder / name).symlink_to(target)
    (folder / "latest").symlink_to(target)  # of the user's own, and nothing is written to it
    named = [finding.message.partition(" is a link")[0] for finding in refused(folder)]
    assert named == [str(folder / name) for name in ("export", "metrics.jsonl", "samples")]


def test_a_run_may_lie_behind_a_link_and_its_checkpoints_on_another_disk(tmp_path: Path) -> None:
    for name in ("real", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    begin(tmp_path / "run")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "disk")
    begin(tmp_path / "run")
    assert (tmp_path / "real" / MARKER).exists()


def test_a_link_that_appears_later_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(target)
    (tmp_path / ".data.json.writing").symlink_to(target)
    with pytest.raises(Findings, match="run-folder-unwritable"):
        append(tmp_path / "metrics.jsonl", {"step": 1})
    write_atomically(tmp_path / "data.json", "{}")
    assert target.read_text() == "mine"
    assert (tmp_path / "data.json").read_text() == "{}"


def test_a_pipe_in_place_of_the_lock_is_refused_and_waited_for_by_nobody(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(Findings, match="is not a file"):
        begin(tmp_path)
    in_training(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"), [("x" * 300, "File name too long"), ("a\0b", "null byte")]
)
def test_a_name_that_no_folder_can_have_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(Findings, match="run-folder-unwritable") as caught:
        begin(tmp_path / name)
    (found,) = caught.value.diagnostics
    assert reason in found.message
    assert len(found.message) < 400
    assert "\0" not in found.message


@pytest.mark.parametrize("part", ["checkpoints/step-000006", "checkpoints", "export/again"])
def test_a_run_does_not_begin_in_what_another_run_removes(tmp_path: Path, part: str) -> None:
    begin(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    before = contents(tmp_path)
    with pytest.raises(Findings) as caught:
        begin(tmp_path / part)
    (found,) = caught.value.diagnostics
    assert found.rule == "run-folder-taken"
    assert f"{part.partition('/')[0]}/ of the run in {tmp_path}" in found.message
    assert contents(tmp_path) == before
    begin(tmp_path / "another" / "run")  # nothing of that is replaced


def test_a_file_or_a_link_to_nothing_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(Findings, match="mine is a file, not a folder"):
        begin(tmp_path / "mine")
    with pytest.raises(Findings, match="link is a link to gone, which is not there"):
        begin(tmp_path / "link")
    assert (tmp_path / "mine").read_text() == "kept"
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "processor.json"])
def test_a_pipe_in_place_of_a_runs_file_is_refused_and_waited_for_by_nobody(
    tmp_path: Path, name: str
) -> None:
    begin(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(Findings, match=f"{name} is not a file"):
        begin(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "export"])
def test_a_file_in_the_way_of_what_is_saved_later_is_reported_before_the_first_step(
    tmp_path: Path, name: str
) -> None:
    begin(tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(Findings, match=f"{name} is not a folder"):
        begin(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
