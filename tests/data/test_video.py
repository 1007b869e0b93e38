"""Videos in rows:

how they are written, what is shown of a file, and one finding for each thing that can be wrong.
"""

import builtins
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.rows import chat, film, frames, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.data import video
from vtool.data.audit import build_ledger
from vtool.data.formats.messages import Messages
from vtool.data.inspect_rows import inspect_rows
from vtool.data.row import Row, RowVideo
from vtool.data.video import Clip, open_clip
from vtool.diagnostics import Diagnostic, Findings

SMALL = "data.video={min_pixels:784,max_pixels:3136}"


def read(folder: Path, record: Any) -> Row:
    return Messages(str(write_rows(folder / "rows.jsonl", [record]))).row(0)


def audited(folder: Path, rows: list[Any], *more: str) -> tuple[Any, list[Diagnostic]]:
    """The ledger of these rows, and the findings."""
    made = request("rows", messages(write_rows(folder / "rows.jsonl", rows)), SMALL, *more)
    encoding, _ = encoded(made)
    ledger, findings = build_ledger(encoding, inspect_rows(encoding, range(len(rows)), 0), "train")
    return ledger, list(findings)


def clip_of(folder: Path, one: RowVideo, *more: str) -> Clip:
    (folder / "rows.jsonl").write_text("")
    _, processor = encoded(request("rows", messages(folder / "rows.jsonl"), SMALL, *more))
    return open_clip(Row("r", [], []), one, processor.video)


def greys(clip: Clip) -> list[int]:
    """The number of each frame of a `film`, by its grey."""
    return [round((float(np.asarray(frame).mean()) - 8) / 8) for frame in clip.frames]


@pytest.mark.parametrize(
    ("content", "more"),
    [
        ([{"type": "video", "video": "a.mp4", "fps": 4}], {}),
        ([{"type": "video", "path": "a.mp4", "sample_fps": 4.0}], {}),
        ([{"type": "video", "url": "file://a.mp4", "fps": 4}], {}),
        ([{"type": "video_url", "video_url": {"url": "a.mp4"}, "fps": 4}], {}),
        ("<video>", {"videos": [{"video": "a.mp4", "fps": 4}]}),
        ([{"type": "video"}], {"videos": [{"path": "a.mp4", "fps": 4}]}),
    ],
)
def test_every_layout_of_a_video_is_understood(
    tmp_path: Path, content: Any, more: dict[str, Any]
) -> None:
    (tmp_path / "a.mp4").touch()
    row = read(tmp_path, chat(content, "b") | more)
    assert row.messages[0]["content"] == [{"type": "video"}]
    assert list(row.videos) == [RowVideo(str(tmp_path / "a.mp4"), 4)]


def test_frames_are_a_list_of_pictures(tmp_path: Path) -> None:
    names = frames(tmp_path, "f", 3)
    files = tuple(str(tmp_path / name) for name in names)
    for record in (
        chat([{"type": "video", "video": names}], "b"),
        chat("<video>", "b") | {"videos": [names]},
    ):
        assert list(read(tmp_path, record).videos) == [RowVideo(files)]


def test_images_and_videos_go_to_their_own_tags(tmp_path: Path) -> None:
    names = frames(tmp_path, "f", 2)
    row = read(
        tmp_path,
        chat("<video>a<image>b<video>", "c")
        | {
            "images": [names[0]],
            "videos": [names, names[::-1]],
        },
    )
    assert list(row.visuals()) == ["video", "image", "video"]
    assert [Path(str(video.source[0])).name for video in row.videos] == [names[0], names[1]]


