"""A command does not import, and so does not wait for, packages that it does not use."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from vtool.cli.app import app, main
from vtool.cli.command import Command
from vtool.cli.watch import WatchCommand

PRINT_MODULES = (
    "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); from"
    " vtool.cli.app import main; main()"
)


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["validate-config", "--help"],
        ["load-check", "--help"],
        ["watch", "--help"],
        ["convert", "--help"],
        ["explain", "--help"],
        ["doctor", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments).isdisjoint(
        {"torch", "transformers", "numpy", "hydra", "omegaconf", "yaml", "rich"}
    )


def test_the_first_help_does_not_import_pydantic_either() -> None:
    # Typer itself imports it as soon as a command is called, were it only for its own help.
    assert "pydantic" not in imported("--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate-config", "digits"],
        ["explain", "digits"],
        ["explain", "optim.lr"],
        ["validate-config", "digits", "-m", "run.seed=1,2"],
    ],
)
def test_the_config_commands_import_neither_torch_nor_transformers(arguments: list[str]) -> None:
    assert imported(*arguments).isdisjoint({"torch", "transformers", "numpy", "PIL", "rich"})


def test_help_lists_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vtool", "--help"], capture_output=True, text=True, check=True
    )
    for command in (
        "train",
        "validate-config",
        "load-check",
        "verify",
        "export",
        "predict",
        "chat",
        "serve",
        "evaluate",
        "report",
        "explain",
        "doctor",
    ):
        assert f"  {command} " in done.stdout


def commands(group: Any) -> Iterator[Any]:
    for each in group.commands.values():
        yield from commands(each) if hasattr(each, "commands") else [each]


def test_every_command_says_what_its_process_does_before_it() -> None:
    found = list(commands(get_command(app)))
    assert all(isinstance(each, Command | WatchCommand) for each in found)
    short = {each.name for each in found if type(each) is Command}
    assert short == {"validate-config", "convert", "explain"}


def test_the_version_is_that_of_the_package() -> None:
    from vtool import __version__

    done = subprocess.run(
        [sys.executable, "-m", "vtool", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"vtool {__version__}\n"


def test_a_ctrl_c_before_the_command_runs_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line is still being built, or is ending."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtool.cli.app.app", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, handler)  # it lets a second one end the process at once
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped\n"
