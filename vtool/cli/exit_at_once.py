"""The end of a command whose process has nothing left to close."""

from typing import Any

import typer

from vtool.cli.command import LongCommand


class ExitAtOnce(SystemExit):
    """The end of a process that has nothing left to close."""


class ExitAtOnceCommand(LongCommand):
    """A command that ends the process without taking Python's modules apart.

    For a command that imports torch and transformers: to take them apart takes 1 to 1.5 s.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raise `ExitAtOnce` where it ends with an exit status."""
        try:
            return super().invoke(ctx)
        except typer.Exit as end:
            raise ExitAtOnce(end.exit_code) from None
