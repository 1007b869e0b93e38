"""The command `vtool chat MODEL|RUN`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete

if TYPE_CHECKING:
    from vtool.diagnostics import Findings
    from vtool.evaluation.asker import Asker
    from vtool.evaluation.chat import Conversation, Typed


def chat(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.runs,
            metavar="MODEL|RUN",
            help="A run's folder or name, an export, an adapter, or a model.",
        ),
    ],
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="System message at the beginning of the chat."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most tokens of an answer.")
    ] = 512,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of an adapter's base model, if it was moved."),
    ] = None,
) -> None:
    """Chat with a model about images and videos: greedy answers, shown as they are written.

    Without a terminal each line of standard input is a turn.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings

    with exit_on_findings("chat", model):
        begin_with_training("vtool chat")
        from vtool.diagnostics.progress import working
        from vtool.evaluation.asker import PromptReader
        from vtool.evaluation.chat import Conversation
        from vtool.evaluation.subject import open_model

        subject = open_model(model, base)
        reader = PromptReader.of(subject)
        _say(f"loading {subject.in_words()}")
        with working("loading the model"):
            asker = reader.load()
        at_terminal = sys.stdin.isatty()
        if at_terminal:
            _say("a path on a line of its own shows an image; /help says what else can be typed")
        refused = _talk(Conversation(system), asker, max_new_tokens, at_terminal)
    if refused and not at_terminal:  # nobody has seen it happen
        raise typer.Exit(1)


def _talk(chat: "Conversation", asker: "Asker", max_new_tokens: int, at_terminal: bool) -> int:
    """Answer line after line; return how many were refused."""
    from vtool.diagnostics import Findings
    from vtool.evaluation.chat import understand

    refused = 0
    if at_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (gives `input` its history and its editing)
    while True:
        try:
            line = _line(at_terminal)
            if line is None:
                return refused
            typed = understand(line)
            if typed.action == "quit":
                return refused
            refused += typed.action == "unknown"
            chat = _do(typed, chat, asker, max_new_tokens)
        except Findings as findings:
            refused += 1
            _tell(findings)
        except KeyboardInterrupt:
            if not at_terminal:
                raise
            _say("\n(stopped; /quit or Ctrl-D ends the chat)")


def _do(
    typed: "Typed", chat: "Conversation", asker: "Asker", max_new_tokens: int
) -> "Conversation":
    """Do what a line says; return the chat after it."""
    from vtool.evaluation.chat import COMMANDS

    match typed.action:
        case "ask":
            return _ask(chat, typed.text, asker, max_new_tokens)
        case "image" | "video" as kind:
            chat = chat.showing(kind, typed.text, asker.reader)
            _say(f"{typed.text} is shown with the next question")
        case "reset":
            chat = chat.reset()
            _say("a new chat")
        case "help":
            for command, what in COMMANDS.items():
                _say(f"  {command:<12} {what}")
        case "unknown":
            _say(typed.text)
    return chat


def _ask(
    chat: "Conversation", question: str, asker: "Asker", max_new_tokens: int
) -> "Conversation":
    """Answer a question; return the chat with both."""
    from vtool.evaluation.chat import answer

    with _interruptible() as came:
        chat, made = answer(chat, question, asker, max_new_tokens, _write, lambda: bool(came))
        _write("\n")
    if made.stopped:
        why = "" if came else _why_stopped(made.tokens, max_new_tokens)
        _say(f"(stopped after {made.tokens} tokens{why})")
    return chat


def _why_stopped(tokens: int, max_new_tokens: int) -> str:
    if tokens < max_new_tokens:
        return ", as the model has positions for no more: /reset starts a new chat"
    return "; longer: --max-new-tokens N"


def _line(at_terminal: bool) -> str | None:
    """Return the next line that is typed; None at the end of the input."""
    if not at_terminal:
        return sys.stdin.readline() or None
    try:
        return input("> ")
    except EOFError:
        sys.stdout.write("\n")
        return None


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Give a list to which a Ctrl-C adds itself; the second one is raised."""
    import signal

    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(findings: "Findings") -> None:
    """Print each finding on one line."""
    for one in findings.diagnostics:
        help = f" ({one.help})" if one.help else ""
        _say(f"{one.severity}[{one.rule} {one.code}]: {one.message}{help}")


def _write(text: str) -> None:
    from vtool.diagnostics.printable import printable_text

    sys.stdout.write(printable_text(text))
    sys.stdout.flush()


def _say(line: str) -> None:
    from vtool.diagnostics.printable import printable_text

    typer.echo(printable_text(line), err=True)
