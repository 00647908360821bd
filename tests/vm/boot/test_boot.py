"""kinst --boot: what is traced equals what the kernel itself says about its boot."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

import kinst as library
from kinst.events import Frame, Record
from kinst.image.elf import STT_FUNC, open_elf
from kinst.kernels.fetch import prepared
from kinst.views import boot_timeline
from kinst.views.picture import Heading
from tests.tiers import FIRST, ISAS
from tests.vm.boot.kernel_tables import jump_labels
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

# Up to the end of this initcall the kernel's clock goes on with its ticks, so that a short initcall
# may seem to take a whole tick (kernel/time/clocksource.c; CONFIG_HZ=250).
CLOCK_IS_CHOSEN, TICK = "clocksource_done_booting", 4000  # us
# Lines that begin with a device are about PCI quirks (drivers/pci/quirks.c, fixup_debug_start()).
_CALLING = re.compile(r"^\[[^]]*\] calling  (\S+?)\+0x\S+ @ (\d+)$", re.M)
_RETURNED = re.compile(r"^\[[^]]*\] initcall (\S+?)\+0x\S+ returned \S+ after (\d+) usecs *$", re.M)


@dataclass(frozen=True)
class Boot:
    """A boot that was traced up to the end of a command.

    Attributes:
        records: records of the program of `kinst boot`, and of MORE.
        parts: records of the program of `kinst boot` alone.
        log: the kernel's log, with its own lines about its initcalls.
        symbol: address of init_task, as the kernel says; 0 if its list has no data symbols.
        text: bytes of the kernel's code after the trace.
    """

    records: list[Record]
    parts: list[Record]
    log: str
    symbol: int
    text: bytes

    def at(self, probe: str) -> list[tuple[object, ...]]:
        """Return the values that were recorded at a probe, in order."""
        found = (one for one in self.records if str(one.probe.name).endswith(probe))
        return [tuple(value.value for value in one.values) for one in found]


BOOTS, BOOT_SECONDS = 2, 400.0  # half a minute on an idle host
COMMAND = "dmesg; grep ' init_task$' /proc/kallsyms || echo 0"
LOGGED = "initcall_debug log_buf_len=4M"
MORE = """
fbt::start_kernel:entry { trace(execname); trace(pid); trace(cpu); trace(curthread); }
fbt::kernel_clone:return { trace(arg1); }
fbt::run_init_process:entry { trace(stringof(arg0)); trace(pid); }
"""


def text_of(machine: library.Machine) -> bytes:
    """Return the bytes of the kernel's code."""
    running = machine._started.machine
    running.target.stop()
    low, high = running.text
    return running.target.read(low, high - low)


def booted(isa: str, append: str) -> Boot:
    """Trace a boot. Two jump labels of a function that threads call have breakpoints, too.

    About one boot in some hundred hangs in QEMU, with or without kinst, which cannot start it again
    once it has traced a part of it.
    """
    kernel = prepared(isa)
    assert kernel is not None
    elf = open_elf(kernel.debug)
    code = np.flatnonzero(elf.symbols.kind == STT_FUNC).tolist()
    names = {elf.symbols.name_of(k) for k in code}
    labels = jump_labels(elf, "wake_up_new_task") if isa == FIRST else []
    sites = "".join(f"kinst::wake_up_new_task:{at} {{ @ = count(); }}\n" for at in labels)
    for _ in range(BOOTS):
        with library.boot(isa, append=f"{append} {LOGGED}".strip(), trace_boot=True) as machine:
            calls, functions = machine.boot_functions()
            present = [one for one in functions if one in names]
            program = boot_timeline.program_of(calls, present) + MORE + sites
            done = machine.run(program, command=COMMAND, seconds=BOOT_SECONDS)
            if done.reason == "command":
                assert not labels or done.aggregations[""][()] > 100
                log, _, line = done.output.decode().rstrip().rpartition("\n")
                own = (*calls, *present)
                parts = [one for one in done.records if one.probe.name.function in own]
                symbol = int(line.split()[0], 16)
                return Boot(done.records, parts, log, symbol, text_of(machine))
            print(f"{done.reason} after {len(done.records)} records: {done.records[-1:]}")
    raise AssertionError(f"{BOOTS} traced boots in a row did not end with the command")


@pytest.fixture(scope="module")
def boot() -> Boot:
    """Return a boot at the kernel's linked addresses, so that its code can be compared."""
    return booted(FIRST, "nokaslr")


