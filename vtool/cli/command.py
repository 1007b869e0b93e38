"""The classes of commands, which prepare a process before they run in it."""

from typing import Any

from typer.core import TyperCommand

from vtool.libraries import prepare_libraries


class OwnProcess:
    """The `obj` of a command's context, in a process that was started to run the command."""


class Command(TyperCommand):
    """A command that uses libraries in its own process, and is short unless it is `--live`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of its usage: what a metavar repeats already is not repeated again."""
        return [_tidy(piece) for piece in super().collect_usage_pieces(ctx)]

    def takes_long(self, ctx: Any) -> bool:
        """Return whether it takes seconds: it then says that it has begun."""
        return bool(ctx.params.get("live"))

    def invoke(self, ctx: Any) -> Any:
        """Prepare the process, where it is the command's own, and run the command."""
        if isinstance(ctx.obj, OwnProcess):
            prepare_libraries()
            if self.takes_long(ctx):
                from vtool.diagnostics.progress import announce_start

                announce_start(f"vtool {_first_word(ctx)}")
        return super().invoke(ctx)


class LongCommand(Command):
    """A command that takes seconds."""

    def takes_long(self, ctx: Any) -> bool:
        return True


def _tidy(piece: str) -> str:
    """Return one argument as usages write it: `RUN…`, and not `{RUN…}...`."""
    named = piece.removesuffix("...") if "…" in piece else piece
    if named[:1] + named[-1:] == "{}" and "|" not in named:
        return named[1:-1]
    return named[1:-1] if named != piece and named[:1] + named[-1:] == "[]" else named


def _first_word(ctx: Any) -> str:
    """Return the word behind `vtool`: a group's, of a command in one."""
    while ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return str(ctx.info_name)
