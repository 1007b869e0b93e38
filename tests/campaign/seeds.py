"""The whole files that are damaged: containers of rows, and pictures."""

import io
import json
import tarfile
from typing import Any

import numpy as np
import pyarrow as arrow
from PIL import Image as Pictures
from pyarrow import parquet

from tests.rows import chat

ANSWER = "It is the answer of row 3, and nothing else."
SPANS: dict[bytes, tuple[int, int]] = {}
"""The place of the answer in whole files whose format has a checksum of it."""


def pictures_files() -> list[bytes]:
    """Return pictures of every format and kind that are read."""
    pixels = np.random.RandomState(1).randint(0, 256, (40, 60, 4), dtype=np.uint8)
    smooth = Pictures.fromarray(np.add.outer(np.arange(40), np.arange(60)).astype(np.uint8) * 2)
    colors = Pictures.fromarray(pixels[:, :, :3])
    exif = Pictures.Exif()
    exif[0x0112] = 6
    made = []
    for picture, kind, more in (
        (colors, "PNG", {}),
        (Pictures.fromarray(pixels), "PNG", {}),
        (colors.convert("P"), "PNG", {"transparency": 0}),
        (smooth.convert("I;16"), "PNG", {}),
        (smooth, "PNG", {"save_all": True, "append_images": [smooth.rotate(90)]}),
        (smooth.convert("RGB"), "JPEG", {"exif": exif}),
        (colors, "JPEG", {"progressive": True}),
        (smooth.convert("CMYK"), "JPEG", {}),
        (colors, "WEBP", {}),
        (colors, "WEBP", {"lossless": True, "save_all": True, "append_images": [colors]}),
        (colors.convert("P"), "GIF", {"save_all": True, "append_images": [smooth.convert("P")]}),
        (colors, "TIFF", {}),
        (colors, "TIFF", {"compression": "tiff_lzw"}),
        (smooth.convert("F"), "TIFF", {}),
        (colors, "BMP", {}),
    ):
        out = io.BytesIO()
        picture.save(out, kind, **more)
        made.append(out.getvalue())
    return made


def parquet_files(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return Parquet of every compression, and last a bomb."""
    made = []
    for more in (
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy"},
        {"compression": "zstd", "row_group_size": 3},
        {"compression": "gzip", "data_page_version": "2.0"},
    ):
        out = io.BytesIO()
        parquet.write_table(arrow.Table.from_pylist(rows), out, write_page_checksum=True, **more)
        made.append(out.getvalue())
    first = made[0].find(ANSWER.encode())
    SPANS[made[0]] = (first, first + len(ANSWER))
    out = io.BytesIO()
    one = [chat("What is this?", "bomb " + "x" * 2**16)] * 9
    few = arrow.Table.from_pylist(one)
    parquet.write_table(arrow.concat_tables([few] * 2222), out, row_group_size=10**6)
    return [*made, out.getvalue()]


def arrow_files(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return Arrow files and streams."""
    table = arrow.Table.from_pylist(rows)
    made = []
    for kind in (arrow.ipc.new_file, arrow.ipc.new_stream):
        for codec in (None, "zstd", "lz4"):
            out = io.BytesIO()
            options = arrow.ipc.IpcWriteOptions(compression=codec)
            with kind(out, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=4)
            made.append(out.getvalue())
    return made


def tar_files(rows: list[dict[str, Any]], picture: bytes) -> list[bytes]:
    """Return tars of every layout."""
    made = []
    for layout in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=layout) as tar:
            for number, row in enumerate(rows):
                name = ("a" * 80 + "/" + "b" * 60 if number == 2 else "row") + f"-{number}"
                content = json.dumps(row).encode()
                for suffix, data in (("json", content), ("png", picture)):
                    member = tarfile.TarInfo(f"{name}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        made.append(out.getvalue())
    return made
