"""Parquet files as they are opened: checksums are checked, and repeated values stay one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vtool.data.containers.columns import pyarrow, unpacked_bytes

SLICE_BYTES = 2**26
"""Bytes of the rows that are unpacked at once, where rows are copied."""


def open_parquet(file: Path) -> Any:
    """Open a Parquet file.

    Its pages are held against their checksums, which a writer may have left out. Texts are read as
    dictionaries: a system prompt that a million rows share is one text in the file, and would be a
    million texts in memory. Which columns have a dictionary in the file is not asked: pyarrow ends
    the process where a damaged file has another size of a column's histograms.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it cannot be opened.
    """
    parquet = pyarrow("pyarrow.parquet", file)
    metadata = parquet.read_metadata(file, memory_map=True)
    texts = [
        column.path
        for column in map(metadata.schema.column, range(metadata.num_columns))
        if column.physical_type == "BYTE_ARRAY"
    ]
    return parquet.ParquetFile(
        file,
        metadata=metadata,
        memory_map=True,
        read_dictionary=texts,
        page_checksum_verification=True,
    )


def plain_schema(opened: Any) -> Any:
    """Return the columns of an open file as Arrow's types, without dictionaries."""
    return opened.metadata.schema.to_arrow_schema()


def plain_slices(batch: Any, schema: Any, arrow: Any) -> Iterator[Any]:
    """Yield the rows of a batch without dictionaries, unpacked a few at a time.

    Args:
        batch: a `pyarrow.RecordBatch` of an open file.
        schema: what `plain_schema` returns.
    """
    nbytes = sum(map(unpacked_bytes, batch.columns))
    rows = max(1, batch.num_rows * SLICE_BYTES // max(SLICE_BYTES, nbytes))
    for first in range(0, batch.num_rows, rows):
        yield arrow.Table.from_batches([batch.slice(first, rows)]).cast(schema)
