"""Values that are not finite, in every type, wherever they are; and digests."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file

from tests.loading.checkpoint.folders import Entry, encode, f32, of
from vtool.loading.checkpoint.blocks import BLOCK_BYTES, blocks
from vtool.loading.checkpoint.finite import Scan, scan
from vtool.loading.checkpoint.headers import Header, read_header

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def header_of(file: Path) -> Header:
    header, findings = read_header(file)
    assert header is not None
    assert not findings
    return header


def scanned(
    tmp_path: Path,
    tensors: dict[str, Entry],
    padding: int = 0,
    threads: int = 2,
    digest: bool = False,
) -> Scan:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encode(tensors, padding))
    return scan([header_of(file)], threads=threads, digest=digest)


@pytest.mark.parametrize("name", TYPES)
def test_every_pattern_of_bits_is_judged_as_torch_judges_it(tmp_path: Path, name: str) -> None:
    """All 256 or 65536 patterns of the small types; random ones, and the borders, of the large."""
    dtype, size = TYPES[name], TYPES[name].itemsize
    if size <= 2:
        patterns = np.arange(2 ** (8 * size), dtype=f"u{size}")
    else:
        infinity = {4: 0x7F80_0000, 8: 0x7FF0_0000_0000_0000}[size]
        sign = 1 << (8 * size - 1)
        borders = [base + step for base in (infinity, infinity | sign) for step in (-1, 0, 1)]
        noise = (
            np.random.default_rng(0).integers(0, 2**63, 10_000, dtype=np.uint64).astype(f"u{size}")
        )
        patterns = np.concatenate(
            [np.array([*borders, sign - 1, 2 * sign - 1, 0, sign], f"u{size}"), noise]
        )
    values = torch.from_numpy(patterns.view(f"i{size}").copy()).view(dtype)
    exact = values.to(torch.float64)
    save_file(
        {f"t{place:06}": values[place : place + 97] for place in range(0, len(values), 97)},
        tmp_path / "model.safetensors",
    )
    found = {
        item.tensor.name: item
        for item in scan(
            [header_of(tmp_path / "model.safetensors")], threads=2, digest=False
        ).nonfinite
    }
    for place in range(0, len(values), 97):
        part, item = exact[place : place + 97], found.pop(f"t{place:06}", None)
        bad = ~part.isfinite()
        assert (item.nans if item else 0) == part.isnan().sum()
        assert (item.infinities if item else 0) == part.isinf().sum()
        if item:
            assert item.first == int(bad.nonzero()[0])
    assert not found


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_value_is_found_wherever_it_lies(tmp_path: Path, padding: int, threads: int) -> None:
    """At both ends of tensors, next to the border of a block, in neighbours of another type, at odd
    places of the file.
    """
    length = 3 * BLOCK_BYTES // 4 + 11
    places = [
        0,
        1,
        BLOCK_BYTES // 4 - 1,
        BLOCK_BYTES // 4,
        BLOCK_BYTES // 4 + 1,
        length - 2,
        length - 1,
    ]
    for place in places:
        large = np.zeros(length, np.float32)
        large[place] = np.nan
        half = np.ones(5, np.float16)
        half[4] = -np.inf
        tensors = {
            "byte": of("U8", np.full(3, 255, np.uint8)),
            "half": of("F16", half),
            "large": of("F32", large),
            "after": f32(3),
        }
        found = scanned(tmp_path, tensors, padding, threads).nonfinite
        assert [(item.tensor.name, item.nans, item.infinities, item.first) for item in found] == [
            ("half", 0, 1, 4),
            ("large", 1, 0, place),
        ]


def test_complex_numbers_count_their_elements(tmp_path: Path) -> None:
    values = np.array([1 + 2j, complex(0, np.nan), 3], np.complex64)
    (item,) = scanned(tmp_path, {"c": of("C64", values)}).nonfinite
    assert (item.nans, item.first) == (1, 1)


def test_integers_and_packed_types_are_not_taken_for_floats(tmp_path: Path) -> None:
    ones = {
        name: of(name, np.full(16, -1, f"i{size}"))
        for name, size in {"I8": 1, "I16": 2, "I32": 4, "I64": 8}.items()
    }
    packed = {
        name: (name, (16,), b"\xff" * length)
        for name, length in {"F4": 8, "F6_E2M3": 12, "F6_E3M2": 12}.items()
    }
    assert not scanned(
        tmp_path, ones | packed | {"flag": of("BOOL", np.ones(9, np.uint8))}
    ).nonfinite


def test_blocks_cover_a_file_once_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    tensors = {
        f"t{number}": of(dtype, np.zeros(int(rng.integers(0, 400_000)), size))
        for number, (dtype, size) in enumerate(
            [("F32", "u4"), ("U8", "u1"), ("F16", "u2"), ("F64", "u8"), ("I8", "u1"), ("F32", "u4")]
            * 3
        )
    }
    file.write_bytes(encode(tensors))
    position, tested = 0, 0
    for block in blocks(header_of(file)):
        assert block.offset == position
        assert 0 < block.length <= BLOCK_BYTES
        position += block.length
        assert all(
            0 <= piece.start < piece.end <= block.length and piece.start % piece.type.itemsize == 0
            for piece in block.pieces
        )
        tested += sum(piece.end - piece.start for piece in block.pieces)
    assert position == file.stat().st_size
    assert tested == sum(len(data) for dtype, _, data in tensors.values() if dtype.startswith("F"))


@pytest.mark.timeout(20)
def test_what_is_behind_the_last_tensor_is_not_read(tmp_path: Path) -> None:
    """A file may say that it has 8 TiB there, of which the disk has no block."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(encode({"a": of("F32", np.array([1, np.nan], np.float32))}))
    with file.open("r+b") as longer:
        longer.truncate(2**43)
    header, findings = read_header(file)
    assert header
    assert [one.rule for one in findings] == ["bad-header"]
    found = scan([header], threads=2, digest=False)
    assert [(one.tensor.name, one.nans) for one in found.nonfinite] == [("a", 1)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_digest_is_that_of_the_whole_file(tmp_path: Path, threads: int) -> None:
    found = scanned(
        tmp_path,
        {"a": f32(700_000), "b": of("U8", np.arange(200, dtype=np.uint8)), "c": f32(9)},
        3,
        threads,
        digest=True,
    )
    file = tmp_path / "model.safetensors"
    assert found.digests == {file: xxhash.xxh3_128_hexdigest(file.read_bytes())}


@pytest.mark.parametrize("digest", [False, True])
def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path, digest: bool) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encode({"a": f32(700_000)}))
    header = header_of(file)
    file.write_bytes(file.read_bytes()[: 2 * BLOCK_BYTES])
    found = scan([header], threads=2, digest=digest)
    assert "has become shorter" in found.unreadable[file]
    assert not found.digests
