"""The instructions that the untraced fake kernel executes: the truth that traces are compared
with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from kinst.core.probe import Function
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_system import OWN

# Flag bits that instructions set; the other bits are the processor's state.
FLAGS = {"eflags": 0x8D5, "cpsr": 0xF << 28, "sstatus": 0}


@dataclass(frozen=True)
class Step:
    """State before one instruction runs.

    Attributes:
        registers: by the GDB stub's names.
    """

    cpu: int
    address: int
    registers: Mapping[str, int]


def functions(machine: FakeMachine) -> list[Function]:
    """Return the functions that calls execute, without the kernel's own exception handlers."""
    kernel = machine.kernel
    found = [Function("vmlinux", n, *kernel.symbols[n]) for n in kernel.functions]
    return [f for f in found if f.size and f.name not in (*OWN, "handle_fault", "idle")]


def instructions(machine: FakeMachine, names: Collection[str] = ()) -> list[int]:
    """Return the address of every instruction of these functions, or of all if `names` is
    empty."""
    return [
        one.address
        for function in functions(machine)
        if not names or function.name in names
        for one in machine.isa.decode(machine.read(function.address, function.size),
                                      function.address)
    ]  # fmt: skip


def steps(isa: str, workload: Sequence[Call], names: Collection[str] = ()) -> Sequence[Step]:
    """Return every execution of an instruction of these functions during a workload, in order.

    Results are cached, because reading all registers at each step is slow.
    """
    return _steps(isa, tuple(workload), tuple(names))


@cache
def _steps(isa: str, workload: tuple[Call, ...], names: tuple[str, ...]) -> tuple[Step, ...]:
    machine = FakeMachine(isa)
    found: list[Step] = []
    pc = machine.processors[0].pc

    def seen(cpu: int, registers: Mapping[str, int]) -> None:
        found.append(Step(cpu, registers[pc], registers))

    for cpu, processor in enumerate(machine.processors):
        for address in instructions(machine, names):
            processor.watch(address, partial(seen, cpu))
        processor.flush()
    machine.run_all(workload)
    assert not machine.word("bad_faults")
    return tuple(found)


def compared(machine: FakeMachine) -> list[tuple[str, str, int]]:
    """Return the registers to compare records by: (D name, the stub's name, mask of bits to
    compare)."""
    by_stub = {r.gdb_name: r.d_name for r in machine.isa.registers if r.gdb_name in
               machine.processors[0].ids}  # fmt: skip
    left_out = {"cs", "ss", "ds", "es", "fs", "gs", "fs_base", "gs_base", machine.processors[0].pc}
    return [
        (d_name, stub, FLAGS.get(stub, (1 << 64) - 1))
        for stub, d_name in by_stub.items()
        if stub not in left_out and FLAGS.get(stub, 1)
    ]
