"""The template of a page, and the script in it."""

import base64
import contextlib
import hashlib
import os
import pickle
import re
from functools import cache
from pathlib import Path

import jinja2
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, Template
from jinja2.bccache import Bucket
from markupsafe import Markup

from vtool.report.words import in_words, percent
from vtool.user_cache import user_cache
from vtool.words import plural


class _CompiledTemplates(FileSystemBytecodeCache):
    """Templates that an earlier process compiled: that takes longer than to fill in most pages.

    As with Python's own modules, a page is written all the same where they cannot be kept. They
    are code, so nothing is read from a folder that somebody else may write into.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            folder = os.stat(self.directory)
            if folder.st_uid == os.getuid() and not folder.st_mode & 0o022:
                super().load_bytecode(bucket)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # cannot be read, damaged
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):  # read-only, or a full disk
            Path(self.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            super().dump_bytecode(bucket)


@cache
def load_template(name: str, *folders: Path) -> Template:
    """Return the template `name` of the first folder that has it.

    Values are escaped: a model's answer, or the name of a tensor, may be HTML.
    """
    compiled = user_cache("templates") / jinja2.__version__
    environment = Environment(
        loader=FileSystemLoader(folders),
        bytecode_cache=_CompiledTemplates(str(compiled)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": in_words,
        "percent": percent,
        "plural": plural,
        "breakable": _breakable,
    }
    return environment.get_template(name)


def inline_script(file: Path) -> tuple[Markup, Markup]:
    """Return a page's one script, and the digest by which its policy lets no other run."""
    script = file.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Markup(script), Markup(digest)


def _breakable(text: str) -> Markup:
    """Let a long name break behind a dot, rather than before the comma that follows it."""
    return Markup("<wbr>").join(re.split(r"(?<=\w[._/])(?=\w)", text))
