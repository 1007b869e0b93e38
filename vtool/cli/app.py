"""The `vtool` command.

`vtool --help` answers at once: each command imports what it needs when it runs.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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


class InOrderOfUse(TyperGroup):
    """Lists its commands as they are registered, groups of them too."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names: `train`, a group, comes first."""
        return ["train", *(name for name in super().list_commands(ctx) if name != "train")]


app = typer.Typer(
    name="vtool",
    cls=InOrderOfUse,
    help="Fine-tune vision-language models, and prove that nothing went silently wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train, name="train", short_help="Train a model, or resume a run that was stopped.")
# summaries of at most 57 characters are whole in a terminal of 80
for function, kind, summary in (
    (verify, ExitAtOnceCommand, "Audit rows, and prove a recipe's numbers in seconds."),
    (watch, WatchCommand, "Show what any trainer teaches, read from its gradients."),
    (load_check, LongCommand, "Check that every weight lands, whatever loads it."),
    (validate_config, Command, "Check a recipe's settings, each and together."),
    (evaluate, ExitAtOnceCommand, "Score a model's answers to rows, with 95 % intervals."),
    (predict, LongCommand, "Ask a model about images, or every row of a file."),
    (chat, LongCommand, "Chat with a model about images and videos."),
    (serve, LongCommand, "Serve a model with vLLM."),
    (export, LongCommand, "Write a run's checkpoint as a Hugging Face folder."),
    (report, LongCommand, "Write a page of a run, or of several side by side."),
    (convert, Command, "Convert rows of any layout to `messages`."),
    (plan, LongCommand, "Say what each GPU will need, and whether it fits."),
    (doctor, LongCommand, "Say what this machine can run, and what to install."),
    (explain, Command, "Explain a rule, a setting, a recipe or a known bug."),
):
    options = "[OPTIONS] -- COMMAND…" if kind is WatchCommand else "[OPTIONS]"
    app.command(cls=kind, short_help=summary, options_metavar=options)(function)


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

    Where Python drops what is raised, as in a hook of `os.fork` (logging has one) or a finalizer,
    the interrupt comes again.
    """
    import os
    import signal
    import sys
    import threading

    came: list[int] = []
    report = sys.unraisablehook

    def handle(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def again(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # not from here, where it would be dropped too
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        elif not came and "DataLoader worker" not in str(dropped.exc_value):
            # an interrupt leaves half-made objects; and whoever waits for a worker is told as well
            report(dropped)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)
        sys.unraisablehook = again
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

    from vtool.launchers import is_rank

    # A name that the terminal's encoding lacks is escaped; it must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # A rank of an outer launcher leaves at once too: torch's own end sometimes aborts (see
    # training/launch.py), and torchrun would call that a failure.
    completing = prepare_completion()
    at_once, code = is_rank(), 2
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
