"""Locations of a row's images and videos."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from vtool.contents import content_of, ends_early
from vtool.data.row import Row, RowVideo, media_path, refuse, shown_value
from vtool.data.urls import SCHEMES, NotFetched, UrlCache
from vtool.diagnostics import Findings, Origin
from vtool.diagnostics.near_miss import did_you_mean
from vtool.models.pictures import (
    PictureReader,
    TooManyPixels,
    WideValues,
    carried_picture,
)
from vtool.near_files import near_file, quoted_name

_CUT = "cut the clip out of the file first, or give its frames as a list"
_FRAMES = "set data.video.fps and data.video.max_frames for all videos, or write this one's fps"
_SIZE = "set data.video.min_pixels and data.video.max_pixels for all videos"
NOT_OF_VIDEOS = {
    **dict.fromkeys(("nframes", "num_frames", "min_frames", "max_frames"), _FRAMES),
    **dict.fromkeys(
        ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width"), _SIZE
    ),
    **dict.fromkeys(("video_start", "video_end"), _CUT),
    "raw_fps": 'write "fps": how many of the listed frames there are to a second',
}
"""Keys of a video's part that vtool refuses and qwen-vl-utils or transformers read; the remedy."""


def locate_image(
    given: Any, name: str, folder: Path, origin: Origin | None, urls: UrlCache | None = None
) -> str | bytes:
    """Return an image's path, the `data:` address that carries it, or its file's bytes.

    Args:
        urls: the images that may be fetched; None: none may.

    Raises:
        Findings: `malformed-messages`, `missing-image`, calling the row `name`.
    """
    if isinstance(given, dict):  # {"bytes": …, "path": …}, as the datasets library writes an image
        if isinstance(carried := given.get("bytes"), bytes) and carried:
            return carried  # the path is only a name then
        given = given.get("path")
    if not isinstance(given, str):
        raise refuse(
            "malformed-messages",
            f"{name}: an image must be a path; here it is {shown_value(given)}",
            origin,
        )
    if urls is not None and given.startswith(SCHEMES):
        try:
            return str(urls.path(given))
        except NotFetched as error:
            raise refuse(
                "missing-image", f"{name}: {shown_value(given)} {error}", origin
            ) from error
    return given if given.startswith("data:") else _file(given, name, folder, origin, "image")