@pytest.mark.parametrize(
    ("record", "rule", "words"),
    [
        (
            chat("<video>?", "b") | {"videos": ["missing.mp4"]},
            "missing-video",
            "there is no video ",
        ),
        (
            chat("<video>?", "b") | {"videos": [["f-0.png", "missing.png"]]},
            "missing-video",
            "there is no frame ",
        ),
        (
            chat("<video>?", "b") | {"videos": ["https://example.org/a.mp4"]},
            "missing-video",
            "not fetched",
        ),
        (chat("<video>?", "b") | {"videos": ["."]}, "missing-video", "is a folder"),
        (chat("<video>?", "b") | {"videos": [[]]}, "broken-video", "empty list of frames"),
        (
            chat("<video>?", "b") | {"videos": [7]},
            "malformed-messages",
            "a file's path or a list of frames' paths; here it is 7",
        ),
        (
            chat("<video>?", "b") | {"videos": [[7]]},
            "malformed-messages",
            "a frame of a video must be a path",
        ),
        (
            chat("<video>?", "b") | {"videos": "a.mp4"},
            "malformed-messages",
            '"videos" must be a list',
        ),
        (
            chat("<video>?", "b") | {"videos": ["data:video/mp4;base64,AA"]},
            "malformed-messages",
            "data: address",
        ),
        (
            chat("<video>?", "b") | {"videos": [{"video": "f-0.png", "fps": 0}]},
            "malformed-messages",
            "a number above 0; here it is 0",
        ),
        (
            chat("<video>?", "b") | {"videos": [{"video": "f-0.png", "nframes": 8}]},
            "malformed-messages",
            '"nframes", which is not read',
        ),
        (
            chat([{"type": "video", "video": "f-0.png", "video_end": 3}], "b"),
            "malformed-messages",
            '"video_end", which is not read',
        ),
        (
            chat("<video>and<video>", "b") | {"videos": [["f-0.png"]]},
            "placeholder-mismatch",
            '2 video placeholders, but 1 entry in "videos"',
        ),
        (chat("<Video>?", "b"), "malformed-messages", "<Video>, which would be read as plain text"),
        (
            chat("a", "b") | {"Videos": ["a.mp4"]},
            "malformed-messages",
            '"Videos", which is not read',
        ),
        (chat("a", [{"type": "video", "video": ["f-0.png"]}]), "image-in-answer", "has a video"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_understood_is_named(
    tmp_path: Path, record: Any, rule: str, words: str
) -> None:
    frames(tmp_path, "f", 1)
    with pytest.raises(Findings) as caught:
        read(tmp_path, record)
    (finding,) = caught.value.diagnostics
    assert finding.rule == rule
    assert finding.message.startswith("rows.jsonl:1: ")
    assert words in finding.message
    assert finding.origin is not None
    assert finding.origin.line == 1


def test_a_file_is_sampled_and_each_frame_is_the_one_that_is_meant(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", 30)
    clip = clip_of(tmp_path, RowVideo(str(path)))
    assert (clip.total, clip.rate) == (30, 10.0)
    assert greys(clip) == list(clip.indices) == [0, 5, 10, 15, 20, 25]
    assert clip.seconds_per_grid(2) == pytest.approx(1.0)
    assert greys(clip_of(tmp_path, RowVideo(str(path), fps=4))) == [
        0,
        2,
        5,
        7,
        10,
        12,
        15,
        17,
        20,
        22,
        25,
        27,
    ]
    assert (
        len(
            clip_of(
                tmp_path, RowVideo(str(path)), "data.video.fps=10", "data.video.max_frames=6"
            ).frames
        )
        == 6
    )


@pytest.mark.parametrize("ending", ["mkv", "avi", "webm"])
def test_a_file_that_does_not_say_how_many_frames_it_has_is_counted(
    tmp_path: Path, ending: str
) -> None:
    path = film(tmp_path / f"a.{ending}", 30, codec="libvpx-vp9" if ending == "webm" else "mpeg4")
    clip = clip_of(tmp_path, RowVideo(str(path)))
    assert clip.total == 30
    assert greys(clip) == list(clip.indices)


def test_frames_that_take_too_much_memory_together_are_refused_before_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, frame = film(tmp_path / "a.mp4", 30), 3 * 64 * 48
    shown = len(clip_of(tmp_path, RowVideo(str(path))).indices)
    monkeypatch.setattr(video, "MOST_FRAME_BYTES", shown * frame)
    assert len(clip_of(tmp_path, RowVideo(str(path))).indices) == shown
    monkeypatch.setattr(video, "MOST_FRAME_BYTES", shown * frame - 1)
    with pytest.raises(Findings, match=f"the {shown} frames of 64 × 48 that are shown take") as got:
        clip_of(tmp_path, RowVideo(str(path)))
    assert f"set data.video.max_frames={(shown - 1) // 2 * 2}" in got.value.diagnostics[0].message
    monkeypatch.setattr(video, "MOST_FRAME_BYTES", 4 * frame)
    few = clip_of(tmp_path, RowVideo(str(path)), "data.video.max_frames=4")
    assert len(few.indices) == 4


def test_a_video_that_a_phone_has_turned_is_upright(tmp_path: Path) -> None:
    """The matrix of an mp4's track says so: byte by byte, a quarter turn clockwise."""
    import av

    path = tmp_path / "a.mp4"
    # The left half is lighter; turned clockwise, it is on top.
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        halves = np.zeros((48, 64, 3), dtype=np.uint8)
        halves[:, :32] = 200
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(halves, format="rgb24")))
        container.mux(stream.encode())
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 4 + 40
    content[matrix : matrix + 36] = struct.pack(
        ">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30
    )
    path.write_bytes(content)
    first, *_ = clip_of(tmp_path, RowVideo(str(path))).frames
    assert first.size == (48, 64)
    pixels = np.asarray(first).astype(float)
    assert pixels[:24].mean() > 150
    assert pixels[40:].mean() < 50


def test_a_list_of_frames_is_shown_as_it_is(tmp_path: Path) -> None:
    files = tuple(str(tmp_path / name) for name in frames(tmp_path, "f", 7))
    clip = clip_of(tmp_path, RowVideo(files, fps=14))
    assert (list(clip.indices), clip.total, clip.rate) == (list(range(7)), 7, 14)
    with pytest.raises(Findings, match=r"too-many-frames.*7 frames, and at most 4"):
        clip_of(tmp_path, RowVideo(files), "data.video.max_frames=4")


def unknown_codec(path: Path) -> None:
    film(path, 10)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"mp4v", b"zzzz").replace(b"esds", b"skip"))


