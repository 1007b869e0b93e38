"""Every format of rows is registered wherever it must be; rows of several files are named."""

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args

import pytest

from tests.rows import chat, write_rows
from vtool.config import schema
from vtool.config.schema import MessagesSource
from vtool.config.schema.formats import ENTRY_SETTINGS, FORMATS, PLACES
from vtool.config.schema.formats.entry import MIXTURE_SETTINGS, RowsEntry
from vtool.data import formats
from vtool.data.chats import ChatReader
from vtool.data.formats import LAYOUTS, READERS
from vtool.data.json_lines import JsonLines
from vtool.data.row import RowReader
from vtool.data.sources import Rows
from vtool.diagnostics import Findings


def format_of(entry: Any) -> str:
    (name,) = get_args(entry.model_fields["format"].annotation)
    return str(name)


def test_a_format_has_its_settings_its_reader_and_a_file_for_each() -> None:
    files = {module.name for module in iter_modules(formats.__path__)}
    assert {format_of(entry) for entry in FORMATS} == READERS.keys() == files
    for entry in FORMATS:
        assert entry.__module__ == f"vtool.config.schema.formats.{format_of(entry)}"
        assert import_module(f"vtool.data.formats.{format_of(entry)}").__doc__


def classes_of(package: Any) -> set[type]:
    """The classes that a package's files define, and do not import."""
    names = [f"{package.__name__}.{each.name}" for each in iter_modules(package.__path__)]
    return {
        each
        for name in names
        for each in vars(import_module(name)).values()
        if isinstance(each, type) and each.__module__ == name
    }


def test_every_class_of_settings_and_every_reader_that_a_file_has_is_listed() -> None:
    settings = {each for each in classes_of(schema.formats) if issubclass(each, RowsEntry)}
    assert settings - {RowsEntry} == set(FORMATS)
    readers = {each for each in classes_of(formats) if hasattr(each, "describe")}
    assert readers == {opened.__self__ for opened in READERS.values()}  # type: ignore[attr-defined]
    assert {each for each in readers if issubclass(each, ChatReader)} == set(LAYOUTS)


def opened(entry: Any, folder: Path) -> tuple[Any, RowReader]:
    """An entry with a value for each of its own settings, and its reader, of rows in a folder."""
    folder.mkdir()
    rows = write_rows(folder / "rows.jsonl", [chat("a", "b")])
    info = folder / "dataset_info.json"
    info.write_text(json.dumps({"mine": {"file_name": rows.name}}))
    choices: dict[str, Any] = {"format": format_of(entry), "split": "test", "path": str(rows)}
    choices |= {
        "image_folder": str(folder),
        "ignore": ["notes", "score"],
        "texts": "rows",
        "shifted": True,
    }
    choices |= {"dataset": "mine"} | (
        {"path": str(info)} if "dataset" in entry.model_fields else {}
    )
    own = entry.model_fields.keys() - set(MIXTURE_SETTINGS)
    assert own <= choices.keys(), "give each setting of a format a value in `choices`"
    made = entry.model_validate({name: choices[name] for name in own}, strict=False)
    return made, READERS[made.format](made, None)


@pytest.mark.parametrize("entry", FORMATS, ids=format_of)
def test_what_is_another_once_its_files_are_moved_is_marked_as_a_place(
    entry: Any, tmp_path: Path
) -> None:
    """A run resumes with rows that lie elsewhere."""
    before, now = (opened(entry, tmp_path / name)[1].describe() for name in ("before", "now"))
    assert {name for name in before if before[name] != now[name]} <= PLACES
    assert before.keys() == now.keys()


@pytest.mark.parametrize("entry", FORMATS, ids=format_of)
def test_a_reader_says_every_setting_that_it_was_opened_with(entry: Any, tmp_path: Path) -> None:
    made, reader = opened(entry, tmp_path / "rows")
    own, described = entry.model_fields.keys() - set(MIXTURE_SETTINGS), reader.describe()
    found = {name: described[name] for name in described if name in ENTRY_SETTINGS}
    assert found == json.loads(made.model_dump_json(include=own))
    assert json.loads(json.dumps(described)) == described, "a resumed run compares what JSON keeps"
    assert set(made.files().values()) == {
        value
        for value in made.model_dump().values()
        if isinstance(value, str) and Path(value).is_file()
    }


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.format)
def test_a_layout_says_its_keys_and_its_name(layout: type[ChatReader], tmp_path: Path) -> None:
    (entry,) = (each for each in FORMATS if format_of(each) == layout.format)
    _, reader = opened(entry, tmp_path / "rows")
    assert isinstance(reader, ChatReader)
    assert reader.reads, "vtool convert counts the keys that are not read"
    assert reader.words, "vtool verify calls rows of this layout by it"


def names(*paths: Path) -> list[str]:
    rows = Rows([MessagesSource(format="messages", path=str(path)) for path in paths])
    return [rows.name(index) for index in range(len(rows))]


def test_a_row_goes_by_its_files_name_and_by_its_path_where_two_files_have_the_same(
    tmp_path: Path,
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one, two, other = (
        write_rows(tmp_path / name, [chat("a", "b")])
        for name in ("one/rows.jsonl", "two/rows.jsonl", "other.jsonl")
    )
    assert names(one, other) == ["rows.jsonl:1", "other.jsonl:1"]
    assert names(one, two, other) == [f"{one}:1", f"{two}:1", "other.jsonl:1"]
    assert names(one, one) == ["rows.jsonl:1", "rows.jsonl:1"]


def test_a_line_is_found_without_being_in_memory_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.dumps(chat("a" * size, "b")) for size in (1, 300, 17, 80)]
    rows[2:2] = ["", " " * 500]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows))
    places = JsonLines(str(file)).places
    for size in (16, 64, 100, len(rows[0]), len(rows[0]) + 1):
        monkeypatch.setattr("vtool.data.containers.places._CHUNK", size)
        assert JsonLines(str(file)).places == places, size
    assert [place.line for place in places] == [1, 2, 5, 6]
    monkeypatch.setattr("vtool.data.json_lines.LARGEST_ROW", 200)
    read = JsonLines(str(file))
    assert read.record(0) == chat("a", "b")
    with pytest.raises(Findings, match=r"broken-row.*rows\.jsonl:2 has .* bytes"):
        read.record(1)


@pytest.mark.parametrize(
    "row",
    [
        '{"messages": [], "messages": [{"role": "user", "content": "a"}]}',
        '{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
    ],
)
def test_a_key_that_stands_twice_is_refused_and_not_read_as_its_last_value(
    tmp_path: Path, row: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(chat('a', 'b'))}\n{row}\n")
    rows = JsonLines(str(file))
    assert rows.record(0) == chat("a", "b")
    with pytest.raises(Findings, match=r"broken-row.*rows\.jsonl:2.*more than once"):
        rows.record(1)
