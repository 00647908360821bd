"""Constants that D has on every system: the Dynamic Tracing Guide's constants, and the numbers of
internet protocols. Other constants belong to the traced system's dialect (core/dialect.py).
"""

from __future__ import annotations

# dtrace:::ERROR's arg4 (unistd.d).
_FAULTS = "UNKNOWN BADADDR BADALIGN ILLOP DIVZERO NOSCRATCH KPRIV UPRIV TUPOFLOW BADSTACK"

# States of a process (procfs.d), numbered from 1.
_STATES = "SSLEEP SRUN SZOMB SSTOP SIDL SONPROC"

CONSTANTS = {
    "IPPROTO_IP": 0, "IPPROTO_ICMP": 1, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17,
    **{word: n for n, word in enumerate(_STATES.split(), 1)},
    **{f"DTRACEFLT_{word}": n for n, word in enumerate(_FAULTS.split())},
}  # fmt: skip
