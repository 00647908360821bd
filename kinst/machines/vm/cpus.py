"""How many CPUs a guest may have: by -smp among QEMU's arguments, or two.

Source: QEMU's manual, -smp: `[[cpus=]n][,maxcpus=..][,drawers=..]...[,threads=..]`; without n it is
the product of the topology.  More than n, up to maxcpus, can be plugged in later.
"""

from __future__ import annotations

from collections.abc import Sequence

CPUS = 2  # without -smp among the arguments
_OPTION = ("-smp", "--smp")
_TOPOLOGY = ("drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads")


def cpus_of(arguments: Sequence[str]) -> int:
    """The CPUs that there may be when QEMU gets these arguments; the last -smp counts.  What
    QEMU would not understand is left to QEMU to refuse."""
    found = CPUS
    for option, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if option in _OPTION:
            found = _count(value) or found
    return found


def says_cpus(arguments: Sequence[str]) -> bool:
    """Whether the arguments say how many CPUs there are."""
    return any(option in _OPTION for option in arguments)


def _count(value: str) -> int:
    """0 where the value of -smp tells nothing."""
    number, most, product = "", 0, 0
    for part in value.split(","):
        key, equals, text = part.partition("=")
        if not equals:
            number = key
        elif key == "cpus":
            number = text
        elif key == "maxcpus" and text.isdecimal():
            most = int(text)
        elif key in _TOPOLOGY and text.isdecimal():
            product = (product or 1) * int(text)
    return max(int(number) if number.isdecimal() else product, most)
