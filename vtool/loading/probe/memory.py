"""The memory that a process has."""

import resource
from pathlib import Path


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident bytes of a process; 0 where there is none."""
    try:
        text = Path(f"/proc/{process}/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
