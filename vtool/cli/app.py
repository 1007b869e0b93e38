"""The `vtool` command.

Nothing heavy is imported here: `vtool --help` answers at once, each command imports what it needs.
"""

from typing import Annotated

import typer

from vtool import __version__
from vtool.cli.doctor import doctor
from vtool.cli.explain import explain
from vtool.cli.export import export
from vtool.cli.load_check import load_check
from vtool.cli.predict import predict
from vtool.cli.report import report
from vtool.cli.train import app as train
from vtool.cli.validate_config import validate_config
from vtool.cli.verify import verify

app = typer.Typer(
    name="vtool",
    help="Fine-tune vision-language models, and prove that nothing went silently wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train, name="train")
app.command()(validate_config)
app.command()(load_check)
app.command()(verify)
app.command()(export)
app.command()(predict)
app.command()(report)
app.command()(explain)
app.command()(doctor)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vtool {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Fine-tune vision-language models, and prove that nothing went silently wrong."""


def main() -> None:
    """The entry point.

    An exception that no command expects is a bug: its traceback is shown, and the exit status is 2.
    """
    import gc
    import io
    import os
    import sys
    import traceback
    from contextlib import suppress

    # Nothing is fetched at run time, and a library's progress bars would break up the panel and the
    # logs.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # OpenMP's threads wait by spinning unless told not to: beside one other busy process, training
    # was then 17 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A name that the terminal's encoding lacks is escaped; it must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["verify"] and "--fast" in sys.argv and "--full-size" not in sys.argv:
        # Of its 10 seconds 6 are imports, which make a million objects that stay: looking through
        # them for garbage takes 0.5 to 1 more.
        gc.disable()
    try:
        app()
    except Exception:
        traceback.print_exc()
        code: object = 2
    except SystemExit as end:
        code = end.code
    # A rank of an outer torchrun: torch's own end sometimes aborts (see training/launch.py), and
    # torchrun would call it a failure. And `verify`, which has nothing left to end: to take torch
    # and transformers apart is 1 to 1.5 s of its 10.
    if ("TORCHELASTIC_RUN_ID" in os.environ or sys.argv[1:2] == ["verify"]) and isinstance(
        code, int | None
    ):
        with suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)  # type: ignore[arg-type]
