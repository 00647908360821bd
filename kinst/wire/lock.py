"""A name that one process at a time has on this machine, and that ends with the last process that
keeps it: a socket in the abstract name space (unix(7)).

Tested by tests/wire/test_companion.py.
"""

from __future__ import annotations

import socket


def held(name: str) -> socket.socket | None:
    """The name, taken: it is free again once what is returned is closed everywhere.  None where
    somebody has it."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0{name}")
    except OSError:
        sock.close()
        return None
    return sock
