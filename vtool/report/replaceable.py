"""Files of the user's naming: nothing else is overwritten, and nobody sees half of one."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAGE = b"content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A sign that each page of vtool's has had in its head, and hardly another page has."""
_DOCUMENT = b'"name": "vtool"'
"""A sign that each document of `--format json` has at its beginning."""


def check_replaceable(output: Path) -> None:
    """Refuse to write a page over a file that is none: a slip of the hand would cost weights.

    Raises:
        OSError: there is something else than a page of vtool's, or an empty file.
    """
    _check(output, _PAGE, "page")


def check_document_replaceable(output: Path) -> None:
    """Refuse to write a JSON document over a file that is none of vtool's.

    Raises:
        OSError: there is something else than such a document, or an empty file.
    """
    _check(output, _DOCUMENT, "JSON document")


def _check(output: Path, sign: bytes, name: str) -> None:
    try:
        if not output.exists():
            return
        if not output.is_file():
            problem = "it is a folder" if output.is_dir() else "it is no file"
        elif not output.stat().st_size:
            return
        else:
            with output.open("rb") as file:
                if sign in file.read(2048):
                    return
            problem = f"it is no {name} of vtool's: nothing there is overwritten"
    except ValueError as error:  # a name that no file can have
        raise OSError(errno.EINVAL, str(error), str(output)) from error
    raise FileExistsError(errno.EEXIST, problem, str(output))


def write_page(page: str, output: Path) -> Path:
    """Write a page to `output`, and return `output`.

    Raises:
        OSError: it cannot be written, or there is something else; the old file stays.
    """
    check_replaceable(output)
    return _write(page, output)


def write_document(document: Mapping[str, Any], output: Path) -> Path:
    """Write to `output` what `--format json` prints, and return `output`.

    Raises:
        OSError: it cannot be written, or there is something else; the old file stays.
    """
    check_document_replaceable(output)
    return _write(json.dumps(document, indent=1, ensure_ascii=False) + "\n", output)


def _write(text: str, output: Path) -> Path:
    # Into the same folder and then renamed: who has the page open, or copies it, never sees half.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        # A model may answer with half of a surrogate pair, which UTF-8 cannot hold.
        unfinished.write_text(text, encoding="utf-8", errors="replace")
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return output
