"""A run's folder is one run's: what it refuses, and what it keeps."""

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from string import ascii_letters

import pytest

from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import messages, read_lines, request, without_times
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.export_run import export_run
from vtool.training.run_folder import RunFolder
from vtool.training.sft import RunOutcome, train
from vtool.training.start import check_rows, find_start


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 8, text_only=(1,)))


def start(rows: Path, *more: str) -> RunOutcome:
    overrides = [
        "data.global_batch_size=4",
        "data.micro_batch_size=4",
        "train={steps:4,epochs:null}",
        "optim.warmup_steps=0",
    ]
    overrides += [
        "checkpoint={every_steps:1,keep_last:3}",
        "data.image={min_pixels:784,max_pixels:784}",
        f"run.dir={rows.parent / 'run'}",
    ]
    return train(request("rows", messages(rows), *overrides, *more), Ranks())


def rule_of(rows: Path, *more: str) -> tuple[str, str]:
    with pytest.raises(Findings) as caught:
        start(rows, *more)
    return caught.value.diagnostics[0].rule, caught.value.diagnostics[0].message


def test_a_finished_run_is_left_alone(rows: Path) -> None:
    assert start(rows).status == "finished"
    before = {
        path: path.stat().st_mtime_ns
        for path in (rows.parent / "run").rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert start(rows).status == "already finished"
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_other_settings_are_named_and_nothing_is_touched(rows: Path) -> None:
    start(rows)
    before = (rows.parent / "run" / "metrics.jsonl").read_bytes()
    rule, message = rule_of(rows, "optim.lr=5e-4", "data.global_batch_size=8")
    assert rule == "run-folder-taken"
    assert "optim.lr: 0.001 → 0.0005" in message
    assert "data.global_batch_size: 4 → 8" in message
    assert (rows.parent / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.full
def test_settings_that_change_no_number_may_differ(rows: Path) -> None:
    start(rows)
    assert start(rows, "data.workers=1", "checkpoint.every_steps=2").status == "already finished"


@pytest.mark.full
def test_a_step_may_be_cut_into_other_micro_batches_when_a_run_resumes(rows: Path) -> None:
    """A run that resumes with another engine needs this: its losses are equal but for rounding."""
    start(rows)
    folder = rows.parent / "run"
    losses = [line["loss"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoints/step-000004")
    shutil.rmtree(folder / "checkpoints/step-000003")
    assert (
        start(rows, "data.micro_batch_size=1", "device.kind=cpu", "engine=fsdp2").status
        == "finished"
    )
    again = [line["loss"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]
    assert again == pytest.approx(losses, rel=1e-5)


def test_never_refuses_to_resume(rows: Path) -> None:
    start(rows)
    assert rule_of(rows, "checkpoint.resume=never")[0] == "run-folder-taken"


def test_other_rows_are_refused_with_their_file(rows: Path) -> None:
    start(rows)
    (rows.parent / "run" / "result.json").unlink()
    with rows.open("a") as file:
        file.write(json.dumps(chat("one more", "row")) + "\n")
    rule, message = rule_of(rows)
    assert rule == "data-changed"
    assert "rows.jsonl (8 rows" in message
    assert "rows.jsonl (9 rows" in message


@pytest.mark.full
def test_a_run_does_not_resume_in_another_order_of_its_rows(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The formula decides by the number of rows, and another vtool may have another limit."""
    start(rows)
    (rows.parent / "run/result.json").unlink()
    shutil.rmtree(rows.parent / "run/checkpoints/step-000004")
    state = json.loads((rows.parent / "run/checkpoints/step-000003/state.json").read_text())
    assert state["order"] == "RandomState.permutation"
    with monkeypatch.context() as other:
        other.setattr("vtool.data.plan.MOST_SHUFFLED", 4)
        rule, message = rule_of(rows)
    assert rule == "data-changed"
    assert "in the order of RandomState.permutation, and this run of Feistel network" in message
    assert start(rows).status == "finished"


@pytest.mark.full
def test_two_processes_cannot_train_in_one_folder(rows: Path) -> None:
    hold = "import sys; from pathlib import Path; from vtool.training.run_folder import RunFolder; "
    hold += (
        "folder = RunFolder(Path(sys.argv[1])); folder.lock(); print('held', flush=True);"
        " sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, rows.parent / "run"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert rule_of(rows)[0] == "run-in-use"
        other.kill()
    assert start(rows).status == "finished"


def test_a_folder_that_cannot_be_made_is_reported(rows: Path) -> None:
    (rows.parent / "file").write_text("")
    rule, message = rule_of(rows, f"run.dir={rows.parent / 'file' / 'run'}")
    assert rule == "run-folder-unwritable"
    assert "Not a directory" in message


def test_a_damaged_checkpoint_is_reported_passed_over_and_set_aside(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(rows)
    folder = rows.parent / "run"
    straight = (folder / "checkpoints/step-000004/model.safetensors").read_bytes()
    (folder / "result.json").unlink()
    damaged = folder / "checkpoints/step-000004/model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    metrics = read_lines(folder / "metrics.jsonl")
    assert start(rows).status == "finished"
    assert "warning[corrupt-checkpoint VT803]" in capsys.readouterr().out
    assert (folder / "checkpoints/step-000004/model.safetensors").read_bytes() == straight
    assert len(list((folder / "checkpoints").glob("step-000004.set-aside-*"))) == 1
    again = read_lines(folder / "metrics.jsonl")
    assert without_times(metrics) == without_times(again)
    assert [line["step"] for line in read_lines(folder / "metrics.discarded.jsonl")] == [4]


@pytest.mark.full
def test_an_export_says_that_a_newer_checkpoint_is_damaged(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(rows)
    checkpoints = rows.parent / "run/checkpoints"
    older, newer = sorted(checkpoints.iterdir())[-2:]
    (newer / "optimizer.safetensors").write_bytes((older / "optimizer.safetensors").read_bytes())
    capsys.readouterr()
    _, step = export_run(rows.parent / "run")
    said = capsys.readouterr().err
    assert f"warning[corrupt-checkpoint VT803]: {newer}: optimizer.safetensors has other" in said
    assert step == int(older.name.removeprefix("step-"))


@pytest.mark.full
@pytest.mark.parametrize("setting", ["train.from", "checkpoint.resume"])
def test_another_run_says_that_a_newer_checkpoint_of_it_is_damaged(
    rows: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start(rows)
    checkpoints = rows.parent / "run/checkpoints"
    older, newer = sorted(checkpoints.iterdir())[-2:]
    (newer / "optimizer.safetensors").write_bytes((older / "optimizer.safetensors").read_bytes())
    before = {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")}
    capsys.readouterr()
    start(rows, f"run.dir={rows.parent / 'other'}", f"{setting}={rows.parent / 'run'}")
    said = capsys.readouterr().out
    assert f"warning[corrupt-checkpoint VT803]: {newer}: optimizer.safetensors has other" in said
    assert "; it is passed over\n" in said
    assert {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")} == before


@pytest.mark.full
def test_a_run_with_damaged_checkpoints_only_is_not_begun_anew(rows: Path) -> None:
    start(rows)
    folder = rows.parent / "run"
    (folder / "result.json").unlink()
    for file in folder.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(Findings) as caught:
        start(rows)
    assert [finding.rule for finding in caught.value.diagnostics] == ["corrupt-checkpoint"] * 3


def test_a_line_cut_off_in_the_metrics_is_set_aside(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    folder.rewind(2)
    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "metrics.discarded.jsonl").read_text() == '{"step": 3}\n{"ste\n'


def test_answers_of_later_steps_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.asked_again.write_text('{"step": 2}\n{"step": 4}\n{"ste')
    folder.rewind(2)
    assert folder.asked_again.read_text() == '{"step": 2}\n'


def test_what_a_killed_run_has_half_written_or_half_removed_goes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = (".writing-step-000003", ".removing-step-000001", "step-000002", ".removing-mine")
    for name in names:
        (folder.checkpoints / name).mkdir(parents=True)
        (folder.checkpoints / name / "model.safetensors").touch()
    folder.set_aside_newer(folder.checkpoints / "step-000002")
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == sorted(names[2:])


def test_a_run_can_begin_from_another_runs_checkpoint(rows: Path) -> None:
    start(rows)
    checkpoint = rows.parent / "run/checkpoints/step-000002"
    other = f"run.dir={rows.parent / 'other'}"
    assert start(rows, other, f"checkpoint.resume={checkpoint}").status == "finished"
    names = ("run", "other")
    weights = [
        (rows.parent / name / "checkpoints/step-000004/model.safetensors").read_bytes()
        for name in names
    ]
    assert weights[0] == weights[1]
    assert [line["step"] for line in read_lines(rows.parent / "other/metrics.jsonl")] == [3, 4]


@pytest.mark.full
def test_a_run_that_began_elsewhere_and_has_no_checkpoint_yet_begins_there_again(
    rows: Path,
) -> None:
    start(rows)
    overrides = [
        f"run.dir={rows.parent / 'other'}",
        f"checkpoint.resume={rows.parent / 'run/checkpoints/step-000002'}",
    ]
    start(rows, *overrides)
    (rows.parent / "other/result.json").unlink()
    for path in (rows.parent / "other/checkpoints").iterdir():
        path.rename(rows.parent / path.name)
    start(rows, *overrides)
    assert [line["step"] for line in read_lines(rows.parent / "other/metrics.jsonl")] == [3, 4]


@pytest.mark.full
def test_a_run_with_checkpoints_does_not_pass_over_them_for_anothers(rows: Path) -> None:
    start(rows)
    elsewhere = f"run.dir={rows.parent / 'other'}"
    start(rows, elsewhere)
    (rows.parent / "other/result.json").unlink()
    before = (rows.parent / "other/metrics.jsonl").read_bytes()
    rule, message = rule_of(
        rows, elsewhere, f"checkpoint.resume={rows.parent / 'run/checkpoints/step-000002'}"
    )
    assert rule == "run-folder-taken"
    assert "has checkpoints of its own, the newest step-000004" in message
    assert (rows.parent / "other/metrics.jsonl").read_bytes() == before


def test_a_run_goes_back_to_an_earlier_step_of_its_own_and_throws_nothing_away(rows: Path) -> None:
    start(rows)
    folder = rows.parent / "run"
    straight = (folder / "checkpoints/step-000004/model.safetensors").read_bytes()
    (folder / "result.json").unlink()
    start(rows, f"checkpoint.resume={folder / 'checkpoints/step-000002'}")
    assert (folder / "checkpoints/step-000004/model.safetensors").read_bytes() == straight
    assert len(list((folder / "checkpoints").glob("*.set-aside-*"))) == 2
    assert [line["step"] for line in read_lines(folder / "metrics.discarded.jsonl")] == [3, 4]


@pytest.mark.full
def test_another_runs_checkpoint_with_other_rows_is_refused(rows: Path) -> None:
    start(rows)
    with rows.open("a") as file:
        file.write(json.dumps(chat("one more", "row")) + "\n")
    rule, message = rule_of(
        rows, f"run.dir={rows.parent / 'other'}", f"checkpoint.resume={rows.parent / 'run'}"
    )
    assert rule == "data-changed"
    assert "8 rows" in message
    assert "9 rows" in message


def test_the_same_rows_in_another_folder_are_the_same_rows(rows: Path) -> None:
    ledger = {
        "files": [{"format": "messages", "path": "a.jsonl", "sha256": "1", "rows": 2}],
        "rows": 2,
        "kept": 2,
        "tokens": 9,
    }
    # a setting that the run's vtool did not have is null
    moved = {**ledger, "files": [{**ledger["files"][0], "path": "b.jsonl", "ignore": None}]}
    folder = RunFolder(rows.parent)
    folder.data.write_text(json.dumps({"train": ledger}))
    check_rows(folder, {"train": moved})
    with pytest.raises(Findings):
        check_rows(folder, {"train": {**ledger, "tokens": 8}})


def test_a_checkpoint_outside_a_run_is_refused_with_what_is_missing(rows: Path) -> None:
    start(rows)
    shutil.copytree(
        rows.parent / "run/checkpoints/step-000002", rows.parent / "kept/checkpoints/step-000002"
    )
    rule, message = rule_of(
        rows, f"run.dir={rows.parent / 'other'}", f"checkpoint.resume={rows.parent / 'kept'}"
    )
    assert rule == "not-a-run"
    assert "config.yaml, data.json, processor" in message


_BOMB = "a: &a [1, 1]\n" + "".join(f"{k}: &{k} [*{j}, *{j}]\n" for j, k in pairwise(ascii_letters))


@pytest.mark.full
def test_a_run_whose_config_cannot_be_read_is_reported(rows: Path) -> None:
    start(rows)
    for text in ("", "a: [", "just text", "[" * 50_000, "a: 2020-01-01", _BOMB):
        (rows.parent / "run/config.yaml").write_text(text)
        if not text.startswith("a: 2"):
            assert rule_of(rows)[0] == "not-a-run"
        with pytest.raises(Findings, match=r"not-a-run.*config\.yaml cannot be read"):
            export_run(rows.parent / "run")


def test_a_run_without_its_config_is_not_begun_anew_over_what_is_there(rows: Path) -> None:
    start(rows)
    (rows.parent / "run/config.yaml").unlink()
    before = sorted((rows.parent / "run").rglob("*"))
    rule, message = rule_of(rows)
    assert rule == "not-a-run"
    assert "config.yaml is missing, and there is result.json and checkpoints/step-" in message
    assert sorted((rows.parent / "run").rglob("*")) == before


def test_a_full_disk_at_the_end_is_reported_and_the_same_command_ends_the_run(rows: Path) -> None:
    """A folder in the place of a file stands in for a disk that takes no more."""
    blocked = rows.parent / "run/.result.json.writing"
    folder = RunFolder(rows.parent / "run")
    folder.lock()
    folder.unlock()
    blocked.mkdir()
    rule, message = rule_of(rows)
    assert rule == "run-folder-unwritable"
    assert "MiB are free" in message
    blocked.rmdir()
    assert start(rows).status == "finished"


@pytest.mark.full
def test_a_run_that_began_elsewhere_remembers_it_until_it_has_a_checkpoint(rows: Path) -> None:
    start(rows)
    elsewhere = f"run.dir={rows.parent / 'other'}"
    start(rows, elsewhere, f"checkpoint.resume={rows.parent / 'run/checkpoints/step-000002'}")
    (rows.parent / "other/result.json").unlink()
    shutil.rmtree(rows.parent / "other/checkpoints")
    start(rows, elsewhere)
    assert [line["step"] for line in read_lines(rows.parent / "other/metrics.jsonl")] == [3, 4]


@pytest.mark.full
def test_another_picture_under_the_same_name_is_another_row(rows: Path) -> None:
    start(rows)
    (rows.parent / "run/result.json").unlink()
    picture(rows.parent / "0-0.png", 28, 28, seed=99)
    rule, message = rule_of(rows)
    assert rule == "data-changed"
    assert "data.train" in message


@pytest.mark.full
def test_a_damaged_result_is_reported_with_the_remedy(rows: Path) -> None:
    start(rows)
    (rows.parent / "run/result.json").write_text('{"steps"')
    with pytest.raises(Findings) as caught:
        start(rows)
    assert "rm '" in str(caught.value.diagnostics[0].help)
    (rows.parent / "run/result.json").unlink()
    assert start(rows).status == "finished"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"steps": 4}', "no number ledger.rows, ledger.dropped"),
        ('{"steps": 4, "ledger": 1}', "damaged"),
        ("[]", "damaged"),
        ("null", "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_result_without_its_numbers_is_reported(
    tmp_path: Path, rows: Path, text: str, message: str
) -> None:
    folder = tmp_path / "run"
    made = request("rows", messages(rows), f"run.dir={folder}")
    folder.mkdir()
    RunFolder(folder).config.write_text(made.config_yaml)
    RunFolder(folder).result.write_text(text)
    with pytest.raises(Findings, match=message) as caught:
        find_start(RunFolder(folder), made.run, made.effective)
    assert caught.value.diagnostics[0].rule == "not-a-run"


@pytest.mark.full
def test_a_changed_processor_and_lost_metrics_are_reported_when_a_run_resumes(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(rows)
    folder = rows.parent / "run"
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoints/step-000004")
    config = folder / "processor/config.json"
    text = config.read_text()
    config.write_text(text.replace('"silu"', '"gelu"'))
    rule, message = rule_of(rows)
    assert rule == "processor-changed"
    assert 'text_config.hidden_act: "silu" → "gelu"' in message
    config.write_text(text)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([lines[0], *lines[2:]]))
    assert start(rows).status == "finished"
    assert "no line of step 2\n" in capsys.readouterr().out
    checks = json.loads((folder / "result.json").read_text())["checks"]
    assert checks["metrics-damaged"] == "failed"


def test_metrics_that_are_a_folder_are_reported(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(Findings, match=r"run-folder-unwritable.*Is a directory"):
        RunFolder(tmp_path).rewind(2)


def test_a_checkpoint_that_is_none_is_refused(rows: Path) -> None:
    assert rule_of(rows, f"checkpoint.resume={rows.parent}")[0] == "no-checkpoint"
    empty = rows.parent / "step-000001"
    empty.mkdir()
    assert rule_of(rows, f"checkpoint.resume={empty}")[0] == "corrupt-checkpoint"


@pytest.mark.full
def test_a_setting_that_has_since_been_added_had_its_default(rows: Path) -> None:
    """A run that an older vtool began resumes; with another value it is another run."""
    start(rows)
    (rows.parent / "run/result.json").unlink()
    config = rows.parent / "run/config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "min_lr_ratio" not in line))
    rule, message = rule_of(rows, "optim.min_lr_ratio=0.1")
    assert rule == "run-folder-taken"
    assert "optim.min_lr_ratio: 0.0 → 0.1" in message
    assert start(rows).status == "finished"


def test_a_lock_whose_file_cannot_be_closed_hides_nothing(tmp_path: Path) -> None:
    """A disk that is full may refuse even that; the run has said why it ends."""
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    assert folder._lock is not None
    os.close(folder._lock.fileno())
    folder.unlock()
    assert folder._lock is None
