"""Debug files by debuginfod's client library, from a server that is here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.wire import debuginfod

THERE = "0123456789abcdef0123456789abcdef01234567"
DATA = b"\x7fELF" + bytes(range(256)) * 20_000


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != f"/buildid/{THERE}/debuginfo":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{found.server_port}"
        monkeypatch.setenv("DEBUGINFOD_URLS", url)
        monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        yield url
        found.shutdown()
        thread.join()


def ignore(what: str, part: float | None) -> None:
    pass


def test_a_file_is_fetched_once_with_progress(server: str) -> None:
    parts: list[float | None] = []
    found = debuginfod.find_debuginfo(THERE, lambda what, part: parts.append(part))
    assert found is not None
    assert found.read_bytes() == DATA
    assert parts
    assert all(part is None or 0 <= part <= 1 for part in parts)
    found.write_bytes(b"kept")
    assert debuginfod.find_debuginfo(THERE, ignore) == found
    assert found.read_bytes() == b"kept"


def test_what_no_server_has_is_not_there(server: str) -> None:
    assert debuginfod.find_debuginfo("ab" * 20, ignore) is None


def test_an_interruption_ends_it(server: str) -> None:
    def interrupted(what: str, part: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        debuginfod.find_debuginfo(THERE, interrupted)


def test_a_server_that_does_not_answer_is_told(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    with pytest.raises(KinstError, match=r"http://127\.0\.0\.1:1: .+"):
        debuginfod.find_debuginfo(THERE, ignore)


def test_without_the_library_its_package_is_named(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debuginfod, "_LIBRARY", "libno-such.so.1")
    with pytest.raises(KinstError, match="libno-such") as told:
        debuginfod.find_debuginfo(THERE, ignore)
    assert "libdebuginfod1" in str(told.value.hint)
