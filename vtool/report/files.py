"""The template and the file of a page."""

import base64
import contextlib
import errno
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

# What each page of vtool's has had in its head, and hardly another page has.
_SIGN = b"content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'"


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


def check_replaceable(output: Path) -> None:
    """Refuse to write a page over a file that is none: a slip of the hand would cost weights.

    Raises:
        OSError: there is something else than a page of vtool's, or an empty file.
    """
    try:
        if not output.exists():
            return
        if not output.is_file():
            problem = "it is a folder" if output.is_dir() else "it is no file"
        elif not output.stat().st_size:
            return
        else:
            with output.open("rb") as file:
                if _SIGN in file.read(2048):
                    return
            problem = "it is no page of vtool's: nothing there is overwritten"
    except ValueError as error:  # a name that no file can have
        raise OSError(errno.EINVAL, str(error), str(output)) from error
    raise FileExistsError(errno.EEXIST, problem, str(output))


def write_page(page: str, output: Path) -> Path:
    """Write a page to `output`, and return `output`.

    Raises:
        OSError: it cannot be written, or there is something else; the old file stays.
    """
    check_replaceable(output)
    # Into the same folder and then renamed: who has the page open, or copies it, never sees half.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        # A model may answer with half of a surrogate pair, which UTF-8 cannot hold.
        unfinished.write_text(page, encoding="utf-8", errors="replace")
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return output
