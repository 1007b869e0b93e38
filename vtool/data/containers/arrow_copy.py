"""Copies of Parquet files as Arrow, from which a row is read without those around it."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from vtool.data.containers.columns import pyarrow
from vtool.data.containers.open_parquet import open_parquet, plain_schema, plain_slices
from vtool.user_cache import user_cache

ROWS_AT_ONCE = 1024
MOST_COPIES = 8
"""Copies that are kept; those that were not used for the longest time are removed."""
KEPT_HOURS = 24
"""Hours in which a copy that was used is kept all the same: a mixture may have more sources."""
_MAKING = ".making-"
_HOUR = 3600
_ROOM = 1.2
"""Bytes of the disk that must be free, for each byte of rows."""


def copy_to_arrow(files: Sequence[Path], digest: str, nbytes: int) -> Path | None:
    """Copy the rows of Parquet files, unless that is done, and return the Arrow file.

    It is below the user's cache folder. Its name has the digest of what it is a copy of, and its
    own, which it is checked against: a damaged copy is made again. Deleting it is always safe.

    Args:
        nbytes: the size of the rows, unpacked.

    Returns:
        None where it cannot be made: the disk has no room, or a file cannot be read.
    """
    arrow = pyarrow("pyarrow", files[0])
    folder = user_cache("arrow")
    try:
        for made in sorted(folder.glob(f"{digest}-*.arrow")):
            if made == _name(folder, digest, made):
                _use(made)
                return made
            made.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder)
        if shutil.disk_usage(folder).free < _ROOM * nbytes:
            return None
        descriptor, name = tempfile.mkstemp(prefix=_MAKING, dir=folder)  # readable by its owner
        os.close(descriptor)
        try:
            _write(Path(name), files, arrow)
            made = _name(folder, digest, Path(name))
            os.replace(name, made)
        finally:
            Path(name).unlink(missing_ok=True)
        with suppress(OSError):  # another process is as fast
            _remove_oldest(folder)
    except (arrow.ArrowException, OSError, ValueError, MemoryError):
        return None
    return made


def mark_of(copy: Path) -> tuple[int, int, int]:
    """Return the marks of a copy, which differ once it is written again; zeros of none."""
    try:
        found = copy.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def map_copy(copy: Path, rows: int) -> Any:
    """Map a copy into memory; None where it is not there, or is not one of so many rows."""
    arrow = pyarrow("pyarrow", copy)
    try:
        table = arrow.ipc.open_file(arrow.memory_map(str(copy))).read_all()
        table.validate(full=True)
    except MemoryError:  # of the machine, not of the copy
        raise
    except (arrow.ArrowException, OSError, ValueError):
        return None
    return table if table.num_rows == rows else None


def _write(out: Path, files: Sequence[Path], arrow: Any) -> None:
    opened = [open_parquet(file) for file in files]
    schema = plain_schema(opened[0])
    with arrow.OSFile(str(out), "wb") as file, arrow.ipc.new_file(file, schema) as writer:
        for each in opened:
            for batch in each.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
                for some in plain_slices(batch, schema, arrow):
                    writer.write_table(some)
    with out.open("rb") as written:
        os.fsync(written.fileno())  # its name must not outlive it when the power fails


def _name(folder: Path, digest: str, content: Path) -> Path:
    """Return the name of a copy with this content."""
    own = xxhash.xxh3_128()
    with content.open("rb") as file:
        while piece := file.read(2**20):
            own.update(piece)
    return folder / f"{digest}-{own.hexdigest()}.arrow"


def _use(copy: Path) -> None:
    """Note that a copy is used: as the time of its last access, as that of writing is a mark."""
    with suppress(OSError):  # a folder that can only be read
        os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))


def _remove_oldest(folder: Path) -> None:
    used = {copy: copy.stat().st_atime for copy in folder.glob("*.arrow")}
    oldest = sorted(used, key=lambda copy: used[copy], reverse=True)[MOST_COPIES:]
    for copy in oldest:
        if time.time() - used[copy] > KEPT_HOURS * _HOUR:
            copy.unlink(missing_ok=True)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a process has left that was killed."""
    for left in folder.glob(f"{_MAKING}*"):
        with suppress(FileNotFoundError):  # another process is as fast
            if time.time() - left.stat().st_mtime > _HOUR:
                left.unlink()
