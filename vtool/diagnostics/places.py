"""A finding's file, as tools outside of vtool take it."""

import os
from pathlib import Path

from vtool.diagnostics.diagnostic import Origin


def file_of(origin: Origin | None) -> str | None:
    """Return the file of an origin, relative to the working folder where it lies in it, with `/`.

    None where the origin is no file.
    """
    if origin is None or (origin.line is None and origin.file == "command line"):
        return None
    path = Path(origin.file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix().replace(os.sep, "/")
