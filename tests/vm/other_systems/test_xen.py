"""Xen, which is neither Linux nor of this project, traced with its symbol table alone, and
compared with gdb.

Without a kernel for its first guest Xen stops with a panic; until then it does the same from each
reset on, as far as the functions here show.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.vm.command import kinst
from tests.vm.other_systems.other_kernels import SECONDS, OtherKernel
from tests.vm.other_systems.xen_files import xen_files

pytestmark = pytest.mark.vm
HITS = 60
REGISTERS = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r12")
PANIC = "Manual reset required"


def machine(console: Path, folder: Path) -> OtherKernel:
    kernel, symbols = xen_files()
    module = folder / "module"
    module.write_bytes(bytes(4096))
    qemu = f"""qemu-system-x86_64 -machine q35 -cpu qemu64 -m 512 -smp 1 -nodefaults -display none
        -no-reboot -serial file:{console} -kernel {kernel} -initrd {module}""".split()
    append = "com1=115200,8n1 console=com1 loglvl=all noreboot"
    return OtherKernel(symbols, (*qemu, "-append", append), "gdb")


@pytest.fixture
def xen(tmp_path: Path) -> OtherKernel:
    return machine(tmp_path / "console", tmp_path)


def by_gdb(xen: OtherKernel, folder: Path, places: list[str]) -> str:
    """Return address and registers of the first hits of these places, as gdb prints them from
    reset on.

    To continue from a breakpoint, gdb steps over it. If the host is busy, QEMU sometimes reports
    such a step before the instruction has run (Debugger.step_over()). gdb does not notice, and
    stops at the breakpoint again, with the same registers: such a stop is no hit.
    """
    reads = ", ".join(f"'{name}'" for name in REGISTERS)
    return xen.ask_gdb(
        folder,
        [
            *(f"hbreak *({place})" for place in places),
            "python",
            "last = None",
            f"for _ in range({HITS}):",
            "    read = last",
            "    while read == last:",
            "        gdb.execute('continue', to_string=True)",
            "        frame = gdb.newest_frame()",
            f"        read = [int(frame.read_register(n)) % 2**64 for n in ('rip', {reads})]",
            "    last = read",
            "    print('hit', *('%x' % value for value in read))",
            "end",
            "kill",
        ],
    )


def by_kinst(xen: OtherKernel, folder: Path, probes: str) -> str:
    """Return the same hits as kinst prints them."""
    names = ("rip", *REGISTERS)
    formats = " ".join(["%x"] * len(names))
    values = ", ".join(f"regs[R_{name.upper()}]" for name in names)
    program = f"""{probes} {{ printf("hit {formats}\\n", {values}); }}
        {probes} /++hits == {HITS}/ {{ exit(0); }}"""
    return xen.kinst(folder, "-q", "-n", program).good().out


def hits(text: str) -> list[str]:
    found = re.findall(r"^hit .*$", text, re.M)
    assert len(found) == HITS
    return found


def test_functions_entries_with_all_registers(xen: OtherKernel, tmp_path: Path) -> None:
    """Trace from reset, when nothing of Xen is in memory, until it has printed 60 times."""
    ours = by_kinst(xen, tmp_path, "fbt::vsnprintf:entry, fbt::serial_puts:entry")
    theirs = by_gdb(xen, tmp_path, ["&vsnprintf", "&serial_puts"])
    assert hits(ours) == hits(theirs)
    assert len({row.split()[1] for row in hits(ours)}) == 2


def test_every_instruction_of_a_function(xen: OtherKernel, tmp_path: Path) -> None:
    listed = xen.kinst(tmp_path, "-l", "-n", "kinst::serial_puts:").good().out
    offsets = [row.split()[-1] for row in listed.splitlines()[1:]]
    assert len(offsets) > 20
    ours = by_kinst(xen, tmp_path, "kinst::serial_puts:")
    # Few of them are reached before the last hit.  A processor has four hardware breakpoints, but
    # QEMU has no such limit.
    theirs = by_gdb(xen, tmp_path, [f"(char *)&serial_puts + {offset}" for offset in offsets])
    assert hits(ours) == hits(theirs)
    assert len({row.split()[1] for row in hits(ours)}) > 10


def test_returns_of_a_function(xen: OtherKernel, tmp_path: Path) -> None:
    """vsnprintf's entries have a return each, with as many characters as gdb's finish says."""
    program = f"""fbt::vsnprintf:entry {{ printf("in\\n"); }}
        fbt::vsnprintf:return {{ printf("%d characters\\n", arg1); }}
        fbt::vsnprintf:return /++n == {HITS}/ {{ exit(0); }}"""
    rows = xen.kinst(tmp_path, "-q", "-n", program).good().out.split("\n")
    rows = [row for row in rows if row]
    assert rows[::2] == ["in"] * HITS
    commands = [
        "hbreak *&vsnprintf", "python", f"for _ in range({HITS}):",
        "    gdb.execute('continue', to_string=True)",
        "    stack = gdb.parse_and_eval('*(unsigned long *)$rsp')",
        "    gdb.execute('thbreak *%d' % int(stack))",
        "    while gdb.newest_frame().pc() != int(stack):",  # by_gdb() says why
        "        gdb.execute('continue', to_string=True)",
        "    print('%d characters' % int(gdb.parse_and_eval('(int)$rax')))",
        "end", "kill",
    ]  # fmt: skip
    theirs = re.findall(r"^\d+ characters$", xen.ask_gdb(tmp_path, commands), re.M)
    assert rows[1::2] == theirs


def test_live_instructions(tmp_path: Path) -> None:
    """After Xen has been loaded and has changed its own code, listed bytes are those that gdb
    reads."""
    console = tmp_path / "console"
    xen = machine(console, tmp_path)
    names = ("vsnprintf", "serial_puts", "printk", "do_softirq", "memcpy", "__putstr")
    with xen.machine(tmp_path, stopped=False) as stub:
        end = time.monotonic() + SECONDS
        while not (console.exists() and PANIC in console.read_text(errors="replace")):
            assert time.monotonic() < end
            time.sleep(0.1)
        probes = ", ".join(f"kinst::{name}:" for name in names)
        options = ("--gdb", str(stub), "--kernel", str(xen.elf), "-l", "-v", "-n", probes)
        listed = kinst(*options, boots=False).good().out
        commands = [f"echo of {name}\\n\ndisassemble /r '{name}'" for name in names]
        text = xen.debug(tmp_path, stub, commands)
    ours = re.findall(r"^ *\d+ +kinst +vmlinux +(\w+) (\d+)\n\t((?:[0-9a-f]{2} )+) ", listed, re.M)
    theirs = []
    for part in re.split(r"^of ", text, flags=re.M)[1:]:
        name = part.split("\n")[0]
        rows = re.findall(r"<\+(\d+)>:\t((?:[0-9a-f]{2} )*[0-9a-f]{2})\s", part)
        theirs += [(name, at, f"{code.strip()} ") for at, code in rows]
    assert len(theirs) > 300
    assert sorted(ours) == sorted(theirs)
