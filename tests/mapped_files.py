"""The bytes that a process has read of the files that it has mapped."""

from pathlib import Path


def bytes_in_memory(folder: Path) -> int:
    """Return the bytes of a folder's mapped files that were looked into here, by whole pages."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            inside = bool(rest) and rest[-1].startswith(str(folder.resolve()))
        elif inside and first == "Rss:":
            found += int(rest[0]) * 1024
    return found
