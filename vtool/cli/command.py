"""The classes of commands, which prepare a process before they run in it."""

from typing import Any

from typer.core import TyperCommand

from vtool.cli.launcher import check_launcher
from vtool.launchers import is_first
from vtool.libraries import prepare_libraries


class OwnProcess:
    """The `obj` of a command's context, in a process that was started to run the command."""


class Command(TyperCommand):
    """A command that uses libraries in its own process, and is short unless it is `--live`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an option that is a setting elsewhere is answered with the setting.

        Raises:
            NoSuchOption: as click does.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's, which typer has under a name of its own
            name = getattr(error, "option_name", None)
            if name and any(each.name == "overrides" for each in self.params):
                wrong: Any = error
                wrong.message += f"; settings are KEY=VALUE{_as_setting(name)}"
                wrong.possibilities = []
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of its usage: what a metavar repeats already is not repeated again."""
        return [_tidy(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments by their metavars alone, without a type of Python's."""
        for each in self.get_params(ctx):
            if each.param_type_name == "argument" and each.metavar:
                vars(each)["display_type_rich"] = lambda ctx: None
        super().format_options(ctx, formatter)

    def takes_long(self, ctx: Any) -> bool:
        """Return whether it takes seconds: it then says that it has begun."""
        return bool(ctx.params.get("live"))

    def invoke(self, ctx: Any) -> Any:
        """Prepare the process, where it is the command's own, and run the command."""
        if isinstance(ctx.obj, OwnProcess):
            check_launcher(_first_word(ctx))
            prepare_libraries()
            if self.takes_long(ctx) and is_first():
                from vtool.diagnostics.progress import announce_start

                announce_start(f"vtool {_first_word(ctx)}")
        return super().invoke(ctx)


class LongCommand(Command):
    """A command that takes seconds."""

    def takes_long(self, ctx: Any) -> bool:
        return True


_ELSEWHERE = {
    "from": "another trainer's recipe becomes one of vtool by"
    " `vtool validate-config --from TRAINER FILE --convert`",
    "resume": "the same command resumes its run",
    "resume_from_checkpoint": "the same command resumes its run",
}
"""Options that people look for, and what there is in their place."""


def _as_setting(option: str) -> str:
    """Return `: train.epochs=…` for an option such as `--epochs`; nothing where that is unknown."""
    from vtool.config.foreign.words import WORDS
    from vtool.config.settings import all_settings
    from vtool.config.suggest import example_of
    from vtool.diagnostics.near_miss import ending

    word = option.lstrip("-").replace("-", "_")
    if word in _ELSEWHERE:
        return f"; {_ELSEWHERE[word]}"
    if typed := example_of(word):
        return f", such as {typed}"
    names = [setting.name for setting in all_settings() if not setting.groups]
    ours = WORDS[word].ours if word in WORDS else next(iter(ending(word, names)), None)
    return f": {ours}=…" if ours else ""


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
