"""Images by address: fetched once, from the hosts that are named, and then kept."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.rows import chat, picture, write_rows
from vtool.config.load import load_run
from vtool.config.schema import MessagesSource
from vtool.data import urls
from vtool.data.detect import detected
from vtool.data.sources import Rows
from vtool.diagnostics import Findings
from vtool.verification.rows import audit_rows


@dataclass
class Web:
    """A server on this machine, what it answers, and what it was asked for."""

    host: str
    answers: dict[str, list[tuple[int, dict[str, str], bytes]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def address(self, path: str) -> str:
        return f"http://{self.host}{path}"

    def gives(self, path: str, *answers: tuple[int, dict[str, str], bytes]) -> str:
        self.answers[path] = list(answers)
        return self.address(path)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(urls, "PAUSE", 0.0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            left = found.answers[self.path]
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Web(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def opened(folder: Path, address: str, *hosts: str) -> Rows:
    part = {"type": "image_url", "image_url": {"url": address}}
    path = write_rows(folder / "rows.jsonl", [chat([part, {"type": "text", "text": "?"}], "b")])
    return Rows([MessagesSource(format="messages", path=str(path))], allow_urls=hosts)


def refusal(rows: Rows) -> str:
    with pytest.raises(Findings) as caught:
        rows.row(0)
    (found,) = caught.value.diagnostics
    assert found.rule == "missing-image"
    return found.message


def test_an_image_is_fetched_once_and_then_kept(tmp_path: Path, web: Web) -> None:
    image = picture(tmp_path / "a.png").read_bytes()
    address = web.gives("/a.png", (200, {}, image), (200, {}, b"another one by now"))
    for _ in range(2):
        rows = opened(tmp_path, address, web.host)
        for _ in range(2):
            (kept,) = rows.row(0).images
            assert Path(kept).read_bytes() == image
    assert web.asked == ["/a.png"]


def test_an_audit_reads_it_where_the_setting_names_its_host(tmp_path: Path, web: Web) -> None:
    address = web.gives("/a.png", (200, {}, picture(tmp_path / "a.png").read_bytes()))
    path = write_rows(tmp_path / "rows.jsonl", [chat("<image>?", "b") | {"images": [address]}])
    for hosts, kept, asked in (("", 0, 0), (f"'{web.host}'", 1, 1)):
        run = detected(load_run(str(path), [f"data.allow_urls=[{hosts}]"]).run)
        (audit,) = audit_rows(run)
        assert (len(audit.ledger.kept), len(web.asked)) == (kept, asked)


@pytest.mark.parametrize("hosts", [(), ("example.org",), ("127.0.0.1",), ("localhost",)])
def test_no_other_host_is_asked(tmp_path: Path, web: Web, hosts: tuple[str, ...]) -> None:
    address = web.gives("/a.png", (200, {}, b"x"))
    message = refusal(opened(tmp_path, address, *hosts))
    assert "is not fetched" in message or "which is not fetched" in message
    assert web.asked == []


def test_a_redirection_leads_to_no_other_host(tmp_path: Path, web: Web) -> None:
    image = picture(tmp_path / "a.png").read_bytes()
    web.gives("/a.png", (200, {}, image))
    within = web.gives("/near", (302, {"Location": "/a.png"}, b""))
    (kept,) = opened(tmp_path, within, web.host).row(0).images
    assert Path(kept).read_bytes() == image
    other = web.gives("/far", (302, {"Location": "http://example.org/a.png"}, b""))
    message = refusal(opened(tmp_path, other, web.host))
    assert "leads to http://example.org/a.png" in message
    assert "not example.org" in message


def test_a_busy_host_is_asked_again_and_an_absent_image_is_not(tmp_path: Path, web: Web) -> None:
    image = picture(tmp_path / "a.png").read_bytes()
    busy = web.gives("/busy", (503, {}, b""), (503, {}, b""), (200, {}, image))
    assert opened(tmp_path, busy, web.host).row(0).images
    assert len(web.asked) == 3
    gone = web.gives("/gone", (404, {}, b""))
    assert "is not given by its host: 404 Not Found" in refusal(opened(tmp_path, gone, web.host))
    assert web.asked.count("/gone") == 1


def test_half_an_image_is_not_kept(tmp_path: Path, web: Web) -> None:
    address = web.gives("/half", (200, {"Content-Length": "500", "Connection": "close"}, b"x" * 9))
    message = refusal(opened(tmp_path, address, web.host))
    assert "cannot be fetched" in message
    assert [each for each in (tmp_path / "cache").rglob("*") if each.is_file()] == []


def test_more_bytes_than_may_be_are_refused(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_MOST_BYTES", 1000)
    address = web.gives("/large", (200, {}, bytes(1001)))
    assert "has more than 1,000 bytes" in refusal(opened(tmp_path, address, web.host))


def test_what_was_kept_and_has_changed_since_is_fetched_again(tmp_path: Path, web: Web) -> None:
    image = picture(tmp_path / "a.png").read_bytes()
    rows = opened(tmp_path, web.gives("/a.png", (200, {}, image)), web.host)
    (kept,) = rows.row(0).images
    for damage in (lambda: Path(kept).write_bytes(image[:20]), lambda: Path(kept).unlink()):
        damage()
        assert rows.row(0).images == [kept]
        assert Path(kept).read_bytes() == image
    assert len(web.asked) == 3
