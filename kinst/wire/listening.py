"""Whether somebody is connected to a socket that listens on this machine.

Source: proc(5), /proc/net/unix and /proc/net/tcp; the states are those of the kernel's
include/uapi/linux/net.h and include/net/tcp_states.h.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_UNIX_CONNECTED = "03"
_TCP_ESTABLISHED = "01"


def has_client(address: str) -> bool:
    """address: HOST:PORT, :PORT or the path of a unix socket, as rsp.connect() takes it.

    False where it cannot be told.  Asking does not connect: QEMU would take a waiting connection
    once its client is gone, and stop the machine for it."""
    place = address.removeprefix("tcp:").removeprefix("unix:")
    if "/" in place:
        return any(_same(path, place) for path in _connected_paths())
    port = place.rpartition(":")[2]
    return port.isdecimal() and int(port) in _connected_ports()


def _connected_paths() -> Iterator[str]:
    """Of the unix sockets that have accepted a connection."""
    for line in _lines("/proc/net/unix"):
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[5] == _UNIX_CONNECTED:
            yield words[7].rstrip("\n")


def _same(path: str, place: str) -> bool:
    try:
        return path == place or os.path.samefile(path, place)
    except OSError:
        return False


def _connected_ports() -> set[int]:
    found = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(name):
            words = line.split()
            if words[3] == _TCP_ESTABLISHED:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def _lines(name: str) -> list[str]:
    try:
        return Path(name).read_text("utf-8", "surrogateescape").splitlines()[1:]
    except OSError:
        return []
