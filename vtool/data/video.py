"""The frames that are shown of a row's videos, and when each is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.data.media import load_picture, undecodable
from vtool.data.row import Row, RowVideo, refuse, shown_value
from vtool.diagnostics import Findings
from vtool.models.pictures import PictureReader
from vtool.models.video import VideoProcessor

_PATIENCE = 15.0
"""Seconds without a frame after which a file is given up: its decoder looks for the next one in
whatever follows, which may go on for hours."""
MOST_FRAME_BYTES = 2**31
"""Bytes of a video's frames in RGB that are decoded at most."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The frames of a video that are shown."""

    frames: Sequence[Any]
    """PIL images of one size."""
    indices: Sequence[int]
    """Their numbers among all frames, from 0. The last one may be there twice."""
    total: int
    """All frames."""
    rate: float
    """Frames a second, of all frames."""
    traits: tuple[str, ...] = ()
    """Names of `vtool.models.pictures.PICTURE_TRAITS`: the losses of listed frames."""

    def seconds_per_grid(self, together: int) -> float:
        """Return the seconds of a patch along time (`second_per_grid_ts` of transformers)."""
        return together * self.total / (len(self.indices) * self.rate)


class _Undecodable(Exception):
    """The reason why a file cannot be decoded."""


class _Picture(Exception):
    """The file is a picture."""


def open_clip(
    row: Row, video: RowVideo, processor: VideoProcessor, pictures: PictureReader | None = None
) -> Clip:
    """Decode what is shown of a video. Frames given as a list are all shown.

    Args:
        pictures: what reads the frames of a list.

    Raises:
        Findings: `broken-video`, `too-many-frames`, `video-decoder-missing`, naming the row.
    """
    if isinstance(video.source, str):
        return _of_file(row, video.source, video.fps, processor)
    rate, count = video.fps or processor.fps, len(video.source)
    if count > (most := processor.most_listed_frames(rate)):
        raise _too_many(row, count, most, rate, processor)
    loaded = [
        load_picture(row, frame, "broken-video", "a frame", pictures or PictureReader())
        for frame in video.source
    ]
    frames = [frame for frame, _ in loaded]
    sizes = list(dict.fromkeys(frame.size for frame in frames))
    if len(sizes) > 1:
        first = next(number for number, frame in enumerate(frames, 1) if frame.size == sizes[1])
        message = (
            f"{row.id}: the frames of a video differ in size: {_by(sizes[0])} pixels, and frame"
            f" {first} has {_by(sizes[1])}"
        )
        raise refuse("broken-video", message, row.origin)
    traits = tuple(trait for _, of_frame in loaded for trait in of_frame)
    return Clip(frames, range(count), count, rate, traits)


def _too_many(row: Row, count: int, most: int, rate: float, processor: VideoProcessor) -> Findings:
    message, help = (
        f"{row.id}: a video has {count} frames, and at most {most} are shown of one",
        None,
    )
    if most != processor.max_frames:
        message += (
            f", as many as in {processor.max_seconds:g} seconds at"
            f" {max(rate, processor.usual_fps):g} a second"
        )
        help = (
            f"list fewer frames, or set data.video.max_frames={count}, which allows as many seconds"
            " as they take"
        )
    return refuse(
        "too-many-frames", message, row.origin, parameter="data.video.max_frames", help=help
    )


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def _of_file(row: Row, path: str, fps: float | None, processor: VideoProcessor) -> Clip:
    try:
        import av
    except ImportError as error:
        message = f"{row.id}: {path} is a video file, and PyAV, which decodes it, is not installed"
        help = "pip install 'vtool[video]', or give the frames as a list of pictures"
        raise refuse("video-decoder-missing", message, row.origin, help=help) from error
    try:
        return _decode(path, lambda total, rate: processor.sample(total, rate, fps))
    except _Picture as error:
        help = (
            'write {"type": "image"}, or an <image> tag, or give the video as a list of its frames,'
            ' though it be of one: ["frame.png"]'
        )
        raise refuse(
            "broken-video", f"{row.id}: {path} is a picture, and not a video", row.origin, help=help
        ) from error
    except (_Undecodable, av.FFmpegError, OSError, ValueError) as error:
        why = str(error) if isinstance(error, _Undecodable) else shown_value(error)
        if isinstance(error, av.error.ExitError):
            why = f"no frame of it is found in {_PATIENCE:g} seconds"
        raise undecodable(row, path, path, "broken-video", "a video", why) from error


