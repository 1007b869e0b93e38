import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vtool.cli.report import report


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(report)
    return app


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n', encoding="utf-8")
    (folder / "result.json").write_text(
        json.dumps({"status": "finished", "steps": 1}), encoding="utf-8"
    )
    return folder


def test_the_page_of_one_run_lies_in_its_folder(app: typer.Typer, run_folder: Path) -> None:
    ran = CliRunner().invoke(app, [str(run_folder)])
    assert (ran.exit_code, ran.stdout) == (0, f"{run_folder / 'report.html'}\n")
    assert (run_folder / "report.html").is_file()


def test_the_page_of_several_runs_lies_here_or_where_it_is_wanted(
    app: typer.Typer, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [str(run_folder), str(run_folder)]).stdout == "report.html\n"
    assert (tmp_path / "report.html").is_file()
    assert (
        CliRunner().invoke(app, [str(run_folder), "--output", "other.html"]).stdout
        == "other.html\n"
    )
    assert (tmp_path / "other.html").is_file()


@pytest.mark.parametrize("options", [[], ["--follow"]])
def test_what_is_no_run_exits_2(app: typer.Typer, tmp_path: Path, options: list[str]) -> None:
    ran = CliRunner().invoke(app, [str(tmp_path), *options])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "not-a-run" in ran.stderr
    assert str(tmp_path) in "".join(ran.stderr.split("\n"))


def test_a_page_that_cannot_be_written_exits_2(app: typer.Typer, run_folder: Path) -> None:
    ran = CliRunner().invoke(
        app, [str(run_folder), "--output", str(run_folder / "nowhere" / "page.html")]
    )
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "run-folder-unwritable" in ran.stderr


def test_following_ends_with_the_run(app: typer.Typer, run_folder: Path) -> None:
    ran = CliRunner().invoke(app, [str(run_folder), "--follow"])
    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[:2] == ["step 1  loss 2.5", "digits: finished"]
    assert not (run_folder / "report.html").exists()


def test_following_several_runs_is_refused(app: typer.Typer, run_folder: Path) -> None:
    assert CliRunner().invoke(app, [str(run_folder), str(run_folder), "--follow"]).exit_code == 2


def test_control_c_while_following_exits_130_quietly(
    app: typer.Typer, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtool.report.follow.follow", interrupted)
    ran = CliRunner().invoke(app, [str(run_folder), "--follow"])
    assert (ran.exit_code, ran.output) == (130, "")


def test_the_command_itself_imports_nothing_heavy() -> None:
    program = "import sys, vtool.cli.report; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert not {"vtool.report", "vtool.diagnostics", "matplotlib", "jinja2", "PIL", "yaml"} & set(
        ran.stdout.split()
    )
