"""Lines are found as reading them one by one finds them, whatever a chunk's size."""

import hashlib
import random
from io import BytesIO

import pytest

from vtool.data.containers import places
from vtool.data.containers.places import Places, RowPlace, find_lines


def one_by_one(data: bytes) -> list[RowPlace]:
    found, start = [], 0
    for number, line in enumerate(BytesIO(data), 1):
        if line.strip():
            found.append(RowPlace(number, number, start, len(line)))
        start += len(line)
    return found


PIECES = (
    b"{}",
    b"a",
    b" ",
    b"\t",
    b"\r\n",
    b"\n",
    b"\n",
    b"\n",
    b"\x0b",
    b"\xc2\xa0",
    b"long " * 9,
)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 2**24])
def test_lines_are_those_that_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(places, "_CHUNK", chunk)
    chance = random.Random(chunk)
    for count in [*range(8), *(chance.randrange(60) for _ in range(150))]:
        data = b"".join(chance.choices(PIECES, k=count))
        found, digest = find_lines(BytesIO(data))
        assert list(found) == one_by_one(data), data
        assert digest == hashlib.sha256(data).hexdigest()
        for first in (1, 2, 5):
            assert list(find_lines(BytesIO(data), first)[0]) == one_by_one(data)[:first], data


def test_places_of_an_array_go_by_their_own_number() -> None:
    made = Places.of([RowPlace(1, 4, 10, 5), RowPlace(2, 4, 17, 6)], by_line=False)
    assert made[1] == RowPlace(2, 4, 17, 6)
    assert made[-1] == made[1]
    assert made[:] == [RowPlace(1, 4, 10, 5), RowPlace(2, 4, 17, 6)]
    with pytest.raises(IndexError):
        made[2]


def test_a_line_without_an_end_is_not_read_to_the_end_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "_CHUNK", 16)
    monkeypatch.setattr(places, "LARGEST_LINE", 40)
    data = BytesIO(b"{}\n{}\n" + bytes(1000))
    with pytest.raises(ValueError, match="line 3 has more than 40 bytes"):
        find_lines(data)
    assert data.tell() < 100
    assert len(find_lines(BytesIO((b"{}" + b" " * 37 + b"\n") * 9))[0]) == 9
