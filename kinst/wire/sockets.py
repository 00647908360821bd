"""Sockets of the host: waiting for sockets, claiming a name that only one process can have, making
connected pairs for children, and finding out whether a listening socket has a client.

Tested by tests/wire/test_sockets.py and tests/wire/test_companion.py.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

# States in /proc/net/unix and /proc/net/tcp: the kernel's include/uapi/linux/net.h and
# include/net/tcp_states.h.
_UNIX_CONNECTED = "03"
_TCP_ESTABLISHED = "01"


class HasDescriptor(Protocol):
    """A file, a socket, or another object with a descriptor."""

    def fileno(self) -> int: ...


_Source = TypeVar("_Source", bound="HasDescriptor | int")


def wait_until_ready(
    readable: Sequence[_Source], writable: Sequence[_Source] = (), seconds: float | None = None
) -> tuple[list[_Source], list[_Source]]:
    """Wait until a descriptor can be read or written, as select(2) does. Unlike select(2),
    descriptors may have numbers above 1023.

    Args:
        readable: wait until one of these can be read, has ended or has failed.
        writable: or until one of these can be written or has failed.
        seconds: the longest wait; None waits without end.

    Returns:
        The elements of `readable` that are ready, and the elements of `writable` that are ready;
        two empty lists after `seconds`.
    """
    poll = select.poll()
    events: dict[int, int] = {}
    for source, event in (
        *((source, select.POLLIN) for source in readable),
        *((source, select.POLLOUT) for source in writable),
    ):
        descriptor = _descriptor(source)
        events[descriptor] = events.get(descriptor, 0) | event
        poll.register(descriptor, events[descriptor])
    ready = dict(poll.poll(None if seconds is None else max(seconds, 0.0) * 1000))
    failed = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return (
        [s for s in readable if ready.get(_descriptor(s), 0) & (select.POLLIN | failed)],
        [s for s in writable if ready.get(_descriptor(s), 0) & (select.POLLOUT | failed)],
    )


def _descriptor(source: HasDescriptor | int) -> int:
    return source if isinstance(source, int) else source.fileno()


def claim_name(name: str) -> socket.socket | None:
    """Claim a name that only one process of the host can have at a time, by binding a socket in the
    abstract name space (unix(7)).

    Returns:
        The socket, or None if another process has the name. The name is free again after every copy
        of the socket has been closed; the end of a process closes its copies.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0{name}")
    except OSError:
        sock.close()
        return None
    return sock


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets: the first for kinst, the second for a child."""
    return socket.socketpair()


def connected_listener() -> tuple[socket.socket, socket.socket]:
    """Return (kinst's end of a connection, listening socket). The first connection that a child
    accepts from the inherited listening socket is this connection."""
    listening = socket.socket(socket.AF_UNIX)
    ours = socket.socket(socket.AF_UNIX)
    listening.bind(b"")  # the kernel chooses an abstract name
    listening.listen(1)
    ours.connect(listening.getsockname())
    return ours, listening


def has_client(address: str) -> bool:
    """Return whether a client is connected to a listening socket; False if that cannot be found
    out.

    The socket's state is read from /proc, since a connection attempt would do harm: QEMU would
    accept it once the present client is gone, and stop the machine.

    Args:
        address: HOST:PORT, :PORT or the path of a unix socket, as in rsp.connect().

    Source: proc(5), /proc/net/unix and /proc/net/tcp."""
    bare = address.removeprefix("tcp:").removeprefix("unix:")
    if "/" in bare:
        return any(_same_file(path, bare) for path in _connected_paths())
    port = bare.rpartition(":")[2]
    return port.isdecimal() and int(port) in _connected_ports()


def _connected_paths() -> Iterator[str]:
    """Yield the paths of the host's unix sockets that have accepted a connection."""
    for line in _lines("/proc/net/unix"):
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[5] == _UNIX_CONNECTED:
            yield words[7].rstrip("\n")


def _same_file(path: str, other: str) -> bool:
    try:
        return path == other or os.path.samefile(path, other)
    except OSError:
        return False


def _connected_ports() -> set[int]:
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(name):
            words = line.split()
            if words[3] == _TCP_ESTABLISHED:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def _lines(name: str) -> list[str]:
    try:
        return Path(name).read_text("utf-8", "surrogateescape").splitlines()[1:]
    except OSError:
        return []
