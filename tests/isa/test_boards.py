"""Facts of each board about its machine.

They are compared with QEMU (a machine that has not been started), gdb, the compiler's calling
convention and the assembler's numbers.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinst.core.isa import Isa
from kinst.isa import load, names
from tests import ROOT
from tests.isa.gnu_assembler import assembled
from tests.machines.booted import boot_of

pytestmark = pytest.mark.full  # QEMU of every instruction set, gdb-multiarch

MEGABYTE, GIGABYTE = 1 << 20, 1 << 30
TOOLS = ROOT / "setup/tools.sh"  # packages that a Debian is set up with
GDB_NAMES = {"amd64": "i386:x86-64", "arm64": "aarch64", "riscv64": "riscv:rv64"}
COMPILERS = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc", "riscv64": "riscv64-linux-gnu-gcc"}


@pytest.fixture(params=names())
def isa(request: pytest.FixtureRequest) -> Isa:
    return load(request.param)


def qemu(isa: Isa, *options: str) -> list[str]:
    """Return the command of a machine whose CPUs are stopped."""
    board = isa.board
    cpu = ["-cpu", board.CPU] if board.CPU else []
    return [board.QEMU, "-M", board.MACHINE, *cpu, "-S", "-nodefaults", "-display", "none",
            *(("-bios", "none") if isa.name == "riscv64" else ()), *options]  # fmt: skip


def registers(isa: Isa, *commands: str) -> list[tuple[str, int, int, int]]:
    """Return (name, bytes, number, offset in the g packet) of gdb's registers, after its
    commands."""
    told = subprocess.run(
        ["gdb-multiarch", "-nx", "-batch", "-ex", f"set architecture {GDB_NAMES[isa.name]}",
         *(part for command in commands for part in ("-ex", command)),
         "-ex", "maint print remote-registers"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    row = re.compile(r" (\w+) +\d+ +\d+ +\d+ +(\d+) .*? (\d+) +(\d+) *")
    found = [m.groups() for line in told.splitlines() if (m := row.fullmatch(line))]
    return [(name, int(size), int(number), int(offset)) for name, size, number, offset in found]


@contextmanager
def standing(isa: Isa, folder: Path) -> Iterator[str]:
    """Return gdb's command that connects it to a machine that has not been started."""
    place = folder / "stub"
    extra = ("-M", "virtualization=on") if isa.name == "arm64" else ()
    command = qemu(isa, *extra, "-m", "64M", "-gdb", f"unix:{place},server=on,wait=off")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not place.exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield f"target remote {place}"
        process.terminate()


def test_registers_without_a_description_are_gdbs(isa: Isa) -> None:
    known = [(name, size) for name, size, _, _ in registers(isa)]
    mine = list(isa.gdb_registers)
    assert known[: len(mine)] == mine


def test_names_are_those_of_qemus_stub(isa: Isa, tmp_path: Path) -> None:
    with standing(isa, tmp_path) as connect:
        told = {name for name, _, _, _ in registers(isa, connect)}
    board = isa.board
    assert told >= {isa.pc, isa.sp, *board.CALL_CHANGES}
    assert not board.LINK or board.LINK in told
    assert not isa.vectors or told & set(isa.vectors)
    assert told >= {register.gdb_name for register in isa.registers}
    # Registers for page tables and for reports about CPUs that hang.
    asked = {
        "amd64": ("cr0", "cr3", "cr4", "cs", "eflags"),
        "arm64": ("TCR_EL1", "TTBR1_EL1", "HCR_EL2", "CNTV_CTL_EL0", "cpsr", "SCTLR"),
        "riscv64": ("satp", "priv", "sstatus", "sip", "sie", "stvec", "scause", "sepc"),
    }
    assert told >= set(asked[isa.name])


def test_the_timer_is_so_many_numbers_behind(tmp_path: Path) -> None:
    """QEMU's numbers of CSRs are consecutive for those with a name.

    So the timer's number follows from its place in the assembler's list.
    """
    isa = load("riscv64")
    ((name, behind),) = isa.board.TIMERS

    def number(csr: str) -> int:
        code = assembled("riscv64", f"csrr a0, {csr}", tmp_path)
        return int.from_bytes(code, "little") >> 20

    assert behind == number("stimecmp") - number(name)
    with standing(isa, tmp_path) as connect:
        told = {csr: at for csr, _, at, _ in registers(isa, connect)}
    for csr in ("sepc", "scause", "sip", "satp", "mtvec"):
        assert told[csr] - told[name] == number(csr) - number(name)


