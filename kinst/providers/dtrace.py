"""The dtrace provider: BEGIN, END and ERROR (Dynamic Tracing Guide, ch. 17).

Tested by tests/providers/test_providers.py and tests/d/providers.cases.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.kernel import Found, Kernel, Provider
from kinst.core.probe import ProbeInterface, ProbeName, ProbePattern
from kinst.core.stability import stability_of

BEGIN = ProbeName("dtrace", "", "", "BEGIN")
END = ProbeName("dtrace", "", "", "END")
ERROR = ProbeName("dtrace", "", "", "ERROR")


class DTraceProvider(Provider):
    """The provider of the probes BEGIN, END and ERROR, whose ids are 1, 2 and 3."""

    name = "dtrace"
    stability = stability_of(
        "Stable/Stable/Common", "Private/Private/Unknown", "Private/Private/Unknown",
        "Stable/Stable/Common", "Stable/Stable/Common",
    )  # fmt: skip
    needs_kernel = False
    interface = ProbeInterface(
        plain=("BEGIN", "END", "ERROR"), redeclared=("BEGIN", "END"), own=("BEGIN", "END")
    )
    usage = "BEGIN, END and ERROR"

    def listed(self) -> Sequence[Found]:
        return [Found(BEGIN), Found(END), Found(ERROR)]

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Sequence[Found]:
        return [found for found in self.listed() if pattern.matches(found.name)]


PROVIDER = DTraceProvider()
