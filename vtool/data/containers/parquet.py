"""Rows of Parquet files: a group of rows is read whole, and kept for its neighbors.

Where a group is too large for that, the files are copied to Arrow once.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from vtool.data.containers.arrow import check_same_columns
from vtool.data.containers.arrow_copy import copy_to_arrow, map_copy, mark_of
from vtool.data.containers.columns import check_row_count, pyarrow, read_by_arrow, row_of
from vtool.data.containers.files import digest_of_files, unreadable_file
from vtool.data.containers.open_parquet import open_parquet, plain_schema
from vtool.data.row import name_by_number, refuse
from vtool.diagnostics import Findings, Origin

KEPT_BYTES = 2**28
"""Bytes of groups that a process keeps; the last one is kept whatever its size."""
LARGEST_GROUP = 2**28
"""Bytes of a group, unpacked, beyond which the files are copied."""


class ParquetRows:
    """The rows of one Parquet file, or of several with the same columns."""

    def __init__(
        self,
        files: Sequence[Path],
        path: str,
        label: str | None = None,
        first: int | None = None,
    ) -> None:
        """Read what the files say of their groups of rows.

        Args:
            path: what the recipe names, the file or its folder.
            label: the beginning of its rows' names, in place of the path's own name.
            first: not None where only rows at the beginning are looked at, and no digest is needed.

        Raises:
            Findings: `path-not-found`, `broken-row`, `layout-not-certain`, `extra-not-installed`.
        """
        self.path, self.files = Path(path), tuple(files)
        self.label = label or self.path.name
        self._open: dict[int, Any] = {}
        self._kept: OrderedDict[int, Any] = OrderedDict()
        opened = [self._file(number) for number in range(len(self.files))]
        check_same_columns([plain_schema(each) for each in opened], self.files)
        self.digest = digest_of_files(self.files) if first is None else ""
        groups = [
            (number, group, each.metadata.row_group(group).num_rows)
            for number, each in enumerate(opened)
            for group in range(each.num_row_groups)
        ]
        self.groups = tuple((number, group) for number, group, _ in groups)
        """The file of each group, and its number in that file."""
        self.ends = tuple(accumulate(rows for _, _, rows in groups))
        check_row_count(self.files, len(self))
        sizes = [
            opened[number].metadata.row_group(group).total_byte_size for number, group, _ in groups
        ]
        self.largest = max(sizes, default=0)
        """Bytes of the largest group, unpacked."""
        self.first = first
        self.copy: Path | None = None
        """The file that has the rows as Arrow."""
        self._copied: Any = None
        self._mark = (0, 0, 0)
        self._nbytes = sum(sizes)
        if self.first is None and self.largest > LARGEST_GROUP:
            self._copy()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}, "_kept": OrderedDict(), "_copied": None}

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        return name_by_number(self.label, index + 1)

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        return Origin(str(self.files[self.groups[bisect_right(self.ends, index)][0]]))

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object.

        Raises:
            Findings: `broken-row`, where its group cannot be read; `merged-by-arrow`,
                `malformed-messages`.
        """
        if (table := self._of_copy()) is None:
            place = bisect_right(self.ends, index)
            first = self.ends[place - 1] if place else 0
            table, index_in_table = self._group(place, first, index), index - first
        else:
            index_in_table = index
        return row_of(table, index_in_table, self.name(index), self.origin(index))

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row's messages, and what the file has next to them: nothing."""
        return made

    def column(self, name: str) -> Any:
        """Return a column of all rows, as Arrow has it; None where there is none."""
        opened = [self._file(number) for number in range(len(self.files))]
        if name not in opened[0].schema_arrow.names:
            return None

        def refused(why: str) -> Findings:
            return unreadable_file(self.path, f'has a column "{name}" that cannot be read: {why}')

        with read_by_arrow(self.path, refused):
            tables = [each.read(columns=[name], use_threads=False) for each in opened]
            return pyarrow("pyarrow", self.path).concat_tables(tables).column(name)

    def describe(self) -> dict[str, Any]:
        """Return the path, digest and number of the rows, and the copy that is read, if any."""
        copied = {"copied_to": str(self.copy), "largest_group": self.largest} if self.copy else {}
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self), **copied}

    def _of_copy(self) -> Any:
        """Return the rows of the copy; None where there is none."""
        if self.copy is not None and self._copied is None:
            if mark_of(self.copy) != self._mark:  # deleted or damaged since, or another machine's
                self._copy()
            if self.copy is not None:
                with read_by_arrow(self.copy, partial(unreadable_file, self.copy)):
                    self._copied = map_copy(self.copy, len(self))
            if self._copied is None:
                self.copy = None
        return self._copied

    def _copy(self) -> None:
        self.copy = copy_to_arrow(self.files, self.digest, self._nbytes)
        self._mark = mark_of(self.copy) if self.copy else (0, 0, 0)

    def _file(self, number: int) -> Any:
        if number not in self._open:
            file = self.files[number]

            def refused(why: str) -> Findings:
                what = f"cannot be read as Parquet: {why}"
                return unreadable_file(file, what, "it may be cut off: copy it again")

            with read_by_arrow(file, refused):
                self._open[number] = opened = open_parquet(file)
                says, groups = opened.metadata.num_rows, range(opened.num_row_groups)
                if (there := sum(opened.metadata.row_group(n).num_rows for n in groups)) != says:
                    raise refused(f"its groups have {there:,} rows, and it says {says:,}")
        return self._open[number]

    def _group(self, place: int, first: int, index: int) -> Any:
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place]
        number, group = self.groups[place]

        def refused(why: str) -> Findings:
            rows = f"rows {first + 1:,} to {self.ends[place]:,}"
            message = (
                f"{self.name(index)} is in row group {group} of {self.files[number]} ({rows}),"
                f" which cannot be read: {why}"
            )
            return refuse("broken-row", message, self.origin(index), help="copy it again")

        with read_by_arrow(self.files[number], refused):
            if self.first is not None and index - first < self.first:
                # the beginning alone: the whole of a group may not fit into memory
                batches = self._file(number).iter_batches(
                    self.first, row_groups=[group], use_threads=False
                )
                arrow = pyarrow("pyarrow", self.path)
                beginning = arrow.Table.from_batches([next(batches)])
                beginning.validate(full=True)
                return beginning
            table = self._file(number).read_row_group(group, use_threads=False)
            table.validate(full=True)
            if table.num_rows != (promised := self.ends[place] - first):
                raise refused(f"it has {table.num_rows:,} rows, and its file says {promised:,}")
        self._kept[place] = table
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return table
