import json
import os
from pathlib import Path

import pytest

from vtool.diagnostics import Findings
from vtool.report import write_report
from vtool.report.run_files import check_is_run, read_run


def test_a_finished_run_is_read_without_a_notice(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.notices == ()
    assert (len(run.steps), len(run.evaluations), len(run.predictions)) == (40, 4, 12)
    assert (run.name, run.setting("optim.lr"), run.checkpoints, run.exported) == (
        "digits",
        "2.0e-3",
        ("step-000040",),
        False,
    )


def test_a_half_written_last_line_is_left_out_and_said(run_folder: Path) -> None:
    metrics = run_folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 41, "lo')
    run = read_run(run_folder)
    assert run.steps[-1].step == 40
    assert run.notices == ("metrics.jsonl: the last line (45) is half written and was left out.",)


def test_a_last_line_that_only_lacks_its_end_is_kept(run_folder: Path) -> None:
    metrics = run_folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 41, "loss": 0.1}')
    assert read_run(run_folder).steps[-1].step == 41


def test_damaged_lines_do_not_hide_the_others(run_folder: Path) -> None:
    metrics = run_folder / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n")
    lines[3], lines[5] = b"\xff\x00garbage", b"[1, 2]"
    metrics.write_bytes(b"\n".join(lines))
    run = read_run(run_folder)
    assert len(run.steps) == 38
    assert run.notices == ("metrics.jsonl: 2 damaged line(s) left out: 4, 6.",)


def test_a_line_separator_inside_an_answer_ends_no_line(run_folder: Path) -> None:
    row = {
        "row": "r",
        "question": "?",
        "reference": "a",
        "answer": "a\u2028b\x85",
        "correct": False,
    }
    (run_folder / "predictions.jsonl").write_text(
        json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    run = read_run(run_folder)
    assert [prediction.answer for prediction in run.predictions] == ["a\u2028b\x85"]


@pytest.mark.parametrize("content", ["", '{"status": "fin', "[]", "null"])
def test_a_damaged_result_is_no_result(run_folder: Path, content: str) -> None:
    (run_folder / "result.json").write_text(content, encoding="utf-8")
    run = read_run(run_folder)
    assert run.result is None
    assert any(notice.startswith("result.json is damaged") for notice in run.notices)


@pytest.mark.parametrize("huge", [10**30, 10**400, -(10**30)])
def test_a_number_that_no_axis_has_is_no_number(run_folder: Path, huge: int) -> None:
    line = json.dumps({"step": huge, "loss": huge, "lr": 0.1})
    (run_folder / "metrics.jsonl").write_text(f"{line}\n", encoding="utf-8")
    (step,) = read_run(run_folder).steps
    assert (step.step, step.loss) == (0, None)
    write_report([run_folder], run_folder / "report.html")


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "data.json", "result.json"])
def test_a_folder_in_the_place_of_a_file_is_a_notice(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink(missing_ok=True)
    (run_folder / name).mkdir()
    assert any(notice.startswith(name) for notice in read_run(run_folder).notices)


def test_one_file_is_enough_to_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n', encoding="utf-8")
    run = read_run(tmp_path)
    assert run.name == tmp_path.name
    assert [notice.split()[0] for notice in run.notices] == [
        "config.yaml",
        "data.json",
        "result.json",
    ]


@pytest.mark.parametrize(
    ("name", "why"), [("empty", "no config.yaml"), ("nowhere", "no such folder")]
)
def test_a_folder_without_a_run_is_an_error(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Findings, match=why) as raised:
        read_run(tmp_path / name)
    assert raised.value.fatal
    assert [finding.rule for finding in raised.value.diagnostics] == ["not-a-run"]


def test_a_name_that_is_mistyped_is_reported_with_what_is_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "rates-lr=1", "rates-lr=2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for given, meant in (("frist", "first"), ("rate", "rates"), ("runs/frst", "first")):
        with pytest.raises(Findings) as raised:
            read_run(Path(given))
        (one,) = raised.value.diagnostics
        assert (one.help or "").startswith(f"did you mean `{meant}`")
        assert ("of that name in runs/" in one.message) == ("/" not in given)


@pytest.mark.full
def test_settings_that_nest_without_end_do_not_hide_the_run(run_folder: Path) -> None:
    (run_folder / "config.yaml").write_text("[" * 50_000)
    run = read_run(run_folder)
    assert len(run.steps) == 40
    (notice,) = run.notices
    assert notice.startswith("config.yaml cannot be read: ")


def test_a_folder_that_cannot_be_looked_at_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(Findings, match=r"not-a-run.*cannot be looked at: File name too long"):
        check_is_run(tmp_path / ("x" * 300))


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "result.json"])
def test_a_file_that_goes_on_for_gigabytes_is_not_read(run_folder: Path, name: str) -> None:
    os.truncate(run_folder / name, 40 * 2**30)  # without a block of the disk
    (notice,) = read_run(run_folder).notices
    assert notice.startswith(f"{name} ")


@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.jsonl", "data.json", "result.json", "predictions.jsonl"]
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    os.mkfifo(run_folder / name)
    assert any(notice.startswith(name) for notice in read_run(run_folder).notices)


@pytest.mark.parametrize("name", ["validation.jsonl", "proofs.json", "profile/summary.json"])
def test_nor_is_one_of_a_file_that_a_run_may_lack(run_folder: Path, name: str) -> None:
    (run_folder / name).parent.mkdir(exist_ok=True)
    (run_folder / name).unlink(missing_ok=True)
    os.mkfifo(run_folder / name)
    assert write_report([run_folder], run_folder / "report.html").exists()