def sound(path: Path) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16_000)
        silence = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono"
        )
        silence.sample_rate = 16_000
        container.mux(stream.encode(silence))
        container.mux(stream.encode())


def cut_off(path: Path) -> Path:
    """With its index in front, as for the web, and half of its frames."""
    import av

    whole = film(path.with_suffix(".whole.mp4"), 60, 320, 240)
    with (
        av.open(str(whole)) as source,
        av.open(str(path), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cut_off, "it is cut off: "),
        (
            lambda path: path.write_bytes(
                film(path.with_suffix(".whole.mp4"), 30).read_bytes()[:900]
            ),
            "it is cut off: ",
        ),
        (lambda path: path.write_text("not a video"), 'it is text: "not a video", and not a video'),
        (lambda path: path.write_bytes(b""), "it is empty, of 0 bytes, and not a video"),
        (unknown_codec, "codec"),
        (sound, "it has no video in it"),
        (lambda path: film(path, 2, 4000, 16), "aspect ratio"),
        (
            lambda path: picture(path.with_suffix(".png")).rename(path),
            "is a picture, and not a video",
        ),
        (
            lambda path: Image.new("RGB", (56, 56)).save(path, "JPEG"),
            "is a picture, and not a video",
        ),
    ],
    ids=[
        "cut off",
        "without an index",
        "text",
        "empty",
        "unknown codec",
        "sound",
        "narrow",
        "PNG",
        "JPEG",
    ],
)
def test_a_file_that_is_no_whole_video_is_one_finding(
    tmp_path: Path, made: Any, words: str
) -> None:
    made(tmp_path / "a.mp4")
    ledger, findings = audited(
        tmp_path, [chat("<video>", "b") | {"videos": ["a.mp4"]}, chat("a", "b")]
    )
    assert len(ledger.kept) == 1
    broken, too_many = findings
    assert (broken.rule, too_many.rule) == ("broken-video", "too-many-dropped-rows")
    assert "rows.jsonl:1" in broken.message
    assert words in broken.message
    assert broken.origin is not None


def test_a_search_for_the_next_frame_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.video._PATIENCE", 0.5)
    file = film(tmp_path / "a.mkv", 6, 32, 32)
    audited(tmp_path, [chat("<video>", "b") | {"videos": ["a.mkv"]}])
    os.truncate(file, 40 * 2**30)  # without a block of the disk
    _, findings = audited(tmp_path, [chat("<video>", "b") | {"videos": ["a.mkv"]}])
    assert "no frame of it is found in 0.5 seconds" in findings[0].message


@pytest.mark.parametrize("ending", ["gif", "png"])
def test_a_picture_that_moves_is_a_video(tmp_path: Path, ending: str) -> None:
    pictures = [Image.new("RGB", (56, 56), (40 * number, 0, 0)) for number in range(5)]
    pictures[0].save(
        tmp_path / f"a.{ending}", save_all=True, append_images=pictures[1:], duration=100
    )
    clip = clip_of(tmp_path, RowVideo(str(tmp_path / f"a.{ending}"), fps=10))
    assert clip.total == 5
    assert [np.asarray(frame)[0, 0, 0] for frame in clip.frames[:4]] == pytest.approx(
        [0, 40, 80, 120], abs=2
    )


def test_at_any_rate_a_row_is_used_or_refused_with_the_reason(tmp_path: Path) -> None:
    """A rate that asks for less than one frame, or more than there are:

    of GLM-4V, which goes by time, nothing was shown, or it hung.
    """
    film(tmp_path / "a.mp4", 60)
    rows = [
        chat("<video>", "b") | {"videos": [{"video": "a.mp4", "fps": fps}]}
        for fps in (0.001, 1e9, 1e308, 10**400)
    ]
    for more in ((), ("data.video.fps=0.003",)):
        ledger, findings = audited(
            tmp_path, rows, "model.family=glm4v", "data.max_dropped_rows=1", *more
        )
        assert (tuple(ledger.kept), findings) == ((0, 1, 2), [])
        (last,) = ledger.dropped
        assert last.rule == "malformed-messages"
        assert '"fps" of a video is a number above 0' in last.message


