"""One mode for all files of a folder: safetensors makes its own readable to their owner alone."""

from contextlib import suppress
from pathlib import Path


def share_mode(folder: Path, like: str) -> None:
    """Give each file of a folder the mode of one that Python has made, as the umask wants it.

    A disk without modes keeps what it has.
    """
    mode = (folder / like).stat().st_mode & 0o777
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_mode & 0o777 != mode:
            with suppress(OSError):
                path.chmod(mode)
