"""The `vtool` command.

`vtool --help` answers at once: each command imports what it needs when it runs.
"""

from typing import Annotated

import typer

from vtool.cli.chat import chat
from vtool.cli.command import Command, LongCommand, OwnProcess
from vtool.cli.convert import convert
from vtool.cli.doctor import doctor
from vtool.cli.evaluate import evaluate
from vtool.cli.exit_at_once import ExitAtOnce, ExitAtOnceCommand
from vtool.cli.explain import explain
from vtool.cli.export import export
from vtool.cli.load_check import load_check
from vtool.cli.plan import plan
from vtool.cli.predict import predict
from vtool.cli.report import report
from vtool.cli.serve import serve
from vtool.cli.startup import prepare_completion
from vtool.cli.train import app as train
from vtool.cli.validate_config import validate_config
from vtool.cli.verify import verify
from vtool.cli.watch import WatchCommand, watch
from vtool.version import __version__

app = typer.Typer(
    name="vtool",
    help="Fine-tune vision-language models, and prove that nothing went silently wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train, name="train")
app.command(cls=Command)(validate_config)
app.command(cls=LongCommand)(load_check)
app.command(cls=LongCommand)(plan)
app.command(cls=ExitAtOnceCommand)(verify)
app.command(cls=Command)(convert)
app.command(cls=WatchCommand, options_metavar="[OPTIONS] -- COMMAND…")(watch)
app.command(cls=LongCommand)(export)
app.command(cls=LongCommand)(predict)
app.command(cls=LongCommand)(chat)
app.command(cls=LongCommand)(serve)
app.command(cls=ExitAtOnceCommand)(evaluate)
app.command(cls=LongCommand)(report)
app.command(cls=Command)(explain)
app.command(cls=LongCommand)(doctor)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"vtool {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Fine-tune vision-language models, and prove that nothing went silently wrong."""


def is_interrupt(error: BaseException | None) -> bool:
    """Check whether an exception came of a Ctrl-C that a library was ending its work for.

    A `finally` of OmegaConf's, say, meets half-made objects, and raises AttributeError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def note_interrupts() -> list[int]:
    """Return a list to which every Ctrl-C from now on adds itself, before it is raised.

    Code in C may raise an error of its own in its place, and leave no trace of it: safetensors did,
    while it loaded a checkpoint ("could not determine the shape of object type").
    """
    import signal

    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)
    return came


def main() -> None:
    """Run the command line and end the process.

    An exception that no command expects is a bug: its traceback is shown, the exit status is 2.
    """
    import io
    import os
    import signal
    import sys
    import traceback
    from contextlib import suppress

    # A name that the terminal's encoding lacks is escaped; it must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # A rank of an outer torchrun leaves at once too: torch's own end sometimes aborts (see
    # training/launch.py), and torchrun would call that a failure.
    completing = prepare_completion()
    at_once, code = "TORCHELASTIC_RUN_ID" in os.environ, 2
    interrupts = note_interrupts()
    try:
        app(obj=OwnProcess())
    except SystemExit as end:
        at_once |= isinstance(end, ExitAtOnce)
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    except KeyboardInterrupt:  # before a command could take it, or after its end
        sys.stderr.write("stopped\n")
        code = 130
    except Exception as error:
        if completing:  # it would be printed into the line that is typed
            os._exit(1)
        if interrupts or is_interrupt(error):
            sys.stderr.write("stopped\n")
            code = 130
        else:
            traceback.print_exc()
    # A Ctrl-C from here on ends the process, without the tracebacks of what Python ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if at_once:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
