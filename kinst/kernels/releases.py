"""Names of Debian's kernels: as packages have them, and as people ask for them.

A package is linux-image-RELEASE; RELEASE is what uname -r says in the guest: a version, then the
flavour and the architecture in one of two orders:

    5.10.0-46-cloud-amd64    6.1.0-56-amd64    6.12.117+deb13-arm64-16k

People write as many numbers of a version as matter to them, and a flavour if they want another one
than kinst's usual one: 6.12, 6.12.117, 6.1-generic, 6.12-16k, debian:5.10; or a whole release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Debian's releases, and the kernel series of each.  Any other series is looked up in the last two,
# where Debian publishes new kernels.
_SERIES: dict[tuple[int, ...], str] = {(5, 10): "bullseye", (6, 1): "bookworm", (6, 12): "trixie"}
_NEWEST = ("trixie-backports", "sid")
SUITES = (*_SERIES.values(), *_NEWEST)

GENERIC = "generic"  # how people write the flavour without a name
_FLAVOURS = ("cloud", "rt", "16k", "64k")
_NUMBER = r"\d+\.\d+(?:\.\d+)*"
_ASKED = re.compile(rf"(?:debian:)?({_NUMBER})(?:-({'|'.join((GENERIC, *_FLAVOURS))}))?")
# A whole version: numbers, then Debian's own revision.
_RELEASE = re.compile(
    rf"(\d+\.\d+\.\d+[^-]*(?:-\d+(?:\.deb\d+\.\d+)?)?)"
    rf"(?:-({'|'.join(_FLAVOURS)}))?-([a-z0-9]+)(?:-({'|'.join(_FLAVOURS)}))?"
)


@dataclass(frozen=True, slots=True)
class Release:
    """A kernel of Debian's.

    Attributes:
        name: as uname -r says it.
        version: its numbers in order, by which releases are sorted.
        flavour: "" for the generic one.
        architecture: Debian's name.
    """

    name: str
    version: tuple[int, ...]
    flavour: str
    architecture: str

    @property
    def series(self) -> tuple[int, ...]:
        return self.version[:2]

    @property
    def short(self) -> str:
        """Name by which a person asks for the newest kernel of this series and flavour."""
        return ".".join(map(str, self.series)) + "-" + (self.flavour or GENERIC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Description of the wanted release.

    Attributes:
        text: as the person wrote it.
        version: its first numbers.
        flavour: "" for the generic one.
        name: the whole release, or "".
    """

    text: str
    version: tuple[int, ...]
    flavour: str
    name: str = ""

    def fits(self, release: Release) -> bool:
        if self.name:
            return release.name == self.name
        start = release.version[: len(self.version)]
        return start == self.version and release.flavour == self.flavour

    @property
    def suites(self) -> tuple[str, ...]:
        """Code names of the Debian releases that may have it, likeliest first."""
        known = _SERIES.get(self.version[:2])
        return (known,) if known else _NEWEST


def parse(name: str) -> Release | None:
    """Return a release by its name, or None for any other name (linux-image-amd64 has no
    version)."""
    match = _RELEASE.fullmatch(name)
    if match is None:
        return None
    version, before, architecture, after = match.groups()
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version))
    return Release(name, numbers, before or after or "", architecture)


def names_release(text: str) -> bool:
    """Return whether a text names one of Debian's kernels; a file of such a name is written
    ./NAME."""
    return bool(_ASKED.fullmatch(text) or parse(text.removeprefix("debian:")))


def asked(text: str, usual: str) -> Wanted:
    """Return which release a person asks for.

    Args:
        text: for which names_release() is true.
        usual: the flavour if the text names none.
    """
    if match := _ASKED.fullmatch(text):
        numbers, flavour = match.groups()
        chosen = usual if flavour is None else "" if flavour == GENERIC else flavour
        return Wanted(text, tuple(map(int, numbers.split("."))), chosen)
    release = parse(text.removeprefix("debian:"))
    assert release is not None
    return Wanted(text, release.version, release.flavour, release.name)


def newest(found: Iterable[Release]) -> Release | None:
    return max(found, key=lambda release: release.version, default=None)
