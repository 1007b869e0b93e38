"""A stand-in for the hub: it has the part of its API that vtool uses, and is not the hub.

None can be reached from where tests run, so that what is shown is that vtool and huggingface_hub
agree with this server, whose answers are written after the library's own requests.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


@dataclass
class Hub:
    """The models that it has, by name, and what was asked of it."""

    url: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    fails_after: int | None = None
    """Files that it gives before it refuses all others."""
    given: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    pushed: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def commit(self, name: str) -> str:
        """A commit of the model's files."""
        files = sorted(file.name for file in self.models[name].iterdir())
        return hashlib.sha1(repr((name, files)).encode()).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on this machine."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._get(body=True)

        def do_HEAD(self) -> None:
            self._get(body=False)

        def do_POST(self) -> None:
            path = unquote(urlparse(self.path).path)
            hub.asked.append(f"POST {path}")
            hub.tokens.add(self.headers.get("Authorization", ""))
            content = self._content()
            if "Bearer may-write" not in self.headers.get("Authorization", ""):
                self._error(401, "", "Invalid username or password.")
            elif path == "/api/repos/create":
                hub.created.append(json.loads(content))
                self._json({"url": f"{hub.url}/me/digits", "id": "me/digits"})
            elif "/preupload/" in path:
                files = json.loads(content)["files"]
                answers = [
                    {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for one in files
                ]
                self._json({"files": answers})
            elif "/commit/" in path:
                for line in content.splitlines():
                    one = json.loads(line)
                    if one["key"] == "file":
                        value = one["value"]
                        hub.pushed[value["path"]] = base64.b64decode(value["content"])
                oid = "c" * 40
                self._json({"commitUrl": f"{hub.url}/me/digits/commit/{oid}", "commitOid": oid})
            elif path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            else:
                self._error(404, "", "Not found")

        def _content(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _get(self, *, body: bool) -> None:
            path = unquote(urlparse(self.path).path)
            hub.asked.append(f"{'GET' if body else 'HEAD'} {path}")
            words = path.strip("/").split("/")
            is_api = words[:2] == ["api", "models"]
            name = "/".join(words[2:4] if is_api else words[:2])
            if name not in hub.models:
                self._error(404, "RepoNotFound", "Repository not found")
            elif name in hub.gated and not is_api:
                self._error(403, "GatedRepo", f"Access to model {name} is restricted")
            elif is_api:
                self._api(name, words[4:])
            else:
                self._file(name, words[3], "/".join(words[4:]), body)

        def _api(self, name: str, rest: list[str]) -> None:
            commit, folder = hub.commit(name), hub.models[name]
            if rest[1:] and rest[1] not in ("main", commit):
                self._error(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
            elif rest[:1] == ["tree"]:
                entries = [
                    {
                        "type": "file",
                        "path": file.name,
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for file in sorted(folder.iterdir())
                ]
                self._json(entries)
            else:
                siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                self._json({"id": name, "sha": commit, "siblings": siblings, "private": False})

        def _file(self, name: str, revision: str, file: str, body: bool) -> None:
            path = hub.models[name] / file
            if not path.is_file():
                self._error(404, "EntryNotFound", "Entry not found")
                return
            content = path.read_bytes()
            if body:
                hub.given.append(file)
            if hub.fails_after is not None and len(hub.given) > hub.fails_after:
                self._error(403, "", "no more")
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", hub.commit(name))
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def _json(self, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _error(self, status: int, code: str, message: str) -> None:
            content = json.dumps({"error": message}).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
