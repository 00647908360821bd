"""Stability attributes: how much a program's probes and names may change from one kernel to the
next (Dynamic Tracing Guide, "Stability").

Each provider declares the attributes of its probes. kinst only compares and reports them (-v).

Tested by tests/consumer/test_stability.py."""

from __future__ import annotations

from collections.abc import Iterable

from kinst.core.dataclass import dataclass
from kinst.core.probe import ProbePattern

# From the least to the most stable; dependency classes from the least to the most common.
LEVELS = (
    "Internal", "Private", "Obsolete", "External", "Unstable", "Evolving", "Stable", "Standard",
)  # fmt: skip
CLASSES = ("Unknown", "CPU", "Platform", "Group", "ISA", "Common")
GLOB = frozenset("*?[\\")


@dataclass(frozen=True, slots=True)
class Attributes:
    """One set of stability attributes.

    Attributes:
        name: stability of names, an index in LEVELS.
        data: stability of what the data mean, an index in LEVELS.
        dependency: on what kinds of machines the names and data exist, an index in CLASSES ("ISA":
            on all machines of the same instruction set).
    """

    name: int
    data: int
    dependency: int

    def reaches(self, minimum: Attributes) -> bool:
        """Whether each stability attribute is at least that of `minimum` (libdtrace's
        dt_attr_cmp())."""
        return self.least(minimum) == minimum

    def least(self, other: Attributes) -> Attributes:
        """Return stability attributes with the lower of the two values for each of name, data and
        dependency."""
        return Attributes(
            min(self.name, other.name),
            min(self.data, other.data),
            min(self.dependency, other.dependency),
        )

    def __str__(self) -> str:
        return f"{LEVELS[self.name]}/{LEVELS[self.data]}/{CLASSES[self.dependency]}"


def attributes(text: str) -> Attributes:
    """Parse a text like Evolving/Evolving/Common, in any case, and return the stability attributes.
    Raises ValueError."""
    name, data, dependency = text.lower().split("/")
    levels = [level.lower() for level in LEVELS]
    classes = [name.lower() for name in CLASSES]
    return Attributes(levels.index(name), levels.index(data), classes.index(dependency))


MOST = attributes("Standard/Standard/Common")
STABLE = attributes("Stable/Stable/Common")
PRIVATE = attributes("Private/Private/Unknown")
UNSTABLE = attributes("Unstable/Unstable/Common")


@dataclass(frozen=True, slots=True)
class ProviderStability:
    """Stability attributes that a provider declares: those of its own name, those of its probes'
    modules, functions and names, and those of its probes' arguments.
    """

    provider: Attributes
    module: Attributes
    function: Attributes
    name: Attributes
    args: Attributes


# For a description that names no single provider.
ANY = ProviderStability(UNSTABLE, UNSTABLE, UNSTABLE, UNSTABLE, UNSTABLE)


def stability_of(*texts: str) -> ProviderStability:
    """Return what a provider declares, from five texts as attributes() parses them: provider,
    module, function, name, arguments."""
    provider, module, function, name, args = map(attributes, texts)
    return ProviderStability(provider, module, function, name, args)


# For probes that a D library declares.
OF_LIBRARIES = stability_of(
    "Evolving/Evolving/Common", "Private/Private/Unknown", "Private/Private/Unknown",
    "Evolving/Evolving/Common", "Evolving/Evolving/Common",
)  # fmt: skip


def is_open(part: str) -> bool:
    """Whether a part of a probe description (provider, module, function or name) is empty or a
    glob."""
    return not part or bool(GLOB & set(part))


def of_description(pattern: ProbePattern, stability: ProviderStability) -> Attributes:
    """Return the stability attributes of a probe description: the lowest values among the parts
    that the description names (libdtrace's dt_probe_info())."""
    weakest = stability.provider
    for part, declared in (
        (pattern.module, stability.module),
        (pattern.function, stability.function),
        (pattern.name, stability.name),
    ):
        if not is_open(part):
            weakest = weakest.least(declared)
    return weakest


def least(all_: Iterable[Attributes]) -> Attributes:
    """Return the lowest value of each attribute among all given; the highest possible values if
    none are given."""
    lowest = MOST
    for one in all_:
        lowest = lowest.least(one)
    return lowest
