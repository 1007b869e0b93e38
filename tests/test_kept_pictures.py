"""Pictures that a folder keeps are whole."""

import os
from pathlib import Path

import PIL.Image
import pytest

from vtool.kept_pictures import keep_picture

SIZE = (64, 48)


def picture() -> PIL.Image.Image:
    return PIL.Image.effect_noise(SIZE, 90).convert("RGB")


def unasked() -> PIL.Image.Image:
    raise AssertionError("a whole picture is not made again")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "pipe", None])
def test_one_that_is_damaged_is_written_again_and_a_whole_one_is_not(
    tmp_path: Path, damage: str | None
) -> None:
    path = tmp_path / "images/00001.png"
    assert keep_picture(path, 32, picture)
    content = bytearray(path.read_bytes())
    if damage is None:
        assert keep_picture(path, 32, unasked)
        return
    content[len(content) // 2] ^= 255
    if damage == "pipe":  # that nobody writes into
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_bytes({"cut": content[:200], "flipped": content, "empty": b""}[damage])
    assert keep_picture(path, 32, picture)
    with PIL.Image.open(path) as kept:
        kept.load()
        assert kept.size == (32, 24)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".writing-a.png").mkdir()
    with pytest.raises(OSError, match="directory"):
        keep_picture(tmp_path / "a.png", 32, picture)
    assert not (tmp_path / "a.png").exists()


def test_a_row_without_a_picture_has_none(tmp_path: Path) -> None:
    assert not keep_picture(tmp_path / "a.png", 32, lambda: None)
    assert list(tmp_path.iterdir()) == []