def test_a_list_with_more_frames_than_the_seconds_that_are_shown_says_so(tmp_path: Path) -> None:
    (file,) = frames(tmp_path, "f", 1)
    rows = [
        chat("<video>", "b") | {"videos": [{"video": [file] * count, "fps": 0.003}]}
        for count in (3, 601)
    ]
    _, (finding, _) = audited(tmp_path, rows, "model.family=glm4v")
    assert finding.rule == "too-many-frames"
    assert finding.message.startswith(
        "rows.jsonl:2: a video has 601 frames, and at most 600 are shown of one, as many as in 300"
        " seconds at 2 a"
    )
    assert finding.help is not None
    assert "data.video.max_frames=601" in finding.help
    ledger, findings = audited(tmp_path, rows, "model.family=glm4v", "data.video.max_frames=601")
    assert (tuple(ledger.kept), findings) == ((0, 1), [])


def test_frames_of_several_sizes_and_frames_cut_off_are_named(tmp_path: Path) -> None:
    names = frames(tmp_path, "f", 3)
    odd = frames(tmp_path, "odd", 1, 64, 28)
    (tmp_path / "half.png").write_bytes((tmp_path / names[0]).read_bytes()[:200])
    rows = [
        chat("<video>", "b") | {"videos": [files]}
        for files in ([*names, *odd], [names[0], "half.png"], names)
    ]
    ledger, findings = audited(tmp_path, rows, "data.max_dropped_rows=2")
    assert not findings
    assert (len(ledger.kept), ledger.videos) == (1, 1)
    first, second = (dropped.message for dropped in ledger.dropped)
    assert "differ in size: 56 × 28 pixels, and frame 4 has 64 × 28" in first
    assert "half.png cannot be decoded" in second
    assert "1 video" in ledger.in_words()


def test_without_a_decoder_one_finding_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film(tmp_path / "a.mp4", 4)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    rows = [chat("<video>", "b") | {"videos": ["a.mp4"]}] * 3
    # it is of the machine, and drops no row
    _, findings = audited(tmp_path, rows, "data.max_dropped_rows=9")
    (finding,) = findings
    assert finding.rule == "video-decoder-missing"
    assert finding.help is not None
    assert "pip install 'vtool[video]'" in finding.help


def test_truncation_does_not_cut_through_a_video(tmp_path: Path) -> None:
    names = frames(tmp_path, "f", 4)
    rows = [chat("<video>", "a long answer of many words") | {"videos": [names]}]
    _, findings = audited(tmp_path, rows, "data.max_length=6", "data.on_overlong=truncate")
    assert findings[0].rule == "answer-cut-off"
    assert "which cuts off video tokens" in findings[0].message


def test_other_frames_in_a_file_of_the_same_name_are_other_data(tmp_path: Path) -> None:
    names = frames(tmp_path, "f", 2)
    rows = [chat("<video>", "b") | {"videos": [names]}]
    before, _ = audited(tmp_path, rows)
    picture(tmp_path / names[1], seed=9)
    after, _ = audited(tmp_path, rows)
    assert before.images_digest != after.images_digest


def test_the_rows_are_shown_with_runs_of_video_tokens(tmp_path: Path) -> None:
    from vtool.verification.rows import audit_rows

    names = frames(tmp_path, "f", 4)
    made = request(
        "rows",
        messages(
            write_rows(tmp_path / "rows.jsonl", [chat("<video>What?", "b") | {"videos": [names]}])
        ),
        SMALL,
    )
    (audit,) = audit_rows(made.run)
    assert audit.example is not None
    assert "<|vision_start|><|video_pad|>×4<|vision_end|>What?" in audit.example


def test_the_last_frame_alone_changes_the_sample_too(tmp_path: Path) -> None:
    """Every frame that is listed reaches the patches: changing any of them changes the sample."""
    names = frames(tmp_path, "f", 4)
    rows = [chat("<video>", "b") | {"videos": [names]}]
    write_rows(tmp_path / "rows.jsonl", rows)
    encode = lambda: encoded(request("rows", messages(tmp_path / "rows.jsonl"), SMALL))[0].sample(0)  # noqa: E731
    before = encode().visuals.inputs["pixel_values_videos"]
    assert before is not None
    for name in names:
        kept = (tmp_path / name).read_bytes()
        Image.new("RGB", (56, 28)).save(tmp_path / name)
        after = encode().visuals.inputs["pixel_values_videos"]
        assert after is not None
        assert not (before == after).all()
        (tmp_path / name).write_bytes(kept)
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == rows[0]
