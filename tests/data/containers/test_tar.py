"""Rows of a tar: found by headers alone, each with the pictures next to it."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows
from tests.rows import chat, picture
from vtool.data.containers.tar import TarRows
from vtool.data.containers.tar_index import find_members
from vtool.diagnostics import Findings

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


def write(path: Path, *members: tuple[str, Any], format: int = tarfile.PAX_FORMAT) -> Path:
    """A tar of so many files; what is not bytes is written as JSON."""
    with tarfile.open(path, "w", format=format) as tar:
        for name, value in members:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> list[bytes]:
    return [picture(tmp_path / f"{n}.png", seed=n).read_bytes() for n in range(3)]


def finding(path: Path, row: int = 0) -> Any:
    with pytest.raises(Findings) as caught:
        open_rows("messages", path).row(row)
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("format", FORMATS)
def test_members_are_those_that_tarfile_finds(tmp_path: Path, format: str) -> None:
    deep = "/".join(["folder"] * 20)
    names = ["0001.json", "café/0002.json", "日本.x.json", f"{deep}/{'n' * 90}.json"]
    if format == "ustar":
        names = [*names[:1], f"{deep}/0002.json"]
    path = write(
        tmp_path / "rows.tar",
        *((name, b"x" * n * 300) for n, name in enumerate(names)),
        format=FORMATS[format],
    )
    with tarfile.open(path) as tar:
        expected = [(each.name, each.offset_data, each.size) for each in tar if each.isfile()]
    with path.open("rb") as file:
        assert [tuple(member) for member in find_members(file, path)] == expected
    assert [name for name, *_ in expected] == names


OF_ANTHROPIC = {"type": "image", "source": {"type": "url", "url": "7.png"}}


def test_a_row_has_the_pictures_of_its_key(tmp_path: Path, pictures: list[bytes]) -> None:
    one, two, three = pictures
    path = write(
        tmp_path / "rows.tar",
        *(("a/0.png", one), ("a/0.json", chat("<image>?", "unnamed"))),
        *(
            ("1.json", chat("<image>?", "by extension") | {"images": ["left.png"]}),
            ("1.left.png", two),
        ),
        *(("2.png", three), ("2.json", chat("<image>?", "by name") | {"images": ["2.png"]})),
        *(("3.l.png", one), ("3.r.png", two), ("3.json", chat("<image><image>?", "in order"))),
        *(
            ("4.PNG", three),
            ("4.json", chat([{"type": "image", "image": "4.PNG"}], "in its part")),
        ),
        *(("5.png", one), ("5.json", chat("<image>?", "its one") | {"images": ["coco/x.png"]})),
        ("6.json", chat("?", "none")),
        *(("7.png", two), ("7.json", chat([OF_ANTHROPIC], "named as Anthropic does"))),
    )
    rows = open_rows("messages", path)
    expected = [[one], [two], [three], [one, two], [three], [one], [], [two]]
    assert [rows.row(index).images for index in range(8)] == expected
    assert [rows.name(index) for index in (0, 1)] == ["rows.tar:a/0", "rows.tar:1"]
    again = pickle.loads(pickle.dumps(rows))
    assert again.row(3).images == [one, two]


def test_a_row_may_be_of_another_layout(tmp_path: Path, pictures: list[bytes]) -> None:
    turns = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "b"}]
    path = write(
        tmp_path / "rows.tar",
        ("0.jpg", pictures[0]),
        ("0.json", {"image": "0.jpg", "conversations": turns}),
    )
    assert open_rows("llava", path).row(0).images == [pictures[0]]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((("0.png", b"x"),), "there is 0.png, and no 0.json with its row"),
        ((("0.json", chat("a", "b")), ("0.txt", b"x")), "0.txt is neither a row nor a picture"),
        (
            (
                ("0.l.png", b"x"),
                ("0.r.png", b"y"),
                ("0.json", chat("a", "b") | {"images": ["r.png"]}),
            ),
            "0.l.png is not among the pictures that the row names",
        ),
        ((("0.json", chat("<image>a", "b")),), "it shows a picture, and there is none next to it"),
        (
            (("0.json", chat([{"type": "image"}, {"type": "text", "text": "a"}], "b")),),
            "it shows a picture, and there is none next to it",
        ),
    ],
)
def test_a_row_without_its_partner_is_a_finding_of_that_row(
    tmp_path: Path, members: Any, words: str
) -> None:
    path = write(tmp_path / "rows.tar", *members, ("1.json", chat("a", "b")))
    reported = finding(path, 0)
    assert reported.rule == "unpaired-member"
    assert words in reported.message
    assert open_rows("messages", path).row(1).messages[1]["content"] == "b"


def test_a_picture_that_the_text_does_not_show_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tar", ("0.png", b"x"), ("0.json", chat("a", "b")))
    assert finding(path, 0).rule == "placeholder-mismatch"


def test_members_that_are_out_of_place_are_all_named_at_once(tmp_path: Path) -> None:
    row = chat("a", "b")
    path = write(
        tmp_path / "rows.tar",
        *(("0.json", row), ("1.json", row), ("0.png", b"x"), ("2.json", row), ("2.json", row)),
        ("README", b"x"),
    )
    with pytest.raises(Findings) as caught:
        open_rows("messages", path)
    messages = [each.message.removeprefix(f"{path}: ") for each in caught.value.diagnostics]
    assert messages == [
        "0.png comes after members of other keys than 0",
        "2.json is there twice",
        "README has no key and extension, as 0001.json has",
    ]


def test_half_a_tar_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tar", ("0.json", chat("a" * 3000, "b")), ("1.json", b"{}"))
    whole = path.read_bytes()
    ends = {512: "cut off within 0.json", 2000: "cut off within 0.json", 4600: "cut off"}
    with path.open("rb") as file:
        first, second = find_members(file, path)
    ends |= {second.start - 512: "without the mark", second.start + 512: "without the mark"}
    for end, words in ends.items():
        path.write_bytes(whole[:end])
        reported = finding(path)
        assert reported.rule == "broken-row"
        assert words in reported.message, end
    assert first.size > 3000


def test_a_damaged_header_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tar", ("0.json", chat("a", "b")), ("1.json", chat("a", "b")))
    whole = bytearray(path.read_bytes())
    whole[1024 + 20] ^= 1
    path.write_bytes(whole)
    assert "is damaged at byte 1,024" in finding(path).message
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert "a symbolic link, 0.json" in finding(path).message


def test_a_packed_tar_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rows.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("0.json"))
    reported = finding(tmp_path / "rows.tar.gz")
    assert "packed with gzip" in reported.message


def test_a_picture_that_a_row_names_outside_of_the_tar_is_looked_for_there(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    rows = [{"images": ["a.png"]}, {"image": "a.png"}]
    members = [(f"{n}.json", chat("<image>a", "b") | row) for n, row in enumerate(rows)]
    found = open_rows("messages", write(tmp_path / "rows.tar", *members))
    for index in range(len(rows)):
        assert found.row(index).images == [str(tmp_path / "a.png")]


def test_a_row_costs_little_more_than_the_names_of_its_members(tmp_path: Path) -> None:
    members = [(f"{n:08}.{ext}", b"{}") for n in range(500) for ext in ("json", "jpg")]
    rows = TarRows(str(write(tmp_path / "rows.tar", *members, format=tarfile.USTAR_FORMAT)))
    assert [rows.name(n) for n in (0, 499)] == ["rows.tar:00000000", "rows.tar:00000499"]
    assert len(pickle.dumps(rows)) < 500 * (2 * (12 + 24) + 8) + 2_000


def test_a_row_may_name_its_picture_without_a_list(tmp_path: Path, pictures: list[bytes]) -> None:
    row = chat("<image>?", "b") | {"image": "1.png"}
    path = write(tmp_path / "rows.tar", ("1.json", row), ("1.png", pictures[0]))
    assert open_rows("messages", path).row(0).images == [pictures[0]]


@pytest.mark.parametrize(
    "row", [{"turns": []}, {"messages": 3}, chat("<image>", "b") | {"images": 3}]
)
def test_a_row_of_another_layout_beside_its_picture_is_a_finding(
    tmp_path: Path, pictures: list[bytes], row: dict[str, Any]
) -> None:
    path = write(tmp_path / "rows.tar", ("1.json", row), ("1.png", pictures[0]))
    assert finding(path).rule == "malformed-messages"
