"""Names of network addresses and ports, as this host's databases have them (hosts, services, DNS).

Tested by tests/wire/test_internet_names.py.
"""

from __future__ import annotations

import socket
from functools import lru_cache


@lru_cache(maxsize=4096)
def host_name(address: str) -> str:
    """Return the name of the host with an address of IPv4 or IPv6. If the address has no name or is
    not valid, return `address`. A question to a name server may take seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        return socket.gethostbyaddr(address)[0]
    except (OSError, ValueError):
        return address


@lru_cache(maxsize=4096)
def service_name(port: int) -> str:
    """Return the name of the service of a port, such as "ssh"; the number if the port has none."""
    try:
        return socket.getservbyport(port)
    except OSError:
        return str(port)
