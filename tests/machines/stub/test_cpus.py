"""Breakpoints of QEMU's stub under KVM: few in the processor, others through a CPU in the kernel.

The double does what QEMU 7.2 does with -accel kvm (accel/kvm/kvm-all.c, target/i386/kvm/kvm.c): it
has four hardware breakpoints, and writes a software breakpoint through the page tables of the CPU
that Hc has selected, which fails (E22) while that CPU is in user mode with PTI.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinst.core.errors import TargetError
from kinst.isa import load
from kinst.machines.stub import cpus
from kinst.machines.stub.cpus import (
    Debugger,
    StubView,
    double_hits_told,
    hardware_breakpoints_of,
)
from kinst.wire.registers import RegisterInfo
from kinst.wire.rsp import Rsp
from tests.wire.stub_double import Answer, StubDouble

ISA = load("amd64")
KERNEL, USER = 0x10, 0x33  # code segments of Linux
REGISTERS = (RegisterInfo("rip", 0, 8, 0), RegisterInfo("cs", 1, 4, 8))
SITES = [0xFFFF_FFFF_8100_0000 + 16 * k for k in range(6)]


class KvmStub:
    """The double, with two CPUs.

    Attributes:
        modes: code segment of each CPU.
        comes: code segments that the CPUs have the next time the machine has run.
        inside: addresses of breakpoints in the processor; `written`: those in the code.
    """

    def __init__(self) -> None:
        self.modes, self.comes = [USER, KERNEL], [USER, KERNEL]
        self.inside: set[int] = set()
        self.written: set[int] = set()
        self._selected, self._shown = 0, 0
        answers: dict[bytes, Answer] = {
            b"qSupported": b"PacketSize=4000;QStartNoAckMode+;vContSupported+",
            b"QStartNoAckMode": b"OK", b"vCont?": b"vCont;c;C;s;S", b"vCont;c": self._runs,
            b"Hg": self._shows, b"Hc": self._selects, b"g": self._registers,
            b"Z": self._breakpoint, b"z": self._breakpoint, b"\x03": b"T02thread:01;",
        }  # fmt: skip
        self.double = StubDouble(answers)

    def _shows(self, body: bytes) -> bytes:
        self._shown = int(body[2:]) - 1
        return b"OK"

    def _selects(self, body: bytes) -> bytes:
        self._selected = int(body[2:]) - 1
        return b"OK"

    def _registers(self, body: bytes) -> bytes:
        return (
            bytes(8).hex().encode() + self.modes[self._shown].to_bytes(4, "little").hex().encode()
        )

    def _runs(self, body: bytes) -> bytes:
        self.modes = self.comes
        return b"<silence>"

    def _breakpoint(self, body: bytes) -> bytes:
        address = int(body.split(b",")[1], 16)
        if body[1:2] == b"0" and self.modes[self._selected] == USER:
            return b"E22"
        there = self.inside if body[1:2] == b"1" else self.written
        if body[:1] == b"z":
            there.remove(address)
        elif there is self.inside and len(there) == 4:
            return b"E22"
        else:
            there.add(address)
        return b"OK"


@pytest.fixture
def stub() -> Iterator[KvmStub]:
    made = KvmStub()
    yield made
    made.double.close()


def debugger(stub: KvmStub, hardware: int = ISA.board.HARDWARE_BREAKPOINTS) -> Debugger:
    return Debugger(Rsp(stub.double.ours), ISA, StubView(("1", "2"), REGISTERS), hardware)


def test_the_first_are_in_the_processor(stub: KvmStub) -> None:
    made = debugger(stub)
    for at in SITES:
        made.insert_breakpoint(at)
    assert stub.inside == {*SITES[:4]} and stub.written == {*SITES[4:]}
    made.remove_breakpoint(SITES[0])
    made.insert_breakpoint(SITES[0])
    assert SITES[0] in stub.inside  # the register is free again
    for at in SITES:
        made.remove_breakpoint(at)
    assert not stub.inside | stub.written


def test_together_with_the_request_to_run(stub: KvmStub) -> None:
    made = debugger(stub)
    made.want_breakpoints(SITES)
    made.resume()
    assert stub.inside == {*SITES[:4]} and stub.written == {*SITES[4:]}
    made.stop()
    made.remove_breakpoints(SITES)
    assert not stub.inside | stub.written


def test_a_cpu_comes_into_the_kernel_first(stub: KvmStub) -> None:
    made = debugger(stub)
    for at in SITES[:4]:
        made.insert_breakpoint(at)
    stub.modes = [USER, USER]
    made.handed_back(running=False)
    made.insert_breakpoint(SITES[4])
    assert stub.written == {SITES[4]} and not made.running
    stub.modes = [USER, USER]
    made.handed_back(running=False)
    made.remove_breakpoint(SITES[4])
    assert not stub.written and not made.running


def test_the_monitor_says_that_a_machine_is_under_kvm(stub: KvmStub) -> None:
    said: list[bytes] = []

    def answer(body: bytes) -> bytes:
        assert bytes.fromhex(body.partition(b",")[2].decode()) == b"info kvm"
        for line in said:
            stub.double.send(b"O" + line.hex().encode())
        return b"OK"

    def registers() -> int:
        return hardware_breakpoints_of(Rsp(stub.double.ours), ISA)

    assert registers() == 0  # a stub that is not QEMU's is not asked
    assert not any(one.startswith(b"qRcmd") for one in stub.double.requests)
    stub.double.answers |= {b"qqemu.sstepbits": b"ENABLE=1,NOIRQ=2,NOTIMER=4", b"Qqemu": b"OK"}
    assert registers() == 0  # QEMU without a monitor does not know the request
    stub.double.answers[b"qRcmd"] = answer
    for text, count in (
        ([b"kvm support: ", b"enabled\r\n"], 4), ([b"kvm support: disabled\r\n"], 0), ([], 0),
    ):  # fmt: skip
        said[:] = text
        assert registers() == count
    said[:] = [b"line\n"] * 1000
    with pytest.raises(TargetError, match="has no end"):
        registers()


def test_no_cpu_comes_into_the_kernel(stub: KvmStub) -> None:
    made = debugger(stub)
    stub.modes = stub.comes = [USER, USER]
    for at in SITES[:4]:
        made.insert_breakpoint(at)
    with pytest.raises(TargetError, match="no CPU of the guest was in the kernel") as refused:
        made.insert_breakpoint(SITES[4])
    assert "at most 4 probes" in refused.value.hint


def test_other_machines_have_them_in_the_code(stub: KvmStub) -> None:
    stub.modes = [KERNEL, KERNEL]
    made = debugger(stub, 0)
    for at in SITES:
        made.insert_breakpoint(at)
    assert stub.written == {*SITES} and not stub.inside
    assert not any(one.startswith(b"Hc") for one in stub.double.requests)


@pytest.mark.parametrize(
    ("release", "told"),
    [("5.10.0-43-amd64", True), ("5.15.167", True), ("4.19", True), ("5.16.0", False),
     ("6.1.0-56-cloud-amd64", False), ("10.0-rc1", False), ("unknown", False)],
)  # fmt: skip
def test_hosts_on_which_a_hit_may_count_twice(release: str, told: bool) -> None:
    assert bool(double_hits_told(release)) == told
    assert not told or release[:4].rstrip(".-") in double_hits_told(release)


def test_a_step_that_is_reported_early_is_repeated_on_a_busy_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time-out is for a branch to itself; here it has passed at the first report."""
    monkeypatch.setattr(cpus, "_STEP_TIMEOUT", 0.0)
    reports = iter((SITES[0], SITES[0], SITES[0] + 5))
    rip = [SITES[0]]

    def steps(body: bytes) -> bytes:
        rip[0] = next(reports)
        return b"T05thread:01;"

    made = KvmStub()
    made.double.answers |= {
        b"vCont;s": steps,
        b"g": lambda body: (rip[0].to_bytes(8, "little") + bytes(4)).hex().encode(),
    }
    stepped = debugger(made, 0)
    stepped.step_over(0, SITES[0])
    assert stepped.registers(0)["rip"] == SITES[0] + 5
    made.double.close()