SPLIT = 0xB000_0000  # where amd64's is split in two


@pytest.mark.parametrize(
    "size", [64 * MEGABYTE, SPLIT - 2 * MEGABYTE, SPLIT, SPLIT + 2 * MEGABYTE, 5 * GIGABYTE]
)
def test_memory_is_where_qemu_puts_it(isa: Isa, size: int) -> None:
    told = subprocess.run(
        qemu(isa, "-m", str(size // MEGABYTE), "-monitor", "stdio"),
        input="info mtree -f\nquit\n", check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    row = re.compile(
        r" +(\w+)-(\w+) \(prio 0, ram\): (?:pc|mach-virt|riscv_virt_board)\.ram(?: @(\w+))?"
    )
    flat = {m.groups() for line in told.splitlines() if (m := row.fullmatch(line.rstrip()))}
    assert flat
    mapped = isa.board.memory_map(size)
    for low, high, offset in flat:
        first, last, place = int(low, 16), int(high, 16), int(offset or "0", 16)
        (inside,) = [m for m in mapped if m[0] <= first < m[0] + m[2]]
        assert last < inside[0] + inside[2]
        assert place - inside[1] == first - inside[0]
    # Each of them begins and ends where QEMU's memory does.
    ends = {int(low, 16) for low, _, _ in flat}, {int(high, 16) + 1 for _, high, _ in flat}
    for first, _, length in mapped:
        assert first in ends[0] and first + length in ends[1]
    assert sum(length for _, _, length in mapped) == size


def test_ports_are_named_as_linux_names_uarts(isa: Isa) -> None:
    """Names are as in Documentation/admin-guide/devices.txt.

    ttyS0 and so on are 8250s and similar ports in the order of detection, the machine's own before
    those of cards; ttyAMA0 is a PL011.
    """
    console = ["-chardev", "null,id=c", "-serial", "chardev:c"]
    told = subprocess.run(
        qemu(isa, "-m", "64M", "-monitor", "stdio", *(console if not isa.board.SERIAL[0] else [])),
        input="info qtree\nquit\n", check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    own = "ttyAMA" if "dev: pl011" in told else "ttyS"
    kinds = [(device and "ttyS") or own for device in isa.board.SERIAL]
    names = [f"{kind}{kinds[:n].count(kind)}" for n, kind in enumerate(kinds)]
    line = boot_of(isa).command_line(1 << 30, 1 << 30, "", own=True)
    told = dict(word.split("=", 1) for word in line.split() if "=" in word)
    assert [told[name] for name in ("console", "kinst_output", "kinst_control")] == names


@pytest.mark.parametrize("bits", range(64))
def test_an_amd64_cpu_takes_interrupts(bits: int) -> None:
    """Flag IF is bit 9 (SDM volume 1, 3.4.3)."""
    board = load("amd64").board
    assert board.interrupts_off({"eflags": 1 << bits}) == (bits != 9)


def test_an_arm64_cpu_that_holds_back_its_timer() -> None:
    """DDI 0487: PSTATE.I is bit 7; in CNTV_CTL_EL0, bit 0 enables, 1 masks, and 2 tells that it is
    time."""
    board = load("arm64").board
    for control in range(8):
        for masked in (0, 1 << 7):
            registers = {"CNTV_CTL_EL0": control, "cpsr": 5 | masked}
            assert board.interrupts_off(registers) == (control == 0b101 and bool(masked))
    assert not board.interrupts_off({"cpsr": 1 << 7})  # a stub that does not tell
    assert board.is_lost({"cpsr": 1 << 7}) is False
    assert load("amd64").board.is_lost({"eflags": 0}) is False


def test_the_package_that_has_its_qemu(isa: Isa) -> None:
    packages = dict(re.findall(r"^(\S+): (\S+)$", TOOLS.read_text(), re.MULTILINE))
    assert packages[isa.board.QEMU] == isa.board.PACKAGE


def test_memory_that_a_kernel_is_told_to_leave_alone() -> None:
    """mem= in Documentation/admin-guide/kernel-parameters.txt.

    On amd64 it is an address, on the others a size, from the start of RAM.
    """
    end = 0xC000_0000

    def limit(name: str, start: int) -> str:
        line = boot_of(load(name)).command_line(end, end - start, "", own=False)
        return next(word for word in line.split() if word.startswith("mem="))

    assert limit("amd64", 0) == f"mem={end}"
    for name in ("arm64", "riscv64"):
        board = load(name).board
        ((start, _, _),) = board.memory_map(4 * GIGABYTE)
        assert limit(name, start) == f"mem={end - start}"


# Registers that a function may not change, by the compiler: a function that changes every register
# saves those, and so names them in its text.
CHANGED = {
    "amd64": ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{n}" for n in range(8, 16))],
    "arm64": [f"x{n}" for n in (*range(18), *range(19, 31))],
    "riscv64": ["ra", *(f"t{n}" for n in range(7)), *(f"s{n}" for n in range(12)),
                *(f"a{n}" for n in range(8))],
}  # fmt: skip


def saved(isa: Isa, changed: Sequence[str], folder: Path) -> set[str]:
    """Return the registers that a C function saves if it changes them."""
    lines = []
    for name in changed:
        # x29 is the compiler's frame pointer, which nothing else may change.
        how = ' __attribute__((optimize("no-omit-frame-pointer")))' if name == "x29" else ""
        body = "" if name == "x29" else f'__asm__ volatile ("" ::: "{name}");'
        lines.append(f"{how} void with_{name}(void) {{ {body} }}")
    (folder / "f.c").write_text("\n".join(lines))
    leaf = ["-mno-omit-leaf-frame-pointer"] if isa.name == "arm64" else []
    command = [COMPILERS[isa.name], "-O1", "-fomit-frame-pointer", *leaf, "-S", "-o", "f.s", "f.c"]
    subprocess.run(command, cwd=folder, check=True)
    kept = set()
    made = (folder / "f.s").read_text()
    for name, text in re.findall(r"^with_(\w+):\n(.*?)^\t\.size", made, re.M | re.S):
        code = [line.partition("#")[0] for line in text.splitlines() if line.startswith("\t")]
        if any(re.search(rf"\b{name}\b", line) for line in code if line[1] != "."):
            kept.add(name)
    return kept


def test_what_a_call_changes_is_what_the_compiler_does_not_save(isa: Isa, tmp_path: Path) -> None:
    board = isa.board
    every = CHANGED[isa.name]
    kept = saved(isa, every, tmp_path) - {board.LINK}
    assert kept and kept != set(every)
    # A function saves the link register for itself: the caller's call has changed it.
    changed = {*every, isa.pc, isa.sp} - kept
    # Linux keeps the shadow stack in x18, if it has one.
    spelled = {"fp": "s0"}
    told = {spelled.get(name, name) for name in board.CALL_CHANGES} - {"x18"}
    assert told == changed
    by_name = {register.d_name: register.gdb_name for register in isa.registers}
    names_kept = {spelled.get(by_name[name], by_name[name]) for name in isa.kept_registers}
    assert names_kept == kept


def test_arguments_and_results_are_where_the_compiler_has_them(isa: Isa, tmp_path: Path) -> None:
    """Arguments are in registers, the rest on the stack, from its top at the first instruction."""
    count = len(isa.argument_slots)
    every = ", ".join(f"long a{n}" for n in range(count + 2))
    asked = [f'__asm__ volatile ("#in {n} %0" :: "r"(a{n}));' for n in range(count)]
    asked += [f'__asm__ volatile ("#at {n} %0" :: "m"(a{count + n}));' for n in range(2)]
    functions = [f"void f{n}({every}) {{ {text} }}" for n, text in enumerate(asked)]
    functions.append('long g(void); void f(void) { __asm__ volatile ("#out 0 %0" :: "r"(g())); }')
    (tmp_path / "f.c").write_text("\n".join(functions))
    command = [COMPILERS[isa.name], "-O2", "-fomit-frame-pointer", "-S", "-o", "f.s", "f.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    told = re.findall(r"#(in|at|out) (\d+) (.+)", (tmp_path / "f.s").read_text())
    names = {register.slot: register.gdb_name for register in isa.registers}
    arguments = {int(n): text.lstrip("%") for kind, n, text in told if kind == "in"}
    assert [arguments[n] for n in range(count)] == [names[slot] for slot in isa.argument_slots]
    places = {int(n): int("0" + re.sub(r"\D", "", text)) for kind, n, text in told if kind == "at"}
    assert places == {0: isa.stack_arguments, 1: isa.stack_arguments + 8}
    assert [text.lstrip("%") for kind, _, text in told if kind == "out"] == [names[isa.result_slot]]
