"""The content of files whose names say something else."""

import gzip
import io
import os
import socket
from pathlib import Path

import pytest
from PIL import Image

from vtool.contents import content_of, ends_early, read_small_json, small_file, stand_in
from vtool.model_folder import PROCESSOR_FILES, ModelFolder

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd\n"
    b"size 99213\n"
)
NOT_FOUND = b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>None</Message></Error>'


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty, of 0 bytes"),
        (bytes(9000), "has 9,000 bytes, and the first 9,000 are zero"),
        (POINTER, "is a Git LFS pointer, for a file of 99,213 bytes that `git lfs pull` fetches"),
        (POINTER.replace(b"\n", b"\r\n"), "is a Git LFS pointer, for a file of 99,213 bytes"),
        (b"/annex/objects/SHA256E-s9--ab.png\n", "is a git-annex pointer"),
        (b"<!DOCTYPE html>\n<html><body>403 Forbidden</body></html>", "HTML page: 403 Forbidden"),
        (b"\n<html><head><title>Sign in</title></head><p>a</html>", "is an HTML page: Sign in"),
        (b"\xef\xbb\xbf<HTML><H1>Busy</H1></HTML>", "is an HTML page: Busy"),
        (NOT_FOUND, "a server's answer about an error: NoSuchKey None"),
        (b'{"error":"Repository not found"}\n', "about an error: Repository not found"),
        (b'{"detail": "Not authenticated"}', "about an error: Not authenticated"),
        (b'{"error": {"code": 429, "message": "slow down"}}', "about an error: slow down"),
        (b'{"message": "Not Found", "documentation_url": "x", "status": "404"}', "Not Found"),
    ],
)
def test_what_is_in_the_place_of_a_file_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    for given in (tmp_path / "a.jpg", content):
        found = stand_in(given)
        assert found is not None
        assert what in found.what


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages": [{"role": "user", "content": "Hi"}]}\n',
        b'{"message": "Hello", "title": "a row of somebody\'s"}\n',
        b'{"error": "a", "answer": "b"}\n',
        b'{"error": "a"}\n{"error": "b"}\n',
        b'{"text": "<html>404</html>"}\n',
        b'{"model_type": "qwen2_vl"}',
        b"{}",
        b"#version: 0.2\n",
        b'{"qq": "WEBP pictures are small"}',
        b'{"qq":"AVI is a format"}',
        b'[{"\x66typ": 1}]',
        b"{{ messages }}",
        b"\0\0\0\0\1",
    ],
)
def test_what_is_itself_is_in_no_others_place(content: bytes) -> None:
    assert stand_in(content) is None


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (gzip.compress(b"a", mtime=0), "packed", "is packed with gzip"),
        (b"%PDF-1.7", "other", "is a PDF"),
        (b"\0\0\0\x18ftypheic", "picture", "is a HEIC or AVIF picture"),
        (b"\0\0\0\x18ftypisom", "video", "is a video (MP4)"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "other", "is an SVG drawing"),
        (b"Entry not found\n", "text", 'is text: "Entry not found"'),
        (b"PK\3\4\0\0\x08\x08" + bytes(22) + b"archive/data.pkl", "other", "torch.save"),
    ],
)
def test_the_format_of_a_file_is_known_whatever_its_name(
    content: bytes, kind: str, what: str
) -> None:
    found = content_of(content)
    assert found is not None
    assert (found.kind, what in found.what) == (kind, True)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_a_picture_that_was_cut_off_ends_early_and_a_whole_one_does_not(format: str) -> None:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(stream, format)
    whole = stream.getvalue()
    assert [ends_early(whole[: len(whole) * part // 3]) for part in (1, 2, 3)] == [1, 1, 0]


def test_letters_of_a_format_in_the_midst_of_text_are_text() -> None:
    for text in (b'{"qq": "WEBP', b'{"qq":"AVI ', b"....ftypisom"):
        found = content_of(text)
        assert found is not None
        assert found.kind == "text"


def test_only_files_that_are_read_of_a_model_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    (tmp_path / "consolidated.safetensors").write_bytes(POINTER)
    assert ModelFolder(tmp_path).stand_in() is None
    (tmp_path / "tokenizer.json").write_bytes(POINTER)
    (tmp_path / "merges.txt").touch()
    assert ModelFolder(tmp_path).stand_in() == (
        "has a tokenizer.json that is a Git LFS pointer, for a file of 99,213 bytes that `git lfs"
        " pull` fetches, and 1 more of its files are no better",
        "in its repository: git lfs pull",
    )


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "40 GiB"])
def test_what_never_ends_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "one"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
        case "folder":
            path.mkdir()
        case _:
            with path.open("wb") as file:
                file.truncate(40 * 2**30)
    for read in (small_file, read_small_json):
        with pytest.raises(OSError, match=r"no file|directory|at most|No such device"):
            read(path)
    assert content_of(path) is None or kind == "40 GiB"


def test_json_that_is_nested_without_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_small_json(tmp_path / "one.json")


def test_a_pipe_in_the_place_of_a_models_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(OSError, match="it is no file"):
        small_file(tmp_path / "config.json")
    assert ModelFolder(tmp_path).config == {}


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json"])
def test_a_models_file_that_never_ends_is_not_read(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(40 * 2**30)
    folder = ModelFolder(tmp_path)
    with pytest.raises(OSError, match="bytes; at most"):
        folder.content(name)
    assert folder.settings(name) is None


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "7", '{"a": ', '{"a": "\\ud800"}', "\0"])
def test_damaged_settings_are_none(text: str, tmp_path: Path) -> None:
    for name in ("config.json", *PROCESSOR_FILES, "model.safetensors.index.json"):
        (tmp_path / name).write_text(text)
    folder = ModelFolder(tmp_path)
    assert dict(folder.config).keys() <= {"a"}
    assert folder.image_processor in (None, {"a": "\ud800"})
    assert folder.model_type is None
    assert folder.named_shards == ()
    assert not folder.templates


@pytest.mark.parametrize("name", ["tokenizer.json", "preprocessor_config.json", "result.json"])
def test_json_that_takes_thirty_times_its_bytes_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"[" + b"[]," * 5_000_000 + b"[]]")
    with pytest.raises(OSError, match="it has 5,000,002 lists and objects; at most 4,194,304"):
        read_small_json(tmp_path / name)
    with pytest.raises(OSError, match="lists and objects"):
        ModelFolder(tmp_path).content(name)
    refused = ModelFolder(tmp_path).refused
    assert (refused is None) == (name == "result.json")


def test_a_pipe_among_a_models_files_is_named_before_a_library_opens_it(tmp_path: Path) -> None:
    assert ModelFolder(tmp_path).refused is None
    os.mkfifo(tmp_path / "tokenizer_config.json")
    refused = ModelFolder(tmp_path).refused
    assert refused == "tokenizer_config.json cannot be read: it is no file"
