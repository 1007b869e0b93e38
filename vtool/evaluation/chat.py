"""A chat with a model: its turns so far, what a typed line means, and the next answer."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vtool.data.messages_layout import TAG, VIDEO_TAG
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.evaluation.asker import Asker, GreedyAnswer, PromptReader
from vtool.evaluation.predict import of_typed_files, question_row

COMMANDS = {
    "/image PATH": "show an image with the next question; a path on a line of its own does so too",
    "/video PATH": "show a video with the next question",
    "/reset": "start a new chat, without what was said and shown",
    "/quit": "end; so does Ctrl-D",
    "/help": "show this",
}
"""Lines that can be typed besides questions."""
_WORDS = {command.partition(" ")[0] for command in COMMANDS}
_END = "?!.,:;)"
"""Signs that stand behind a path in a sentence."""
_TAGS = {"image": TAG, "video": VIDEO_TAG}
_SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "video": (".mp4", ".mov", ".avi", ".mkv", ".webm"),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """The meaning of a line."""

    action: str
    """`ask`, `image`, `video`, `reset`, `quit`, `help`, `nothing`, or `unknown`."""
    text: str = ""
    """The question, the path, or what is wrong with a command."""


def understand(line: str) -> Typed:
    """Parse a typed line: a path, a command or a question."""
    text = line.strip()
    if not text:
        return Typed("nothing")
    if kind := _kind_of_path(path := _unquoted(text)):
        return Typed(kind, path)
    if text.partition(" ")[0] not in _WORDS and (file := _file_in(text)):
        shown = f"type /{_kind_of_path(file) or 'image'} {file}, and the question on the next line"
        return Typed("unknown", f"{file} is a file, which would be asked as text: {shown}")
    return _command(text) if text.startswith("/") else Typed("ask", text)


def _command(text: str) -> Typed:
    word, _, rest = text.partition(" ")
    name, given = word[1:], _unquoted(rest.strip())
    if name in _TAGS:
        wrong = f"{word} takes the path of a file: {word} PATH"
        return Typed(name, given) if given else Typed("unknown", wrong)
    if name in ("reset", "quit", "exit", "help") and not given:
        return Typed("quit" if name == "exit" else name)
    return Typed("unknown", f"there is no command {text}: /help")


def _file_in(text: str) -> str | None:
    """Return the file that a line of several words names along with a question, if it does.

    That is a picture that is there, or any file that is there as the first word.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    asked = (
        (place, form) for place, word in enumerate(words) for form in (word, word.rstrip(_END))
    )
    for place, word in asked:
        path = os.path.expanduser(word.removeprefix("file://"))
        suffix = Path(path).suffix.lower()
        pictured = any(suffix in known for known in _SUFFIXES.values())
        if len(words) > 1 and (pictured or (suffix and not place)) and os.path.isfile(path):
            return path
    return None


def _unquoted(text: str) -> str:
    """Return a path as a terminal pastes it: in quotes, or with its spaces escaped."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    path = words[0] if len(words) == 1 else text
    return os.path.expanduser(path.removeprefix("file://"))


def _kind_of_path(path: str) -> str | None:
    """Return whether a line that is a path shows an image or a video; None where it is no path.

    That is a file that is there, or one word that ends as a file of pictures does.
    """
    suffix = Path(path).suffix.lower()
    kind = next((kind for kind, known in _SUFFIXES.items() if suffix in known), None)
    if kind and not any(map(str.isspace, path)):
        return kind
    try:
        return (kind or "image") if os.path.isfile(path) else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat so far."""

    system: str | None = None
    turns: tuple[Row, ...] = ()
    """The questions, each with what is shown in it."""
    answers: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    """Files that the next question is asked with: the kind and the path of each."""

    def reset(self) -> "Conversation":
        """Return the chat without anything said or shown."""
        return Conversation(self.system)

    def showing(self, kind: str, path: str, reader: PromptReader) -> "Conversation":
        """Return the chat with a file that the next question is asked with.

        Raises:
            Findings: the file cannot be shown (VT6xx).
        """
        with of_typed_files():
            reader.prompt(_row([(kind, path)], "?", None))
        return replace(self, shown=(*self.shown, (kind, path)))

    def asking(self, question: str) -> "Conversation":
        """Return the chat with a question, which waits for an answer.

        Raises:
            Findings: the question cannot be asked (VT6xx).
        """
        row = _row(self.shown, question, None if self.turns else self.system)
        return replace(self, turns=(*self.turns, row), shown=())

    def row(self) -> Row:
        """Return the whole chat, as a row that waits for its last answer."""
        messages: list[Mapping[str, Any]] = []
        answers = [{"role": "assistant", "content": text} for text in self.answers]
        for turn, answer in zip_longest(self.turns, answers):
            messages += [*turn.messages, *([answer] if answer else [])]
        images = [image for turn in self.turns for image in turn.images]
        videos = [video for turn in self.turns for video in turn.videos]
        last = replace(self.turns[-1], id="the chat", messages=messages)
        return replace(last, images=images, videos=videos)


def _row(shown: Sequence[tuple[str, str]], question: str, system: str | None) -> Row:
    files = {tag: [path for each, path in shown if each == kind] for kind, tag in _TAGS.items()}
    return question_row(files, question, system)


def answer(
    chat: Conversation,
    question: str,
    asker: Asker,
    max_new_tokens: int,
    say: Callable[[str], object],
    stop: Callable[[], bool],
) -> tuple[Conversation, GreedyAnswer]:
    """Ask the next question of a chat; return the chat with the answer.

    Args:
        chat: so far.
        question: the text.
        asker: the model.
        max_new_tokens: the longest answer, in tokens.
        say: is given the answer, piece by piece.
        stop: asked after each token; the answer ends where it returns true.

    Raises:
        Findings: the question cannot be asked (VT6xx); `beyond-context`.
    """
    asked = chat.asking(question)
    try:
        prompt = asker.reader.prompt(asked.row())
    except Findings as findings:
        found = [
            replace(one, help="/reset starts a new chat") if one.rule == "beyond-context" else one
            for one in findings.diagnostics
        ]
        raise Findings(found) from findings
    (made,) = asker.answer([prompt], max_new_tokens, say, stop)
    return replace(asked, answers=(*asked.answers, made.text)), made
