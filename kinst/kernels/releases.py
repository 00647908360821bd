"""Names of Debian's kernels: as packages have them, and as people ask for them.

A package is linux-image-RELEASE; RELEASE is what uname -r says in the guest, a version, then the
flavour and the architecture in one of two orders:

    5.10.0-46-cloud-amd64    6.1.0-56-amd64    6.12.117+deb13-arm64-16k

People write a version as far as it matters to them, and a flavour if they want another one than
kinst's usual one: 6.12, 6.12.117, 6.1-generic, 6.12-16k, debian:5.10, or all of a release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Debian's releases that have kernels, and which series each has: what is of none of them is looked
# for in the last two, where Debian puts what is new.
_SERIES: dict[tuple[int, ...], str] = {(5, 10): "bullseye", (6, 1): "bookworm", (6, 12): "trixie"}
_NEWEST = ("trixie-backports", "sid")
SUITES = (*_SERIES.values(), *_NEWEST)

GENERIC = "generic"  # how people write the flavour without a name
_FLAVOURS = ("cloud", "rt", "16k", "64k")
_NUMBER = r"\d+\.\d+(?:\.\d+)*"
_ASKED = re.compile(rf"(?:debian:)?({_NUMBER})(?:-({'|'.join((GENERIC, *_FLAVOURS))}))?")
# A version whole: what follows its numbers is Debian's own revision.
_RELEASE = re.compile(
    rf"(\d+\.\d+\.\d+[^-]*(?:-\d+(?:\.deb\d+\.\d+)?)?)"
    rf"(?:-({'|'.join(_FLAVOURS)}))?-([a-z0-9]+)(?:-({'|'.join(_FLAVOURS)}))?"
)


@dataclass(frozen=True, slots=True)
class Release:
    """name: as uname -r says it.  version: its numbers in order, which order releases.  flavour:
    "" for the generic one.  architecture: Debian's name."""

    name: str
    version: tuple[int, ...]
    flavour: str
    architecture: str

    @property
    def series(self) -> tuple[int, ...]:
        return self.version[:2]

    @property
    def short(self) -> str:
        """How a person asks for the newest one like it."""
        return ".".join(map(str, self.series)) + "-" + (self.flavour or GENERIC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which release is asked for: its first numbers, and its flavour; name: all of it, or ""."""

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
    """A release by its name, or None for what is none (linux-image-amd64 has a package's only)."""
    match = _RELEASE.fullmatch(name)
    if match is None:
        return None
    version, before, architecture, after = match.groups()
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version))
    return Release(name, numbers, before or after or "", architecture)


def names_release(text: str) -> bool:
    """Whether this names one of Debian's kernels; a file of such a name is written ./NAME."""
    return bool(_ASKED.fullmatch(text) or parse(text.removeprefix("debian:")))


def asked(text: str, usual: str) -> Wanted:
    """What a person wrote (names_release holds for it).  usual: the flavour where none is named."""
    if match := _ASKED.fullmatch(text):
        numbers, flavour = match.groups()
        chosen = usual if flavour is None else "" if flavour == GENERIC else flavour
        return Wanted(text, tuple(map(int, numbers.split("."))), chosen)
    release = parse(text.removeprefix("debian:"))
    assert release is not None
    return Wanted(text, release.version, release.flavour, release.name)


def newest(found: Iterable[Release]) -> Release | None:
    return max(found, key=lambda release: release.version, default=None)
