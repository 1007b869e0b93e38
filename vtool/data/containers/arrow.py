"""Rows of Arrow files, mapped into memory: those of `save_to_disk`, and single ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json
from vtool.data.containers.columns import check_row_count, pyarrow, read_by_arrow, row_of
from vtool.data.containers.files import digest_of_files, not_readable, unreadable_file
from vtool.data.row import name_by_number
from vtool.diagnostics import Diagnostic, Findings, Origin

STATE, SPLITS = "state.json", "dataset_dict.json"
"""The files by which a folder of `save_to_disk` is known, of one split and of several."""
_INFO = "dataset_info.json"
"""The file in it that has the names of its columns."""


class ArrowRows:
    """The rows of one Arrow file, or of several with the same columns.

    Pages that are not in use cost no memory. A process that gets the reader maps the files itself.
    """

    def __init__(
        self,
        files: Sequence[Path],
        path: str,
        label: str | None = None,
        first: int | None = None,
    ) -> None:
        """Map the files, and check them whole.

        Args:
            path: what the recipe names, the file or its folder.
            label: the beginning of its rows' names, in place of the path's own name.
            first: not None where only rows at the beginning are looked at, and no digest is needed.

        Raises:
            Findings: `path-not-found`, `broken-row`, `extra-not-installed`.
        """
        self.path, self.files = Path(path), tuple(files)
        self.label = label or self.path.name
        self._table: Any = None
        self.rows = self.table.num_rows
        check_row_count(self.files, self.rows)
        self.digest = digest_of_files(self.files) if first is None else ""

    @property
    def table(self) -> Any:
        """The rows of all files."""
        if self._table is None:
            self._table = _join([_opened(file) for file in self.files], self.files)
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": None}

    def __len__(self) -> int:
        return int(self.rows)

    def name(self, index: int) -> str:
        return name_by_number(self.label, index + 1)

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        return Origin(str(self.path))

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object.

        Raises:
            Findings: `broken-row`, `merged-by-arrow`, `malformed-messages`.
        """
        return row_of(self.table, index, self.name(index), self.origin(index))

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row's messages, and what the file has next to them: nothing."""
        return made

    def column(self, name: str) -> Any:
        """Return a column of all rows, as Arrow has it; None where there is none."""
        return self.table.column(name) if name in self.table.column_names else None

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self)}


def saved_files(folder: Path) -> list[Path]:
    """Return the files of a folder of `save_to_disk`, in the order in which it names them.

    Raises:
        Findings: `broken-row`, where the folder is not whole, has several splits, or shows some of
            its rows or columns only.
    """
    if (folder / SPLITS).is_file():
        named = sorted(each.parent.name for each in folder.glob(f"*/{STATE}"))
        help = f"name one of them: path: {folder / named[0]}" if named else None
        what = f"has several splits ({', '.join(named)}), and a source is one"
        raise unreadable_file(folder, what, help)
    try:
        state = read_small_json(folder / STATE)
        names = [str(each["filename"]) for each in state["_data_files"]]
    except OSError as error:
        raise not_readable(folder / STATE, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_file(folder / STATE, "does not say which files have the rows") from error
    for key, what in (
        ("_indices_files", "a choice of its rows"),
        ("_indices_data_files", "a choice of its rows"),
        ("_format_columns", "a choice of its columns"),
    ):
        # after `cast_column` or `with_format`, all of them are named
        if state.get(key) and not (key == "_format_columns" and _all_columns(folder, state[key])):
            help = "save it again: dataset.with_format(None).flatten_indices().save_to_disk(…)"
            raise unreadable_file(folder, f"shows {what} only ({key} of {STATE})", help)
    if outside := [name for name in names if Path(name).name != name]:
        raise unreadable_file(folder / STATE, f"names a file outside of its folder: {outside[0]}")
    return [folder / name for name in names]


def _all_columns(folder: Path, named: Any) -> bool:
    """Return whether a folder of `save_to_disk` names all of its columns."""
    try:
        features = read_small_json(folder / _INFO)["features"]
        return set(features) <= set(named)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _opened(file: Path) -> Any:
    arrow = pyarrow("pyarrow", file)

    def refused(why: str) -> Findings:
        return unreadable_file(file, f"cannot be read as Arrow: {why}", "copy it again")

    with read_by_arrow(file, refused):
        source = arrow.memory_map(str(file))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        opened = arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)
        table = opened.read_all()
        # offsets of a damaged file would lead anywhere in memory
        table.validate(full=True)
        if not is_file and source.tell() < source.size():
            raise refused(f"{source.size() - source.tell():,} bytes are behind its end")
    return table


def _join(tables: Sequence[Any], files: Sequence[Path]) -> Any:
    check_same_columns([table.schema for table in tables], files)
    return pyarrow("pyarrow", files[0]).concat_tables(tables)


def check_same_columns(schemas: Sequence[Any], files: Sequence[Path]) -> None:
    """Check that files have the same columns.

    Raises:
        Findings: `layout-not-certain`, naming two that differ.
    """
    for schema, file in zip(schemas[1:], files[1:], strict=True):
        if not schema.equals(schemas[0], check_metadata=False):
            ours = {f"{field.name}: {field.type}" for field in schema}
            first = {f"{field.name}: {field.type}" for field in schemas[0]}
            message = (
                f"{file} has other columns than {files[0]}: {_few(ours - first)} in the place of"
                f" {_few(first - ours)}"
            )
            help = "name them as two sources, or write them with the same columns"
            raise Findings(
                Diagnostic("layout-not-certain", message, help, origin=Origin(str(file)))
            )


def _few(columns: set[str]) -> str:
    return ", ".join(sorted(columns)[:3]) or "none"
