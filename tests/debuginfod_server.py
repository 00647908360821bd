"""A debuginfod server on this machine, with files that a test provides."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@contextmanager
def debuginfod_server(
    files: Mapping[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Serve debug files by build-id, set DEBUGINFOD_URLS to the server, and yield its address.

    Args:
        files: contents by build-id.
        cache: folder in which the client library caches fetched files.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, *words = self.path.split("/")
            if len(words) != 3 or (words[0], words[2]) != ("buildid", "debuginfo"):
                self.send_error(404)
                return
            data = files.get(words[1])
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("DEBUGINFOD_URLS", url)
        monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(cache))
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()
