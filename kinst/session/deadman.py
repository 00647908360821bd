"""Whether a machine makes no progress because of what is planted in it.

dtrace(1) ends a program when the system is unresponsive while its probes fire: "Abort due to
systemic unresponsiveness", by a timer of its own that it calls the deadman.  Here the kernel says
so itself (a soft lockup, a stall of RCU, a task that hangs), and kinst looks where its CPUs are: a
kernel that is stuck in code of its own is not helped by unplanting, and is left as it is.
"""

from __future__ import annotations

import time

from kinst.core.isa import Isa
from kinst.core.machine import Target

SAMPLES = 40
APART = 0.01  # seconds between two
# Of the samples of one CPU, those in probes that are too many.  Around each of them is what the
# kernel does at a breakpoint, so far less than half is much.
SHARE = 0.1


def share_in_probes(target: Target, isa: Isa, low: int, high: int) -> float:
    """How much of its time the CPU that is most in kinst's code, at [low, high), is there: 0 to 1.

    The machine runs, and goes on to run; it is stopped for each sample."""
    seen = [0] * target.cpus
    for _ in range(SAMPLES):
        target.stop()
        for cpu in range(target.cpus):
            seen[cpu] += low <= target.registers(cpu)[isa.board.PC] < high
        target.resume()
        time.sleep(APART)
    return max(seen) / SAMPLES
