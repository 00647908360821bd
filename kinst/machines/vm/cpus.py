"""How many CPUs a guest has: by -smp among QEMU's arguments, or two.

Source: QEMU's manual, -smp: `[[cpus=]n][,maxcpus=..][,drawers=..]...[,threads=..]`; without n it is
the product of the topology.
"""

from __future__ import annotations

from collections.abc import Sequence

CPUS = 2  # without -smp among the arguments
_TOPOLOGY = ("drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads")


def cpus_of(arguments: Sequence[str]) -> int:
    """The CPUs that QEMU starts with when it gets these arguments; the last -smp counts.  What
    QEMU would not understand is left to QEMU to refuse."""
    found = CPUS
    for option, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if option in ("-smp", "--smp"):
            found = _count(value) or found
    return found


def _count(value: str) -> int:
    """0 where the value of -smp tells nothing."""
    number, product = "", 0
    for part in value.split(","):
        key, equals, text = part.partition("=")
        if not equals:
            number = key
        elif key == "cpus":
            number = text
        elif key in _TOPOLOGY and text.isdecimal():
            product = (product or 1) * int(text)
    return int(number) if number.isdecimal() else product
