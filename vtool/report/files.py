"""The writing of a page."""

import os
from pathlib import Path


def put(page: str, output: Path) -> Path:
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
