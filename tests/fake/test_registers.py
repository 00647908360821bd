"""Every instruction of the fake kernel, in every way of planting: each hit is one record, with the
registers that the untraced processor has there."""

from __future__ import annotations

import pytest

from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_reference import compared, functions, steps
from tests.fake.fake_tracing import trace
from tests.tiers import ISAS

WAYS = ("auto", "no-chain", "trap", "stop")
WORKLOAD = (Call("exercise", (3,), 0), Call("exercise", (13,), 1))
# The same functions with fewer calls: a hit that stops the machine takes a millisecond.
SHORT = (
    Call("work", (2,), 0), Call("fibonacci", (3,), 1), Call("many", tuple(range(9)), 0),
    *(Call("choose", (which, 5), which & 1) for which in range(9)),
    Call("indirect", (0, 3, 4), 0), Call("indirect", (1, 2, 4), 1), Call("add_atomic", (7,), 1),
    Call("probe_byte", (8,), 0),
)  # fmt: skip


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("way", WAYS)
def test_every_hit_has_the_registers_of_the_untraced_run(isa: str, way: str) -> None:
    workload = SHORT if way == "stop" else WORKLOAD
    expected = steps(isa, workload)
    machine = FakeMachine(isa)
    before = machine.text
    registers = compared(machine)
    values = ", ".join(f"regs[{d_name}]" for d_name, _, _ in registers)
    formats = " ".join(["%x"] * len(registers))
    pc = "R_RIP" if isa == "amd64" else "R_PC"
    names = sorted({f.name for f in functions(machine)})
    probes = ",".join(f"kinst::{name}:" for name in names)
    program = f'{probes} {{ printf("%d %x {formats}\\n", cpu, regs[{pc}], {values}); }}'
    traced = trace(machine, program, workload, settings={"plant": way, "bufsize": "8m"})
    found: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}
    for line in traced.lines:
        cpu, address, *rest = line.split()
        masks = [mask for _, _, mask in registers]
        numbers = [int(word, 16) & mask for word, mask in zip(rest, masks, strict=True)]
        found[int(cpu)].append((int(address, 16), *numbers))
    planted = {row[0] for rows in found.values() for row in rows}
    for cpu, rows in found.items():
        wanted = [
            (s.address, *(s.registers[stub] & mask for _, stub, mask in registers))
            for s in expected
            if s.cpu == cpu and s.address in planted
        ]
        assert rows == wanted
    left_out = {s.address for s in expected} - planted
    # A debugger's stop between a load-exclusive and its store-exclusive makes the store fail.
    start, size = machine.kernel.symbols["add_atomic"]
    exclusive = range(start, start + size) if (isa, way) == ("arm64", "stop") else range(0)
    assert all(address in exclusive for address in left_out), [hex(a) for a in left_out]
    assert len(planted) > 100
    assert machine.text == before
    assert machine.word("breakpoints") == 0
