"""The tag `{% generation %}` of chat templates, which prints what is inside it."""

from typing import Any

from jinja2.ext import Extension
from jinja2.parser import Parser


class Generation(Extension):
    """A Jinja tag, `{% generation %}`, that prints the text inside it and nothing else."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 asks for a class attribute)

    def parse(self, parser: Parser) -> Any:
        """Return the nodes between the tag and its end."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