def image_of_source(source: Any, malformed: Callable[..., Findings]) -> str:
    """Return the address in an image's part as Anthropic writes it: carried, or on the web.

    Raises:
        Findings: `malformed-messages`.
    """
    given = source if isinstance(source, dict) else {}
    match given.get("type"), given:
        case "base64", {"media_type": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
        case "url", {"url": str(address)}:
            return address
    raise malformed(
        f'"source" of an image is {shown_value(source)}, which is not read',
        'write {"type": "base64", "media_type": "image/png", "data": "…"}, or name the file:'
        ' {"type": "image", "image": "cat.png"}',
    )


def locate_video(
    given: Any, options: Mapping[str, Any], name: str, folder: Path, origin: Origin | None
) -> RowVideo:
    """Return a video: its file, or its frames.

    Args:
        options: the part of content that it is in, or the entry of the row's list.

    Raises:
        Findings: `malformed-messages`, `missing-video`, calling the row `name`.
    """
    if isinstance(given, dict):  # an entry of the row's list
        options, given = (
            {**options, **given},
            next(
                (given[key] for key in ("video", "path", "url") if given.get(key) is not None), None
            ),
        )
    for key, instead in NOT_OF_VIDEOS.items():
        if options.get(key) is not None:
            raise refuse(
                "malformed-messages",
                f'{name}: a video has "{key}", which is not read',
                origin,
                help=instead,
            )
    fps = options.get("fps", options.get("sample_fps"))
    if fps is not None and (
        isinstance(fps, bool)
        or not isinstance(fps, int | float)
        or not 0 < fps <= sys.float_info.max
    ):
        raise refuse(
            "malformed-messages",
            f'{name}: "fps" of a video is a number above 0; here it is {shown_value(fps)}',
            origin,
        )
    if isinstance(given, list):
        if not given:
            raise refuse("broken-video", f"{name}: a video has an empty list of frames", origin)
        return RowVideo(tuple(locate_frame(frame, name, folder, origin) for frame in given), fps)
    if not isinstance(given, str):
        message = (
            f"{name}: a video must be a file's path or a list of frames' paths; here it is"
            f" {shown_value(given)}"
        )
        raise refuse("malformed-messages", message, origin)
    if given.startswith("data:"):
        help = "save it as a file"
        raise refuse(
            "malformed-messages",
            f"{name}: a video is inside the row (a data: address), which is not read",
            origin,
            help=help,
        )
    return RowVideo(_file(given, name, folder, origin, "video"), fps)


def locate_frame(given: Any, name: str, folder: Path, origin: Origin | None) -> str:
    """Return a frame's path, or the `data:` address that carries it."""
    if not isinstance(given, str):
        raise refuse(
            "malformed-messages",
            f"{name}: a frame of a video must be a path; here it is {shown_value(given)}",
            origin,
        )
    return (
        given
        if given.startswith("data:")
        else _file(given, name, folder, origin, "video", "frame ")
    )


def load_picture(
    row: Row, picture: Any, rule: str, unnamed: str, reader: PictureReader
) -> tuple[Any, tuple[str, ...]]:
    """Return an image or a frame as PIL has it at inference: upright by its EXIF tag, RGB.

    Args:
        rule: the rule that a picture breaks which cannot be decoded.
        unnamed: what a message calls a picture that is not a file.

    Returns:
        The picture, and its traits: names of `vtool.models.pictures.PICTURE_TRAITS`.
    """
    with picture_errors(row, picture, rule, unnamed, reader):
        return reader.read(picture)


@contextmanager
def picture_errors(
    row: Row, picture: Any, rule: str, unnamed: str, reader: PictureReader
) -> Iterator[None]:
    """Turn what a reader of pictures raises into findings about a row; as `load_picture`."""
    named = picture if isinstance(picture, str) and len(picture) < 200 else unnamed
    try:
        yield
    except WideValues as error:
        message = f"{row.id}: {named} is {error}: as RGB, its values are cut to 0 to 255"
        raise refuse(
            "wide-image-values", message, row.origin, parameter="data.image.sixteen_bit"
        ) from error
    except TooManyPixels as error:
        message = f"{row.id}: {named} is not decoded: {error}; at most {reader.most_pixels:,} are"
        raise refuse(
            "too-many-pixels", message, row.origin, parameter="data.image.max_decoded_pixels"
        ) from error
    except MemoryError:  # of the machine, not of the picture
        raise
    # Each decoder raises what its file format raises; PIL, where a file is cut off.
    except Exception as error:
        raise undecodable(row, picture, named, rule, "a picture", shown_value(error)) from error


def undecodable(row: Row, given: Any, named: str, rule: str, kind: str, why: str) -> Findings:
    """Return the exception for a picture or a video that its decoder refuses.

    It says what the file is, where it is something else, or that it is cut off.

    Args:
        given: its path, its bytes, or an address that carries it.
        kind: what it should be: `a picture` or `a video`.
        why: what the decoder says.
    """
    content = given
    if isinstance(given, str):
        with suppress(ValueError):
            carried = given.startswith("data:")
            content = carried_picture(given).read() if carried else Path(given)
    found = content_of(content) if isinstance(content, Path | bytes) else None
    if found is not None and found.kind != kind.removeprefix("a "):
        message = f"{row.id}: {named} cannot be decoded: it {found.what}, and not {kind}"
        return refuse(rule, message, row.origin, help=found.remedy)
    if "truncated" in why or (isinstance(content, Path | bytes) and ends_early(content)):
        why = f"it is cut off: {why}"
    elif found is not None:
        why = f"it {found.what}: {why}"
    return refuse(rule, f"{row.id}: {named} cannot be decoded: {why}", row.origin)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path longer than any can be
        return False


def _file(
    given: str, name: str, folder: Path, origin: Origin | None, kind: str, what: str = ""
) -> str:
    rule = f"missing-{kind}"
    if given.startswith(SCHEMES):
        path = Path(unquote(urlsplit(given).path.lstrip("/")))
        beside = next((each for each in (path, path.name) if _is_file(folder / each)), None)
        raise refuse(
            rule,
            f"{name}: {shown_value(given)} is an address on the web, which is not fetched",
            origin,
            help=did_you_mean([str(beside)]) if beside else None,
        )
    path = media_path(folder, given)
    there = _is_file(path)
    if not there and kind == "video" and os.path.isdir(path):
        raise refuse(
            rule,
            f"{name}: the {kind} {path} is a folder",
            origin,
            help="list the frames in it, in their order",
        )
    if not there:
        named = shown_value(str(path)) if len(str(path)) > 160 else quoted_name(str(path))
        message, help = f"{name}: there is no {what or kind + ' '}{named}", None
        if near := near_file(given, folder):
            message, help = f"{message} ({near.there})", near.question
            inside = os.path.dirname(near.paths[0])
            if kind == "image" and inside and near.paths[0].endswith(f"{os.sep}{given}"):
                help += (
                    " Or name the folder of all images: data.train=[{format: …, path: …,"
                    f" image_folder: {inside}}}]"
                )
        raise refuse(rule, message, origin, help=help)
    return str(path)