def _decode(path: str, choose_frames: Callable[[int, float], list[int]]) -> Clip:
    """Decode a file from its first frame to its last; keep those picked.

    How many frames there are stands in the file, where it is not a stream; where that is wrong, it
    is decoded again.
    """
    declared, rate, promised, still = _declared(path)
    total = declared or _count(path)
    indices = choose_frames(total, rate) if total else []
    decoded = _frames(path, frozenset(indices))
    found = decoded.total
    if not found:
        raise _Undecodable("it has no frames")
    if still and found == 1:
        raise _Picture
    if found < declared and promised is not None and decoded.ends < promised - 2 / rate:
        raise _Undecodable(
            f"it is cut off: {found} of {declared} frames are there, {decoded.ends:.1f} of"
            f" {promised:.1f} seconds"
        )
    if found != total:  # an edit list leaves out what the file has
        total = found
        indices = choose_frames(total, rate)
        decoded = _frames(path, frozenset(indices))
    if decoded.damaged is not None:
        raise _Undecodable(f"frame {decoded.damaged + 1} is damaged")
    return Clip([decoded.pictures[index] for index in indices], indices, total, rate)


def _open(path: str) -> Any:
    import av

    container = av.open(path, timeout=_PATIENCE)
    if not container.streams.video:
        container.close()
        raise _Undecodable("it has no video in it")
    return container


def _declared(path: str) -> tuple[int, float, float | None, bool]:
    """Return a file's own facts.

    Its frames, 0 where it does not say; frames a second; the video's end in seconds; and whether
    it is a picture's file, such as PNG or GIF.
    """
    with _open(path) as container:
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise _Undecodable("PyAV does not know its codec")
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise _Undecodable("it does not say how many frames it has a second")
        ends = None
        if stream.duration is not None:
            ends = float(((stream.start_time or 0) + stream.duration) * stream.time_base)
        return stream.frames, float(rate), ends, container.format.name.endswith(("_pipe", "image2"))


def _count(path: str) -> int:
    with _open(path) as container:
        return sum(1 for _ in container.decode(video=0))


@dataclass(frozen=True, slots=True)
class _Decoded:
    pictures: dict[int, Any]
    """The wanted frames by their number, upright and in RGB."""
    total: int
    ends: float
    """Return when the last frame ends, in seconds."""
    damaged: int | None
    """The first of the wanted frames that the decoder had to guess at."""


def _frames(path: str, wanted: frozenset[int]) -> _Decoded:
    kept: dict[int, Any] = {}
    found, ends = 0, 0.0
    damaged: int | None = None
    with _open(path) as container:
        for number, frame in enumerate(container.decode(video=0)):
            found = number + 1
            if frame.time is not None:
                ends = max(ends, frame.time + float((frame.duration or 0) * frame.time_base))
            if number in wanted:
                if not kept:
                    _check_bytes(len(wanted), frame.width, frame.height)
                if frame.is_corrupt and damaged is None:
                    damaged = number
                picture = frame.to_image()
                kept[number] = (
                    picture.rotate(frame.rotation, expand=True) if frame.rotation else picture
                )
    return _Decoded(kept, found, ends, damaged)


def _check_bytes(frames: int, width: int, height: int) -> None:
    """Refuse frames that take too much memory together, before they are there.

    A file of 80 KB can have 3,000 frames that are alike, of which each is a megabyte.

    Raises:
        _Undecodable: they do.
    """
    each = 3 * width * height
    if frames * each > MOST_FRAME_BYTES:
        taken, most = (f"{size / 2**30:.1f}" for size in (frames * each, MOST_FRAME_BYTES))
        fewer = max(2, MOST_FRAME_BYTES // each // 2 * 2)
        raise _Undecodable(
            f"the {frames:,} frames of {width} × {height} that are shown take {taken} GiB, and at"
            f" most {most} are decoded: set data.video.max_frames={fewer}, or store smaller frames"
        )
