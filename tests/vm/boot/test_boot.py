"""kinst --boot: what is traced equals what the kernel itself says about its boot."""

from __future__ import annotations

import re

import pytest

import kinst as library
from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepared
from tests.tiers import FIRST, ISAS
from tests.vm.command import Result, kinst

pytestmark = pytest.mark.vm

ALL = [FIRST, *(pytest.param(isa, marks=[pytest.mark.full, pytest.mark.slow]) for isa in ISAS
                if isa != FIRST)]  # fmt: skip
INITCALLS = """
fbt::do_one_initcall:entry { printf("%d calls %a\\n", tid, arg0); self->at = timestamp; }
fbt::do_one_initcall:return { printf("took %d\\n", timestamp - self->at); }
"""
# Lines that begin with a device are about PCI quirks (drivers/pci/quirks.c, fixup_debug_start()).
_CALLING = re.compile(r"^\[[^]]*\] calling  (\S+?)\+0x\S+ @ (\d+)$", re.M)
_RETURNED = re.compile(r"^\[[^]]*\] initcall (\S+?)\+0x\S+ returned \S+ after (\d+) usecs *$", re.M)


def traced(isa: str, program: str, command: str = "", append: str = "") -> Result:
    words = ("--boot", f"--vm={isa}", "-q", "-n", program)
    return kinst(*words, *(("-c", command) if command else ()), append=append).good()


@pytest.mark.parametrize("isa", ALL)
def test_initcalls_are_those_that_the_kernel_logs(isa: str) -> None:
    """All initcalls of the boot, init code among them, in the kernel's order, by its names; each
    took at least as long as the kernel says.

    Thread 0 runs those of the consoles without do_one_initcall() (kernel/printk/printk.c,
    console_init())."""
    done = traced(isa, INITCALLS, "dmesg", "initcall_debug log_buf_len=4M")
    found = re.findall(r"^(\d+) calls \S*`(\S+)$", done.out, re.M)
    logged = [(tid, name) for name, tid in _CALLING.findall(done.guest) if tid != "0"]
    assert len(logged) > 200
    addresses = Addresses(isa)
    assert len(found) == len(logged)
    for (tid, name), (other_tid, other) in zip(found, logged, strict=True):
        assert tid == other_tid and addresses.of(name) & addresses.of(other), (name, other)
    took = [int(ns) / 1000 for ns in re.findall(r"^took (\d+)$", done.out, re.M)]
    times = [int(usecs) for _, usecs in _RETURNED.findall(done.guest)][-len(took) :]
    assert len(took) == len(times) == len(found)
    assert all(ours > 0.9 * theirs - 100 for ours, theirs in zip(took, times, strict=True))


class Addresses:
    """Addresses of a kernel's functions by name, for functions that have several names."""

    def __init__(self, isa: str) -> None:
        kernel = prepared(isa)
        assert kernel is not None
        self._elf = open_elf(kernel.debug)

    def of(self, name: str) -> set[int]:
        """Return the linked addresses of the symbols with this name, with or without kinst's
        number (init@2)."""
        symbols, plain = self._elf.symbols, name.partition("@")[0]
        return {int(symbols.address[k]) for k in symbols.indexes(plain)}


def test_the_first_instruction_is_in_thread_0_and_init_is_the_last() -> None:
    """The order of start_kernel(), the kernel's threads 1 and 2, and the first program."""
    program = """
    fbt::start_kernel:entry
    { printf("%s %d %d %d\\n", execname, pid, cpu, curthread == &`init_task); }
    fbt::kernel_clone:return { printf("thread %d\\n", arg1); }
    fbt::run_init_process:entry { printf("%s as %d\\n", stringof(arg0), pid); }
    fbt::kernel_execve:entry /pid == 1/ { printf("too late\\n"); }
    END { printf("end\\n"); }
    """
    done = traced(FIRST, program)
    lines = done.out.split("\n")
    assert lines[0] == "swapper 0 0 1" or lines[0] == "swapper/0 0 0 1"
    threads = [int(line.split()[1]) for line in lines if line.startswith("thread ")]
    assert threads == list(range(1, len(threads) + 1)) and len(threads) > 20
    assert lines[-4:-1] == ["/init as 1", "end", ""] or lines[-3:] == ["/init as 1", "end", ""]


def test_kaslr_moves_each_boot() -> None:
    """The kernel's own symbol table says where it is: elsewhere at each boot."""
    program = 'fbt::start_kernel:entry { printf("%p\\n", &`init_task); }'
    found = set()
    for _ in range(2):
        done = traced(FIRST, program, "grep ' init_task$' /proc/kallsyms")
        assert int(done.out, 16) == int(done.guest.split()[0], 16)
        found.add(done.out)
    assert len(found) == 2


def test_the_text_is_that_of_a_boot_without_probes() -> None:
    """Code that the kernel rewrites while it boots had probes on it: starts of functions, where
    calls of its own tracer become nops, and jump labels."""
    program = """
    fbt::start_kernel:entry, fbt::setup_arch:entry, fbt::kernel_init:entry
    { @[probefunc] = count(); }
    kinst::wake_up_new_task: { @[probefunc] = count(); }
    """
    texts = []
    for probed in (True, False):
        options = {"trace_boot": True} if probed else {"cold": True}
        with library.boot(append="nokaslr", **options) as machine:
            if probed:
                counts = machine.run(program, command="true").aggregations[""]
                assert counts[("setup_arch",)] == counts[("start_kernel",)] == 1
                assert counts[("wake_up_new_task",)] > 500
            else:
                machine.execute("true")
            running = machine._started.machine
            running.target.stop()
            low, high = running.text
            texts.append(running.target.read(low, high - low))
    assert len(texts[0]) > 10 << 20 and texts[0] == texts[1]


def test_inside_of_what_boot_replaces_nothing_is_planted() -> None:
    """The file's own table says where: struct alt_instr of Linux 6.1 has the distance of the code
    from the entry, and at 10 its length."""
    kernel = prepared(FIRST)
    assert kernel is not None
    elf = open_elf(kernel.debug)
    table = elf.section(".altinstructions")
    function = elf.address("read_tsc") or 0
    assert table is not None and function
    data = elf.data(table)
    inside, starts = set(), set()
    for at in range(0, len(data), 12):
        start = table.address + at + int.from_bytes(data[at : at + 4], "little", signed=True)
        starts.add(start - function)
        inside.update(range(start - function + 1, start - function + data[at + 10]))
    words = ("--boot", "-l", "-v", "-n", "kinst::read_tsc:")
    rows = re.findall(r"read_tsc +(\d+)\s+(.*)", kinst(*words).good().out)
    found = {int(offset) for offset, row in rows if "boot replaces the code around it" in row}
    offsets = {int(offset) for offset, _ in rows}
    assert found == offsets & inside and offsets & (starts - inside)
