"""Number of CPUs that a guest may have, by -smp in QEMU's arguments; two without -smp.

Source: QEMU's manual, -smp: `[[cpus=]n][,maxcpus=..][,drawers=..]...[,threads=..]`. Without n the
number is the product of the topology. More CPUs, up to maxcpus, can be plugged in later.
"""

from __future__ import annotations

from collections.abc import Sequence

CPUS = 2  # without -smp among the arguments
_OPTION = ("-smp", "--smp")
_TOPOLOGY = ("drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads")


def cpus_of(arguments: Sequence[str]) -> int:
    """Return the largest number of CPUs that a guest may have with these arguments of QEMU.

    If there are several -smp, the last one counts. QEMU itself reports arguments that it does not
    understand.
    """
    cpus = CPUS
    for option, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if option in _OPTION:
            cpus = _count(value) or cpus
    return cpus


def says_cpus(arguments: Sequence[str]) -> bool:
    """Return whether arguments of QEMU set the number of CPUs (-smp)."""
    return any(option in _OPTION for option in arguments)


def _count(value: str) -> int:
    """Return the largest number of CPUs that a value of -smp allows, 0 if the value sets no
    number.
    """
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
