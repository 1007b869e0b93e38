"""The file that a name was meant for."""

import unicodedata
from pathlib import Path

import pytest

from vtool.near_files import near_file, quoted_name

PERCENT = "its percent-encoding (%20 for a blank)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    for name in ("café.png", "plan a.png", "Photo.PNG", "still.gif", "0001.jpg"):
        (tmp_path / "img" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "meant", "differences"),
    [
        (unicodedata.normalize("NFD", "img/café.png"), "img/café.png", ["its Unicode form"]),
        ("img\\plan a.png", "img/plan a.png", ["/ for \\"]),
        ("img/plan%20a.png", "img/plan a.png", [PERCENT]),
        ("img/plan a.png ", "img/plan a.png", ["blanks, or other characters that are not seen"]),
        (
            "img/plan\u00a0a.png",
            "img/plan a.png",
            ["blanks, or other characters that are not seen"],
        ),
        ("img/still.jpg", "img/still.gif", ["the extension"]),
        ("img/photo.png", "img/Photo.PNG", ["upper and lower case"]),
        ("IMG\\photo.png", "img/Photo.PNG", ["/ for \\", "upper and lower case"]),
        ("img/PHOTO.jpeg", "img/Photo.PNG", ["upper and lower case", "the extension"]),
        ("/img/plan a.png", "img/plan a.png", ["the folder before it"]),
        ("/data/of/others/img/plan a.png", "img/plan a.png", ["the folder before it"]),
        ("images/plan a.png", "img/plan a.png", ["the folder before it"]),
        ("plan a.png", "img/plan a.png", ["the folder before it"]),
        ("img/stil.gif", "img/still.gif", []),
        ("img/0001.jpg?width=5&v=1.5", "img/0001.jpg", ["what follows ? or #"]),
        ("img/plan%20a.png#top", "img/plan a.png", [PERCENT, "what follows ? or #"]),
        ("file:img/0001.jpg", "img/0001.jpg", ["the address before it"]),
        ("file://localhost/img/0001.jpg", "img/0001.jpg", ["the folder before it"]),
        ("file:///img/plan%20a.png", "img/plan a.png", [PERCENT, "the folder before it"]),
    ],
)
def test_a_name_that_differs_by_form_leads_to_its_file(
    folder: Path, given: str, meant: str, differences: list[str]
) -> None:
    found = near_file(given, folder)
    assert found is not None
    # the one difference of two spellings of é is in both names
    assert [unicodedata.normalize("NFC", path) for path in found.paths] == [meant]
    assert sorted(found.differences) == sorted(differences)


@pytest.mark.parametrize(
    "given", ["img/nothing.png", "none/at/all.png", "img/0002.jpg", "", "a" * 300, "img/\0.png"]
)
def test_another_name_leads_nowhere(folder: Path, given: str) -> None:
    assert near_file(given, folder) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("img/cat.png", "img/cat.png"),
        ("a b.png ", '"a b.png "'),
        ("a%20b.png", '"a%20b.png"'),
        ("a\\b.png", '"a\\b.png"'),
        ("cafe\u0301.png", '"cafe\\u0301.png"'),
        ("a\u200b.png", '"a\\u200b.png"'),
    ],
)
def test_a_name_is_quoted_where_something_of_it_would_not_be_seen(name: str, shown: str) -> None:
    assert quoted_name(name) == shown
