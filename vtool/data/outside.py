"""Images and videos outside of the folder that they are expected in."""

import os
from collections.abc import Iterator

from vtool.data.row import Row, refuse, shown_value
from vtool.data.urls import image_cache_folder


def has_files_outside(row: Row) -> bool:
    """Check if an image or video of a row is outside of the folder that its paths are relative to.

    Links are not followed, which takes longer than all other checks of a row. Images that were
    fetched from the web are where vtool has put them.
    """
    folder = row.folder
    if folder is None or not (row.images or row.videos):
        return False
    return any(
        not _is_plainly_inside(file, folder) and not _is_inside(file, folder)
        for file in _files(row)
    )


def check_root(row: Row, root: str) -> None:
    """Check that every image and video of a row is in a folder; links are followed.

    Raises:
        Findings: `outside-of-root`.
    """
    inside = (os.path.realpath(root), os.path.realpath(image_cache_folder()))
    for file in _files(row):
        real = os.path.realpath(file)
        if not any(_is_below(real, folder) for folder in inside):
            where = _short(file) + (f" is {_short(real)}" if real != os.path.abspath(file) else "")
            raise refuse(
                "outside-of-root",
                f"{row.id}: {where}, which is not in data.root ({root})",
                row.origin,
                parameter="data.root",
            )


def _short(path: str) -> str:
    return path if len(path) <= 160 else shown_value(path)


def _files(row: Row) -> Iterator[str]:
    for image in row.images:
        if isinstance(image, str) and not image.startswith("data:"):
            yield image
    for video in row.videos:
        frames = [video.source] if isinstance(video.source, str) else video.source
        yield from (one for one in frames if isinstance(one, str) and not one.startswith("data:"))


def _is_plainly_inside(file: str, folder: str) -> bool:
    """Return whether the text of two paths says that one is in the other, as it nearly always does.

    A folder that is the working directory is not in the paths of what is relative to it.
    """
    if ".." in file:
        return False
    return not file.startswith("/") if folder == "." else file.startswith(folder + "/")


def _is_inside(file: str, folder: str) -> bool:
    path = os.path.abspath(file)
    return _is_below(path, os.path.abspath(folder)) or _is_below(path, str(image_cache_folder()))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
