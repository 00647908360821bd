"""Names of Debian's kernel releases: in names of packages, and as users write them.

A package is called linux-image-RELEASE. RELEASE is what uname -r prints in the guest: a version,
then flavour and architecture in one of two orders:

    5.10.0-46-cloud-amd64    6.1.0-56-amd64    6.12.117+deb13-arm64-16k

Users write a whole release, or only the first numbers of a version: 6.12, 6.12.117, debian:5.10.
After the version they may write a flavour, if it is not kinst's usual one: 6.1-generic, 6.12-16k.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kinst.core.dataclass import dataclass

# The Debian release that has each kernel series.  Any other series is looked up in _NEWEST, where
# Debian publishes new kernels.
_SERIES: dict[tuple[int, ...], str] = {(5, 10): "bullseye", (6, 1): "bookworm", (6, 12): "trixie"}
_NEWEST = ("trixie-backports", "sid")
SUITES = (*_SERIES.values(), *_NEWEST)

GENERIC = "generic"  # what users write for the flavour that has no name
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
    """A kernel release of Debian.

    Attributes:
        name: the release as uname -r prints it.
        version: the numbers in its version, in order; releases are sorted by them.
        flavour: "" for the generic flavour.
        architecture: Debian's name of the architecture.
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
        """The name by which a user asks for the newest kernel of this series and flavour, such as
        6.12-generic."""
        return ".".join(map(str, self.series)) + "-" + (self.flavour or GENERIC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which kernel releases a user asks for.

    Attributes:
        text: the text that the user wrote.
        version: the first numbers of the version.
        flavour: "" for the generic flavour.
        name: the whole release; "" if the user gave only a version.
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
        """Code names of the Debian releases that may have the kernel, likeliest first."""
        known = _SERIES.get(self.version[:2])
        return (known,) if known else _NEWEST


def parse(name: str) -> Release | None:
    """Parse the name of a kernel release, such as 6.1.0-56-amd64. Return None if it is no such
    name, like the amd64 of the package linux-image-amd64."""
    match = _RELEASE.fullmatch(name)
    if match is None:
        return None
    version, before, architecture, after = match.groups()
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version))
    return Release(name, numbers, before or after or "", architecture)


def names_release(text: str) -> bool:
    """Return whether a text asks for a kernel release of Debian. If a user means a file with such a
    name, the user writes ./NAME."""
    return bool(_ASKED.fullmatch(text) or parse(text.removeprefix("debian:")))


def asked(text: str, usual: str) -> Wanted:
    """Parse the text by which a user asks for a kernel.

    Args:
        text: the user's text, for which names_release() is true.
        usual: the flavour to take if the text names none.
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
