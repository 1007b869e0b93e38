"""The template and the file of a page."""

import os
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from vtool.report.words import number, percent, plural


def load_template(name: str, *folders: Path) -> Template:
    """Return the template `name` of the first folder that has it.

    Values are escaped: a model's answer, or the name of a tensor, may be HTML.
    """
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "plural": plural,
        "breakable": _breakable,
    }
    return environment.get_template(name)


def _breakable(text: str) -> Markup:
    """Let a long name break behind a dot, rather than before the comma that follows it."""
    return Markup("<wbr>").join(re.split(r"(?<=\w[._/])(?=\w)", text))


def write_page(page: str, output: Path) -> Path:
    """Write a page to `output`, and return `output`.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    # Beside it and then renamed: who has the page open, or copies it, never sees half of one.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        # A model may answer with half of a surrogate pair, which UTF-8 cannot hold.
        unfinished.write_text(page, encoding="utf-8", errors="replace")
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return output
