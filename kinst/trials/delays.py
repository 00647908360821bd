"""Sweep of `kinst race`: in each try, one CPU waits at an instruction. The tries differ in the
instruction or in how long the CPU waits.

Tested by tests/vm/inject/test_race.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.api import Machine
from kinst.trials.guest_run import TryRecord, stack_text
from kinst.trials.injection import facts_of
from kinst.trials.outcomes import Returned
from kinst.trials.programs import DELAYED, delay_program


class Delays:
    """Sweep in which one CPU waits at an instruction; in each try, the instruction or the length of
    the wait is another. Implements sweep.Sweep.

    Attributes:
        program: D text of all tries.
        baseline: number of the try in which no CPU waits.
        count: number of tries.
    """

    baseline = 0
    blames_status = True
    unit = "delay"

    def __init__(
        self, machine: Machine, function: str, offsets: Sequence[int], delays: Sequence[int],
        cpu: int,
    ) -> None:  # fmt: skip
        """Make the sweep.

        Args:
            machine: a machine that has started.
            function: MODULE:FUNCTION.
            offsets: offsets of the instructions at which the CPU waits.
            delays: how long it waits, in nanoseconds.
            cpu: number of the CPU.
        """
        self.facts = facts_of(machine.dialect)
        self.names: Mapping[int, str] = {}
        self.count = len(offsets) * len(delays)
        self.program = delay_program(self.facts, function, offsets, delays, cpu)
        self._offsets, self._delays = offsets, delays

    def stack(self, records: Sequence[TryRecord]) -> tuple[str, ...]:
        """Return the stack where the CPU waited first; () if it did not wait."""
        return next((stack_text(one.frames) for one in records if one.kind == DELAYED), ())

    def wanted(self, stack: tuple[str, ...]) -> int:
        """Return 0: no error is expected."""
        return 0

    def returned(self, records: Sequence[TryRecord]) -> Returned | None:
        """Return None: results are not recorded."""
        return None

    def where(self, number: int) -> tuple[int, int]:
        """Return the offset and the nanoseconds of a try."""
        delay, place = divmod(number - 1, len(self._offsets))
        return self._offsets[place], self._delays[delay]
