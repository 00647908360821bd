"""chill(): the CPU spins, for at most as long as DTrace lets it."""

from __future__ import annotations

from kinst.codegen.firing import Firing
from kinst.codegen.ssa import const
from kinst.codegen.values.expressions import scalar
from kinst.core.layout import FAULT_ILLOP
from kinst.dlang import typed
from kinst.dlang.check.actions_effects import MOST_CHILL


def chill(firing: Firing, action: typed.Chill) -> None:
    """Wait for a number of ns; more than MOST_CHILL is an illegal operation.  On the host, where
    nothing can be kept from running, nothing happens."""
    code, machine = firing.code, firing.unit.machine
    duration = code.convert(scalar(firing, action.duration), 64, signed=False)
    firing.faults.add(code, code.icmp("ugt", duration, MOST_CHILL), FAULT_ILLOP, const(0))
    if machine.host or machine.clock is None or not machine.timestamp_asm:
        return
    clock = machine.clock
    cycles = code.op("udiv", code.op("shl", duration, clock.shift), clock.mult)
    start = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    spin, done = code.fresh("spin"), code.fresh("chilled")
    code.jump(spin)
    code.block(spin)
    now = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    code.branch(code.icmp("ult", code.op("sub", now, start), cycles), spin, done)
    code.block(done)
