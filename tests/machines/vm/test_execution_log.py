"""QEMU's log of executed code, as QEMU 7.2 writes it for three ISAs; and in pieces of any size."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from kinst.core.errors import TargetError
from kinst.isa import load
from kinst.machines.vm import execution_log
from kinst.machines.vm.execution_log import ExecutionLog, LogParser

# Lines of three guests that ran early_irq_init() of Debian's 6.1, cut.
AMD64 = """\
Trace {cpu}: 0x7f10ac000100 [0000000000000000/{pc:016x}/0000c2b0/ff080200] \n\
RAX=00000000000000a1 RBX=0000000000000028 RCX=0000000000000000 RDX=0000000000000003
RSI=ffffffffa713ca00 RDI=ffff8ceb811ae658 RBP=ffff8cebbfde3e80 RSP={sp:016x}
R8 =ffff8ceb811aece8 R9 =0000000000000009 R10=0000000000000000 R11=ffffffffa68f2bd8
RIP={pc:016x} RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0
ES =0000 0000000000000000 00000000 00000000
GDT=     fffffe0000001000 0000007f
CR0=80050033 CR2=ffff8ceb9d201000 CR3=000000001c410000 CR4=000000b0
"""
ARM64 = """\
Trace {cpu}: 0x7f5170000100 [0000000000007001/{pc:016x}/00000021/ff080200] \n\
 PC={pc:016x} X00=00000000000000a1 X01=ffff4fb7021587e0
X02=ffffb70b018d0088 X03=36f6e73742063680 X04=ffff4fb7021587e0
X29=ffffb70b01813e40 X30=ffffb70b01390f34  SP={sp:016x}
PSTATE=000000c5 ---- EL1h
"""
RISCV64 = """\
Trace {cpu}: 0x7fec68000100 [0000000000000000/{pc:016x}/00209001/ff080200] \n\
 V      =   0
 pc       {pc:016x}
 mhartid  0000000000000000
 x0/zero  0000000000000000 x1/ra    ffffffff80c00ede x2/sp    {sp:016x} x3/gp    ffffffff81db6e50
 x8/s0    ffffffff81c03ee0 x9/s1    0000000000000028 x10/a0   00000000000000a1 x11/a1   ff6000000262f6c8
"""  # noqa: E501
LOGS = {"amd64": AMD64, "arm64": ARM64, "riscv64": RISCV64}
RESULT = {"amd64": "R_RAX", "arm64": "R_X0", "riscv64": "R_A0"}
OTHER = {
    "amd64": {"R_R8": 0xFFFF8CEB811AECE8, "R_RDI": 0xFFFF8CEB811AE658},
    "arm64": {"R_X30": 0xFFFFB70B01390F34, "R_X1": 0xFFFF4FB7021587E0},
    "riscv64": {"R_RA": 0xFFFFFFFF80C00EDE, "R_A1": 0xFF6000000262F6C8},
}
TEXT, STACK = 0xFFFFFFFF81000000, 0xFFFFFFFF82003F10


def log_of(isa: str, *blocks: tuple[int, int]) -> bytes:
    """Return a log of blocks, each (CPU, number): the addresses and stack pointers differ."""
    rows = [LOGS[isa].format(cpu=cpu, pc=TEXT + k, sp=STACK - 8 * k) for cpu, k in blocks]
    return "".join(rows).encode()


@pytest.mark.parametrize("isa", sorted(LOGS))
def test_blocks_and_their_registers(isa: str) -> None:
    blocks = LogParser(load(isa)).take(log_of(isa, (0, 1), (1, 2), (0, 3), (1, 4), (0, 5)))
    found = [(one.cpu, one.address - TEXT, (STACK - one.stack) // 8) for one in blocks]
    assert found == [(0, 1, 1), (1, 2, 2)]  # each CPU's last block may not have been executed
    for one in blocks:
        assert one.register(RESULT[isa]) == 0xA1
        assert {name: one.register(name) for name in OTHER[isa]} == OTHER[isa]


@pytest.mark.parametrize("isa", sorted(LOGS))
def test_pieces_of_any_size(isa: str) -> None:
    log, draw = log_of(isa, *((k % 2, k) for k in range(40))), random.Random(1)
    for most in (1, 50, 3000):
        parser, at, found = LogParser(load(isa)), 0, list[int]()
        while at < len(log):
            size = draw.randrange(1, most + 1)
            found += [one.address - TEXT for one in parser.take(log[at : at + size])]
            at += size
        assert found == list(range(len(found))) and len(found) >= 37


def test_a_block_that_was_not_executed_is_left_out() -> None:
    stopped = f"Stopped execution of TB chain before 0x7f10ac012240 [{TEXT + 2:x}] \n".encode()
    log = (
        log_of("amd64", (0, 1), (0, 2)) + stopped + log_of("amd64", (0, 2), (0, 3), (0, 4), (0, 5))
    )
    blocks = LogParser(load("amd64")).take(log)
    assert [one.address - TEXT for one in blocks] == [1, 2, 3]


@pytest.mark.parametrize("isa", sorted(LOGS))
@pytest.mark.parametrize("swapped", [False, True])
def test_lines_of_another_cpu_may_be_before_the_registers(isa: str, swapped: bool) -> None:
    def parts(cpu: int, number: int) -> tuple[bytes, bytes]:
        line, _, dump = log_of(isa, (cpu, number)).partition(b"\n")
        return line + b"\n", dump

    (line0, dump0), (line1, dump1) = parts(0, 2), parts(1, 3)
    dumps = dump1 + dump0 if swapped else dump0 + dump1
    rest = log_of(isa, (0, 4), (1, 5), (0, 6))
    blocks = LogParser(load(isa)).take(log_of(isa, (0, 1)) + line0 + line1 + dumps + rest)
    found = sorted((one.address - TEXT, one.cpu, (STACK - one.stack) // 8) for one in blocks)
    assert found == [(1, 0, 1), (2, 0, 2), (3, 1, 3)]


def test_a_log_without_the_registers_is_told() -> None:
    log = log_of("amd64", (0, 1), (0, 2), (0, 3)).replace(b"RSP", b"ESP")
    with pytest.raises(TargetError, match="does not tell the register R_RSP"):
        LogParser(load("amd64")).take(log)


def test_what_is_discarded_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """If many blocks wait to be taken, QEMU waits; after discard() it goes on."""
    monkeypatch.setattr(execution_log, "_WAITING", 10)
    files: list[BinaryIO] = []

    def execute(_: str, words: dict[str, str]) -> str:
        name, _, path = words["command-line"].partition(" ")
        if name == "logfile":
            files.append(open(path, "wb", buffering=0))  # noqa: SIM115
        return ""

    text = log_of("amd64", *((0, k) for k in range(1000)))  # more than a pipe has room for
    with ExecutionLog(SimpleNamespace(execute=execute), load("amd64")) as log:  # type: ignore[arg-type]
        writer = threading.Thread(target=files[0].write, args=(text,), daemon=True)
        writer.start()
        writer.join(0.5)
        assert writer.is_alive() and log.take()
        log.discard()
        writer.join(60)
        assert not writer.is_alive() and not log.take()
    files[0].close()
