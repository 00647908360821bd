"""The profile provider: timer probes, profile-N on every CPU and tick-N on one CPU (Dynamic Tracing
Guide, ch. 19).

A probe exists as soon as a description names it. A listing (-l) without such a description shows
the probes that dtrace(1) always has, such as profile-97 and tick-1. A number without a suffix is a
rate in hertz.

Tested by tests/providers/test_providers.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinst.core.errors import AbsentError
from kinst.core.kernel import Found, Kernel, Provider, Timer
from kinst.core.probe import ProbeInterface, ProbeName, ProbePattern
from kinst.core.stability import stability_of

_NS = {
    "ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "ms": 10**6, "msec": 10**6,
    "s": 10**9, "sec": 10**9, "m": 60 * 10**9, "min": 60 * 10**9,
    "h": 3600 * 10**9, "hour": 3600 * 10**9, "d": 86400 * 10**9, "day": 86400 * 10**9,
}  # fmt: skip
_NAME = re.compile(r"(profile|tick)-([0-9]+)([a-z]*)\Z")
_LISTED = (
    *(f"profile-{rate}" for rate in (97, 199, 499, 997, 1999, 4001, 4999)),
    *(f"tick-{rate}" for rate in (1, 10, 100, 500, 1000, 5000)),
)
SHORTEST_NS = 200_000  # DTrace's own limit: 5000 Hz


def timer_of(name: str) -> Timer | None:
    """Return the timer that a probe name such as tick-10ms means; None if the name does not have
    the form of a timer.

    Raises AbsentError for an unknown unit, zero, or a period under 200 microseconds.
    """
    match = _NAME.match(name)
    if match is None:
        return None
    kind, digits, unit = match.groups()
    number = int(digits)
    if number == 0:
        raise AbsentError(f"profile:::{name} has a rate or period of zero")
    if unit in ("", "hz"):
        period = 10**9 // number
    elif unit in _NS:
        period = number * _NS[unit]
    else:
        raise AbsentError(
            f'profile:::{name}: unknown unit "{unit}"', "units are hz, s, ms, us, ns, min, h, d"
        )
    if period < SHORTEST_NS:
        raise AbsentError(f"profile:::{name} fires too often", "at most 5000hz, every 200us")
    return Timer(period, kind == "profile")


class ProfileProvider(Provider):
    """The provider of timer probes: profile-N on every CPU, tick-N on one CPU."""

    name = "profile"
    stability = stability_of(
        "Evolving/Evolving/Common", "Unstable/Unstable/Unknown", "Private/Private/Unknown",
        "Evolving/Evolving/Common", "Evolving/Evolving/Common",
    )  # fmt: skip
    needs_kernel = False
    interface = ProbeInterface(plain=("profile-*", "tick-*"), own=("tick-*",))
    usage = "profile-N and tick-N, with N as in 97, 10ms, 1s"

    def listed(self) -> Sequence[Found]:
        return [Found(ProbeName("profile", "", "", n), None, timer_of(n)) for n in _LISTED]

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Sequence[Found]:
        name = ProbeName("profile", "", "", pattern.name)
        if pattern.name and pattern.matches(name):
            timer = timer_of(pattern.name)
            if timer is not None:
                return [Found(name, None, timer)]
        return [found for found in self.listed() if pattern.matches(found.name)]


PROVIDER = ProfileProvider()
