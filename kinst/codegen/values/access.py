"""How in-target code reads what an Access describes."""

from __future__ import annotations

from kinst.codegen.firing import Lowered, Text
from kinst.codegen.machine import Machine
from kinst.codegen.ssa import Function, Value, const
from kinst.core.errors import KinstError
from kinst.core.target import Access


def read_access(code: Function, machine: Machine, access: Access) -> Lowered:
    """The value that `access` describes, in the target."""
    value = _start(code, machine, access)
    if not access.offsets:
        return Text(value, access.size) if access.string else value
    for offset in access.offsets[:-1]:
        value = code.load(64, code.add(value, offset))
    value = code.add(value, access.offsets[-1])
    return Text(value, access.size) if access.string else code.load(8 * access.size, value)


def _start(code: Function, machine: Machine, access: Access) -> Value:
    """What the offsets of an access are followed from."""
    per_cpu = machine.per_cpu
    if access.thread:
        if per_cpu is None or not per_cpu.thread_asm:
            raise KinstError(f"{machine.name} keeps the current thread in no register")
        return code.asm(per_cpu.thread_asm, "=r")
    if access.per_cpu is None:
        return const(access.address)
    if per_cpu is None or (per_cpu.address_space is None and not per_cpu.base_asm):
        raise KinstError(f"{machine.name} has no per-CPU data")
    bits = 64 if access.offsets else 8 * access.size
    if per_cpu.address_space is None:
        base = code.asm(per_cpu.base_asm, "=r")
        return code.load(bits, code.add(base, access.per_cpu))
    return code.load(bits, const(access.per_cpu), per_cpu.address_space)
