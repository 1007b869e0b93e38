"""Contexts in which transformers renders chat templates with limits (`vtool.template_renderer`)."""

from contextlib import ContextDecorator
from types import SimpleNamespace
from typing import Any, Self

from transformers.utils import chat_template_utils

from vtool.template_renderer import LimitedRendering, RowTime


class LimitedTemplate(ContextDecorator):
    """A context in which transformers' chat templates raise `TooCostly` where they take too much.

    All that is rendered in it is taken for one row's.
    """

    def __enter__(self) -> None:
        self.compile = chat_template_utils._compile_jinja_template
        row = RowTime()
        chat_template_utils._compile_jinja_template = lambda text: LimitedRendering(text, row)

    def __exit__(self, *_: object) -> None:
        chat_template_utils._compile_jinja_template = self.compile


class CollectedChats(ContextDecorator):
    """A context in which templates write nothing: what they are asked for is collected."""

    def __enter__(self) -> Self:
        self.compile = chat_template_utils._compile_jinja_template
        self.asked: list[tuple[str, dict[str, Any]]] = []
        chat_template_utils._compile_jinja_template = self._collecting
        return self

    def __exit__(self, *_: object) -> None:
        chat_template_utils._compile_jinja_template = self.compile

    def _collecting(self, template: str) -> Any:
        def render(**values: Any) -> str:
            self.asked.append((template, values))
            return ""

        return SimpleNamespace(render=render)

    def texts(self) -> list[str]:
        """Return the texts that were asked for, all of one template.

        Raises:
            TooCostly, Exception: as `LimitedRendering`.
        """
        (template,) = {template for template, _ in self.asked}
        return LimitedRendering(template).render_chats([values for _, values in self.asked])
