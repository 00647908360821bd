"""Built-ins as they are read of one CPU of a machine that stands."""

from __future__ import annotations

from kinst.core.errors import TargetError
from kinst.core.machine import Target
from kinst.core.system import Access, Facts

MASK = (1 << 64) - 1


def _thread(target: Target, facts: Facts, cpu: int) -> int:
    """Address of the thread that a stopped CPU runs, where a register has it."""
    registers = target.registers(cpu)
    found = (registers.get(name, 0) for name in facts.thread_registers)
    return next((value for value in found if value), 0)


def read_access(target: Target, facts: Facts, cpu: int, access: Access) -> int | bytes:
    """The value of a built-in of the traced kernel on one CPU; the machine is stopped.

    Raises TargetError where memory is not mapped.
    """
    if access.thread:
        pointer = _thread(target, facts, cpu)
        if not access.offsets:
            return pointer
    elif access.per_cpu is None:
        pointer = access.address
    else:
        where = facts.per_cpu_bases[cpu] + access.per_cpu
        size = 8 if access.offsets else access.size
        pointer = int.from_bytes(target.read(where & MASK, size), "little")
        if not access.offsets:
            return pointer
    for offset in access.offsets[:-1]:
        pointer = int.from_bytes(target.read(pointer + offset, 8), "little")
    raw = target.read(pointer + access.offsets[-1], access.size)
    return raw.split(b"\0")[0] if access.string else int.from_bytes(raw, "little")


def kernel_cpu(target: Target, facts: Facts, cpu: int) -> int:
    """What the kernel calls a stopped CPU of the machine: a kernel that finds the number by the
    current thread may count from whichever CPU came up first."""
    access = facts.builtins.get("cpu")
    if access is None or not access.thread:
        return cpu
    try:
        found = read_access(target, facts, cpu, access)
    except TargetError:  # it is off, and its registers are of before it was on
        return cpu
    return found if isinstance(found, int) else cpu


def thread_ns(target: Target, facts: Facts, cpu: int, now: int) -> int:
    """vtimestamp of the thread on a stopped CPU, at `now` on timestamp's scale; 0 where the
    kernel offers none."""
    terms = facts.thread_time
    if terms is None:
        return 0
    total: int = now + terms.offset_ns
    for sign, accesses in ((1, terms.plus), (-1, terms.minus)):
        for access in accesses:
            value = read_access(target, facts, cpu, access)
            total += sign * value if isinstance(value, int) else 0
    return total
