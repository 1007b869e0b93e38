"""Limits of a chat template, which is a program that comes with a model's folder.

It is rendered in a process of its own (`template_child`), in Jinja's sandbox: what it may touch is
limited there, and its time and memory by the kernel, whatever it calls.
"""

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2.exceptions

from vtool.limited_child import TooCostly, limited_child

_SECONDS = 5.0
"""Processor time that a template may take: a thousand times what one does."""
_SECONDS_AGAIN = 1.0
"""Processor time of one that has been stopped before: loading a model tries it several times."""
_STOPPED: set[str] = set()
"""Templates that have run for more than that."""
SECONDS_OF_ROW = 30.0
"""Processor time of all renderings for one row, of which each answer takes two."""
LARGEST_VALUE = 64 * 2**20
"""Characters that a template may write."""
_CHILD = str(Path(__file__).with_name("template_child.py"))


class RowTime:
    """The processor time of what is rendered for one row."""

    seconds = 0.0


class LimitedRendering:
    """A template with limits; its `render` is Jinja's."""

    def __init__(self, template: str, row: RowTime | None = None) -> None:
        self.template, self.row = template, row or RowTime()
        self.unknown: list[str] = []
        """Names that were to be written, and that no argument gave."""
        self.line: int | None = None
        """The line of the template at which it was last stopped, or raised something."""

    def render(self, **values: Any) -> str:
        """Return the text that the template writes of a chat; raise as `render_chats`."""
        return self.render_chats([values])[0]

    def render_chats(self, chats: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the texts that the template writes of some chats, by one request.

        Raises:
            TooCostly: it is stopped.
            Exception: what the template raises.
        """
        left = SECONDS_OF_ROW - self.row.seconds
        most = min(_SECONDS, _SECONDS_AGAIN) if self.template in _STOPPED else _SECONDS
        request = {
            "template": self.template,
            "chats": chats,
            "day": today().isoformat(),
            "seconds": min(most, left),
            "most": LARGEST_VALUE,
        }
        answer = limited_child(_CHILD).ask(request) if left > 0 else None
        self.line = (answer or {}).get("line")
        if answer is not None and "late" not in answer:
            if "raised" in answer:
                raise _raised(answer["raised"], answer["arguments"])
            self.row.seconds += answer["seconds"]
            self.unknown = answer["unknown"]
            texts: list[str] = answer["texts"]
            return texts
        if left < most:
            raise TooCostly(
                "it is rendered for each answer, and takes more than"
                f" {SECONDS_OF_ROW:g} seconds in all"
            )
        _STOPPED.add(self.template)
        at = f", in its line {self.line}" if self.line else ""
        raise TooCostly(f"it runs for more than {most:g} second{'s' * (most != 1)}{at}")


def _raised(name: str, arguments: list[Any]) -> Exception:
    """Return the exception that a template has raised in the other process."""
    kind = getattr(jinja2.exceptions, name, None) or getattr(builtins, name, None)
    try:
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(*arguments)
    except TypeError:  # one that is made of something else
        pass
    return RuntimeError(f"{name}: {arguments[0]}")


@cache
def today() -> datetime:
    """Return the day on which this process has first asked, which templates are given.

    A run may last longer than its first day, and a row stays what was audited.
    """
    return datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
