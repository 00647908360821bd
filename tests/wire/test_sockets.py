"""Whether a socket has a client, without connecting to it."""

from __future__ import annotations

import socket
from pathlib import Path

from kinst.wire.sockets import has_client


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "stub")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        assert not has_client(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            taken, _ = server.accept()
            with taken:
                assert has_client(path)
                assert has_client(f"unix:{path}")
        assert not has_client(path)


def test_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not has_client(f"127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", port)):
            taken, _ = server.accept()
            with taken:
                assert has_client(f":{port}")
    assert not has_client("nonsense")
