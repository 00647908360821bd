"""Waiting for descriptors of any number, and whether a socket has a client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from kinst.wire.sockets import has_client, stream_pair, wait_until_ready


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


def test_descriptors_above_1023_are_waited_for() -> None:
    near, far = stream_pair()
    numbered = [os.dup(near.fileno())]
    while numbered[-1] < 1024:
        numbered.append(os.dup(near.fileno()))
    high = numbered[-1]
    try:
        assert wait_until_ready([high], seconds=0.0) == ([], [])
        assert wait_until_ready([high], [high], 0.0) == ([], [high])
        far.send(b"x")
        assert wait_until_ready([high, near], seconds=1.0) == ([high, near], [])
        assert near.recv(1) == b"x"
        far.close()
        assert wait_until_ready([near], seconds=None) == ([near], [])  # its end can be read
    finally:
        for descriptor in numbered:
            os.close(descriptor)
        near.close()
