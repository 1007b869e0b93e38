"""The two ways in which a subject ends without a verdict, and exceptions in one line."""

import traceback
from pathlib import Path


class NotRun(Exception):
    """Says for which reason a subject gets no verdict."""


class LoadFailed(Exception):
    """Says why the user's subject does not load."""


def error_text(error: BaseException, most: int | None = 300) -> str:
    """Return an exception in one line, with the last place it came through.

    Args:
        most: characters of its message; None: all of them.
    """
    if isinstance(error, LoadFailed):
        return str(error)  # written to be read
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}{place}"