def check_initcalls(isa: str, boot: Boot) -> None:
    """Check that all initcalls, init code among them, are in the kernel's order and by its names,
    and that each took at least as long as the kernel says.

    Thread 0 runs those of the consoles without do_one_initcall() (kernel/printk/printk.c,
    console_init())."""
    calls = [one for one in boot.records if one.probe.name.function == "do_one_initcall"]
    logged = [(int(tid), name) for name, tid in _CALLING.findall(boot.log) if tid != "0"]
    entries = [one for one in calls if one.probe.name.name == "entry"]
    assert len(logged) > 200 and len(entries) == len(logged)
    addresses = Addresses(isa)
    for one, (tid, name) in zip(entries, logged, strict=True):
        thread, called = (value.value for value in one.values)
        assert isinstance(called, Frame) and thread == tid
        assert addresses.of(called.function) & addresses.of(name), (called.function, name)
    begun: dict[object, int] = {}
    took = []
    for one in calls:
        thread = one.values[0].value
        if one.probe.name.name == "entry":
            begun[thread] = one.time_ns
        else:
            took.append((one.time_ns - begun[thread]) / 1000)
    times = [int(usecs) for _, usecs in _RETURNED.findall(boot.log)][-len(took) :]
    assert len(took) == len(times) == len(logged)
    names = [name for _, name in logged]
    of_ticks = names.index(CLOCK_IS_CHOSEN) + 1
    short = [
        (name, ours, theirs)
        for k, (name, ours, theirs) in enumerate(zip(names, took, times, strict=True))
        if ours <= 0.9 * (theirs - (TICK if k < of_ticks else 0)) - 100
    ]
    assert not short, short


def test_initcalls_are_those_that_the_kernel_logs(boot: Boot) -> None:
    check_initcalls(FIRST, boot)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != FIRST])
def test_initcalls_of_other_isas(isa: str) -> None:
    check_initcalls(isa, booted(isa, ""))


def test_the_first_instruction_is_in_thread_0_and_init_is_the_last(boot: Boot) -> None:
    """The order of start_kernel(), the kernel's threads 1 and 2, and the first program."""
    ((name, pid, cpu, thread),) = boot.at(":start_kernel:entry")
    assert name in ("swapper", "swapper/0") and pid == cpu == 0 and thread == boot.symbol
    assert boot.at(":run_init_process:entry") == [("/init", 1)]
    functions = [one.probe.name.function for one in boot.records]
    first = functions[: functions.index("run_init_process")].count("kernel_clone")
    threads = [value for (value,) in boot.at(":kernel_clone:return")]
    # Of two threads that fork at the same time, the first to begin need not be the first to return.
    assert sorted(threads[:first]) == list(range(1, first + 1)) and 20 < first < len(threads)


def test_its_picture_has_its_parts(boot: Boot) -> None:
    """Early steps, init code and the last step before the first program have bars, in order."""
    svg = boot_timeline.timeline_svg(boot_timeline.parts_of(boot.parts), Heading("A boot"), 0)
    names = re.findall(r"<title>(\w[\w.]*): [^,<]+, from [^,<]+ on, thread \d+</title>", svg)
    assert len(names) > 300 and f"{len(names)} calls in" in svg
    order = ["setup_arch", "console_init", "smp_init", "populate_rootfs", "free_initmem"]
    assert sorted(order, key=names.index) == order


def test_the_text_is_that_of_a_boot_without_probes(boot: Boot) -> None:
    """Code that the kernel rewrites while it boots had probes on it: starts of functions, where
    calls of its own tracer become nops, and jump labels."""
    with library.boot(append=f"nokaslr {LOGGED}", cold=True, accel="tcg") as machine:
        machine.execute("true")
        text = text_of(machine)
    assert len(text) > 10 << 20 and len(boot.text) == len(text)
    apart = np.flatnonzero(np.frombuffer(text, np.uint8) != np.frombuffer(boot.text, np.uint8))
    # Not the bytes themselves: pytest would compare them for minutes.
    assert not len(apart), [(hex(k), text[k : k + 8], boot.text[k : k + 8]) for k in apart[:20]]


@pytest.mark.slow
def test_kaslr_moves_each_boot() -> None:
    """The kernel's own symbol table says where it is: elsewhere at each boot."""
    program = 'fbt::start_kernel:entry { printf("%p\\n", &`init_task); }'
    found = set()
    for _ in range(2):
        command = "grep ' init_task$' /proc/kallsyms"
        done = kinst("--boot", "-q", "-n", program, "-c", command).good()
        assert int(done.out, 16) == int(done.guest.split()[0], 16)
        found.add(done.out)
    assert len(found) == 2


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
