"""Images that rows name by an address: fetched once from the hosts that are allowed, then kept.

An image is kept by the digest of its bytes, and an address by the digest that it had when it was
fetched. So what a run has seen is what its next start sees, whatever the web says by then.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from vtool.user_cache import user_cache
from vtool.version import __version__

SCHEMES = ("http://", "https://")
_MOST_BYTES = 2**28
"""Bytes of an image that is fetched."""
ATTEMPTS, PAUSE, TIMEOUT = 3, 1.0, 30.0
"""The attempts for an address, the seconds between them, and those that a server may be silent."""
_CHUNK = 2**16


class NotFetched(ValueError):
    """An image is not fetched, and why, as words that follow its address."""


@dataclass(frozen=True, slots=True)
class UrlCache:
    """The images of some hosts, in a folder."""

    hosts: tuple[str, ...]
    """Names, as an address has them: `example.org`, or `localhost:8000` for a port of its own."""
    folder: Path

    @classmethod
    def of(cls, hosts: Sequence[str]) -> "UrlCache | None":
        """Return the images of these hosts in the user's cache folder; None for no host."""
        return cls(tuple(hosts), image_cache_folder()) if hosts else None

    def path(self, address: str) -> Path:
        """Return the file of an image, which is fetched where it is not there.

        Raises:
            NotFetched: its host is not allowed, or does not give it.
        """
        self.check(address)
        note = self.folder / "addresses" / hashlib.sha256(address.encode()).hexdigest()
        try:
            digest = note.read_text(encoding="ascii").strip()
            with self._image(digest).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                    return self._image(digest)
        except (OSError, ValueError):  # never fetched, or removed since
            pass
        content = self._fetch(address)
        digest = hashlib.sha256(content).hexdigest()
        try:
            _write(self._image(digest), content)
            _write(note, digest.encode())
        except OSError as error:
            raise NotFetched(f"cannot be kept in {self.folder}: {error.strerror}") from error
        return self._image(digest)

    def check(self, address: str) -> None:
        """Check that an address is one of the hosts'.

        Raises:
            NotFetched: it is not.
        """
        try:
            parts = urlsplit(address)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise NotFetched(f"is no address: {error}") from error
        named = f"{host}:{port}" if port else host
        if not address.startswith(SCHEMES) or named not in map(str.lower, self.hosts):
            allowed = ", ".join(self.hosts)
            raise NotFetched(f"is not fetched: data.allow_urls has {allowed}, and not {named}")

    def _image(self, digest: str) -> Path:
        return self.folder / "images" / digest[:2] / digest

    def _fetch(self, address: str) -> bytes:
        """Return the bytes of an address, asked for again where its host may be busy."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE)
            try:
                return self._ask(address)
            except HTTPError as error:
                problem = f"is not given by its host: {error.code} {error.reason}"
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, HTTPException) as error:
                problem = f"cannot be fetched: {error}"
        raise NotFetched(problem)

    def _ask(self, address: str) -> bytes:
        opener = build_opener(_Redirects(self))
        request = Request(address, headers={"User-Agent": f"vtool/{__version__}"})
        with opener.open(request, timeout=TIMEOUT) as answer:
            content = bytearray()
            while part := answer.read(_CHUNK):
                content += part
                if len(content) > _MOST_BYTES:
                    raise NotFetched(f"has more than {_MOST_BYTES:,} bytes")
            asked = answer.headers.get("Content-Length")
        if asked is not None and asked.isdigit() and int(asked) != len(content):
            raise HTTPException(f"{len(content):,} of {asked} bytes came")
        return bytes(content)


class _Redirects(HTTPRedirectHandler):
    """Follows a redirection to a host that is allowed, and to no other one."""

    def __init__(self, cache: UrlCache) -> None:
        self.cache = cache

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        try:
            self.cache.check(newurl)
        except NotFetched as error:
            raise NotFetched(f"leads to {newurl}, which {error}") from error
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def image_cache_folder() -> Path:
    """Return where images are kept: below the user's cache folder. Deleting it is always safe."""
    return user_cache("urls")


def _write(path: Path, content: bytes) -> None:
    """Write a file under another name first: other processes fetch at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
