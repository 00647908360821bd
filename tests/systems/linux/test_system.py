"""The Linux system against running kernels, with and without KASLR.

The guest itself is the authority, through a shell on its serial line: /proc/kallsyms, /proc/iomem,
/proc/uptime, the kernel's own kprobe blacklist, tracefs, dmesg.  Memory is read through the file
of the guest's RAM, with a page walk of the test.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import capstone
import pytest

from kinst.core.errors import KinstError
from kinst.core.system import Access, Clock, Facts
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf, open_elf
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.ftrace import USED as FTRACE_USED
from kinst.systems.linux.isafacts import facts_of
from kinst.systems.linux.refusals import BUG, CHANGED, JUMP_LABEL, STATIC_CALL
from kinst.systems.linux.system import Linux, attach
from tests import second_boot
from tests.systems.linux.linux_guest import SECONDS, Guest

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def vmlinux(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug, 62)


ISA = load("amd64")


class Attached:
    def __init__(self, guest: Guest, vmlinux: Elf, cache: Path) -> None:
        self.guest = guest
        self.symbols = guest.symbols("_text|init_top_pgt")
        self.text = self.symbols["_text"]
        guest.map_kernel(self.text, self.symbols["init_top_pgt"])
        self.cache = cache
        self.linux: Linux = attach(guest, DebugInfo(vmlinux), self.text, LINUX, ISA, cache=cache)


@pytest.fixture(scope="module")
def booted(
    prepared: Prepared, vmlinux: Elf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Attached]]:
    """Return a function: "nokaslr", "kaslr", "kaslr again" or "one cpu" -> the single guest booted
    so."""
    started: dict[str, Attached] = {}
    guests: list[Guest] = []

    def boot(mode: str) -> Attached:
        if mode not in started:
            folder = tmp_path_factory.mktemp(mode.replace(" ", "-"))
            append, cpus = "nokaslr" if mode == "nokaslr" else "", 1 if mode == "one cpu" else 2
            guest = second_boot.booted(
                lambda: Guest(prepared, folder, append, cpus), Guest.comes_up, Guest.close
            )
            guests.append(guest)
            started[mode] = Attached(guest, vmlinux, folder / "cache")
        return started[mode]

    yield boot
    for guest in guests:
        guest.close()


@pytest.fixture(scope="module", params=["nokaslr", "kaslr"])
def running(request: pytest.FixtureRequest, booted: Callable[[str], Attached]) -> Attached:
    return booted(request.param)


def test_slide_release_and_addresses(running: Attached, vmlinux: Elf) -> None:
    linux, guest = running.linux, running.guest
    assert linux.facts.slide == running.text - 0xFFFFFFFF81000000
    assert linux.facts.release == guest.sh("uname -r").strip()
    assert linux.facts.os == "Linux" and linux.facts.cpus == 2
    theirs = guest.symbols("vfs_.*|ksys_.*|do_sys.*|tcp_v4_.*|asm_exc_int3")
    assert len(theirs) > 100
    for name, address in theirs.items():
        if name.startswith("__") or vmlinux.address(name) is None:
            continue
        assert address in [f.address for f in linux.lookup(name)], name
    assert linux.facts.trap_hook == guest.symbols("exc_int3")["exc_int3"]


def test_kaslr_moves_the_kernel(booted: Callable[[str], Attached]) -> None:
    assert booted("nokaslr").linux.facts.slide == 0
    # One of the some 480 addresses that the kernel draws from is where it was linked.
    assert any(booted(mode).linux.facts.slide > 0 for mode in ("kaslr", "kaslr again"))


def test_page_tables(running: Attached) -> None:
    theirs = running.guest.symbols("init_top_pgt")
    assert running.linux.page_tables == theirs["init_top_pgt"]


def test_attach_again(running: Attached, prepared: Prepared) -> None:
    linux = attach(
        running.guest, DebugInfo(prepared.debug), running.text, LINUX, ISA, cache=running.cache
    )
    (function,) = linux.lookup("vfs_read")
    assert linux.site_refusal(function.address, 5) == "" and linux.frame_rule(function.address)


class Altered:
    """A guest's memory in which one string is replaced by another of the same length."""

    def __init__(self, guest: Guest, old: bytes, new: bytes) -> None:
        self.guest, self.old, self.new = guest, old, new

    def read(self, address: int, size: int) -> bytes:
        return self.guest.read(address, size).replace(self.old, self.new)


def test_other_kernel_is_named(running: Attached, vmlinux: Elf) -> None:
    old = bytes.fromhex(vmlinux.build_id)
    with pytest.raises(KinstError) as caught:
        attach(
            Altered(running.guest, old, bytes(19) + b"\7"),
            DebugInfo(vmlinux),
            running.text,
            LINUX,
            ISA,
        )
    message = str(caught.value)
    assert vmlinux.build_id in message and bytes(19).hex() + "07" in message
    assert message.count(running.linux.facts.release) == 2
    # If its text was not found at its start, its version line leads to it.
    found = attach(running.guest, DebugInfo(vmlinux), running.text + (2 << 20), LINUX, ISA)
    assert found.facts.slide == running.linux.facts.slide
    with pytest.raises(KinstError, match="does not know Linux on vax"):
        facts_of("vax")


def value(guest: Guest, access: Access, base: int) -> int | bytes:
    """Return the value that in-target code finds by an Access (kinst/core/system.py) on one
    CPU."""
    assert access.per_cpu is not None
    at = base + access.per_cpu & (1 << 64) - 1
    for offset in access.offsets:
        at = int.from_bytes(guest.read(at, 8), "little") + offset
    raw = guest.read(at, access.size)
    if access.string:
        return raw.split(b"\0")[0]
    return int.from_bytes(raw, "little", signed=access.signed)


def read_while_current(
    guest: Guest, facts: Facts, name: bytes, wanted: dict[str, int]
) -> tuple[int, dict[str, int | bytes]]:
    """Return the per-CPU base of the CPU whose current thread is `name`, and its built-ins there.

    The guest runs while it is read: the thread may be off its CPU for a moment, or leave it
    between two reads, so values count only if it held the CPU before and after.
    """
    deadline = time.monotonic() + SECONDS
    seen: set[int | bytes] = set()
    mine: dict[str, int | bytes] = {}
    while time.monotonic() < deadline:
        for base in facts.per_cpu_bases:
            before = value(guest, facts.builtins["curthread"], base)
            current = value(guest, facts.builtins["execname"], base)
            mine = {n: value(guest, facts.builtins[n], base) for n in wanted}
            after = value(guest, facts.builtins["curthread"], base)
            seen.add(current)
            if before == after and current == name:
                return base, mine
        time.sleep(0.01)
    raise AssertionError(f"{name!r} was never current; seen: {seen}, last {mine}")


def test_builtins_of_a_running_thread(running: Attached) -> None:
    guest, facts = running.guest, running.linux.facts
    guest.sh("helper spin 1234 567 > /tmp/spinner &")
    shown = guest.sh("until [ -s /tmp/spinner ]; do sleep 0.1; done; cat /tmp/spinner")
    found = re.search(r"spinning (\d+) (\d+) (\d+) (\d+) (\d+)", shown)
    assert found, shown
    pid, tid, ppid, uid, gid = map(int, found.groups())
    assert pid != tid and (uid, gid) == (1234, 567)
    expected = {"pid": pid, "tid": tid, "ppid": ppid, "uid": uid, "gid": gid}
    try:
        base, mine = read_while_current(guest, facts, b"kinst-spinner", expected)
        assert mine == expected
        cpu = facts.builtins["cpu"]
        assert [value(guest, cpu, b) for b in facts.per_cpu_bases] == [0, 1]
        current = value(guest, facts.builtins["curthread"], base)
        assert isinstance(current, int) and current >> 47 == (1 << 17) - 1
    finally:
        guest.sh(f"kill {pid}; rm /tmp/spinner")


def converted(clock: Clock, cycles: int) -> int:
    """Convert the time-stamp counter by the clock, to nanoseconds."""
    return clock.base_ns + ((cycles - clock.base_cycles) * clock.mult >> clock.shift)


def steady_clock(running: Attached, vmlinux: Elf) -> Clock:
    """Return the kernel's clock when two reads agree.

    kinst reads it on a stopped machine, but this one runs, so that a tick, the first after seconds
    of idling, may come in between.
    """
    last: Clock | None = None
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        clock = attach(
            running.guest, DebugInfo(vmlinux), running.text, LINUX, ISA, cache=running.cache
        ).facts.clock
        assert clock is not None
        if last and abs(converted(last, clock.base_cycles) - clock.base_ns) < 2_000_000:
            return clock
        last = clock
    raise AssertionError(f"the clock was never the same twice: {last}")


def test_clock_is_the_guests(running: Attached, vmlinux: Elf) -> None:
    clock = steady_clock(running, vmlinux)
    *cycles, monotonic, wall = map(int, running.guest.sh("helper now").split()[-4:])
    before, after = (converted(clock, c) for c in cycles)
    off = 20_000_000  # some ticks of the guest
    assert before - off < monotonic < after + off
    assert before - off < wall - clock.wall_offset < after + off


def test_the_kernels_own_blacklist_is_refused(running: Attached) -> None:
    linux = running.linux
    shown = running.guest.sh("cat /sys/kernel/debug/kprobes/blacklist")
    rows = re.findall(r"^0x([0-9a-f]+)-0x([0-9a-f]+)\s+(\S+)", shown, re.M)
    assert len(rows) > 150
    checked = 0
    for start, end, name in rows:
        function = linux.function_at(int(start, 16))
        if function is None or start == end:
            continue
        checked += 1
        assert linux.refusals(function), name
    assert checked > 150


def test_functions_refused_and_not(running: Attached) -> None:
    linux = running.linux
    reasons = {
        "exc_int3": "noinstr", "asm_exc_int3": "entry", "kprobe_int3_handler": "do-not-probe",
        "start_kernel": "--boot traces it", "__SCT__cond_resched": "static call",
        "__x86_return_thunk": "thunk", "copy_from_kernel_nofault": "every probe",
        "search_exception_tables": "hook", "do_trap.cold": "part of do_trap",
        "relocate_kernel": "copy", "__enc_copy": "copy", "__fentry__": "ftrace",
    }  # fmt: skip
    for name, reason in reasons.items():
        for function in linux.lookup(name):
            assert reason in linux.refusals(function), name
        assert linux.lookup(name), name
    for name in ("vfs_read", "schedule", "__do_softirq", "do_syscall_64", "handle_mm_fault"):
        (function,) = linux.lookup(name)
        expected = "noinstr" if name == "do_syscall_64" else ""
        assert (expected in linux.refusals(function)) and bool(expected) == bool(
            linux.refusals(function)
        ), name


def instructions(running: Attached, step: int) -> Iterator[tuple[int, int]]:
    """Return address and size of the instructions of every step-th function that is not
    refused."""
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    for function in running.linux.functions()[::step]:
        if not running.linux.refusals(function):
            code = running.guest.read(function.address, function.size)
            for address, size, _, _ in machine.disasm_lite(code, function.address):
                yield address, size


def test_nearly_everything_can_be_planted(running: Attached, vmlinux: Elf) -> None:
    linux = attach(
        running.guest,
        DebugInfo(vmlinux),
        running.text,
        LINUX,
        ISA,
        cache=running.cache,
        hook_bugs=True,
    )
    sites = list(instructions(running, 9))
    assert len(sites) > 200_000
    reasons = Counter(linux.site_refusals(sites))
    assert reasons[""] / len(sites) > 0.995, reasons
    assert set(reasons) <= {"", JUMP_LABEL, STATIC_CALL}
    assert reasons[JUMP_LABEL] > 100 and reasons[STATIC_CALL] > 100
    # Without the hook, traps of BUG and WARN are refused too, and nothing else changes.
    without = Counter(running.linux.site_refusals(sites))
    assert without.pop(BUG) == reasons[""] - without[""] > 100


def test_changed_text_is_refused(running: Attached) -> None:
    guest, linux = running.guest, running.linux
    (function,) = linux.lookup("tcp_v4_connect")
    at = function.address + 5
    old = guest.read(at, 1)
    assert linux.site_refusal(at, 2) == ""
    guest.write(at, b"\xcc")
    assert linux.site_refusal(at, 2) == CHANGED
    guest.write(at, old)
    assert linux.site_refusal(at, 2) == ""


def test_fixups(running: Attached, vmlinux: Elf) -> None:
    linux = running.linux
    (copy,) = linux.lookup("copy_from_kernel_nofault")
    marked = [a for a in range(copy.address, copy.address + copy.size) if linux.has_fixup(a)]
    # Loads of 8, 4, 2 and 1 bytes.
    assert len(marked) == 4
    ends = {linux.fixup(a) for a in marked}
    assert all(end and copy.address < end < copy.address + copy.size for end in ends)
    assert linux.fixup(copy.address) is None
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    for address in marked:
        text = next(machine.disasm_lite(running.guest.read(address, 16), address, 1))
        assert text[2] in ("mov", "movzx") and "[" in text[3]


NOP_AGAIN = bytes.fromhex("0f1f440008")  # the same instruction with another displacement


def tracing(guest: Guest, tracer: str, functions: str = "") -> None:
    guest.sh(f"cd /sys/kernel/tracing; echo {functions} > set_ftrace_filter")
    guest.sh(f"echo {tracer} > /sys/kernel/tracing/current_tracer")


def test_ftrace_leaves_claimed_functions_alone(booted: Callable[[str], Attached]) -> None:
    """The last test of this guest: in the end ftrace is made to stop itself.

    One CPU: QEMU before 8.1 translates code without holding its page, so that with two a
    breakpoint that ftrace writes and removes again may stay in the translated code (both CPUs were
    then seen to trap there for ever, one time in some 20).
    """
    attached = booted("one cpu")
    guest, linux = attached.guest, attached.linux
    read, write = (linux.lookup(n)[0].address for n in ("vfs_read", "vfs_write"))
    # A function that ftrace uses is refused, one that it does not use is not.
    tracing(guest, "function", "vfs_read")
    assert linux.site_refusal(read, 5) == FTRACE_USED and linux.site_refusal(write, 5) == ""
    record = linux.ftrace.record(read)
    assert record and record.in_use
    assert linux.ftrace.record(read, linux.ftrace.flags_now()) == record
    with pytest.raises(KinstError, match="the kernel's ftrace traces the function"):
        linux.claims([read])
    tracing(guest, "nop")
    assert linux.site_refusal(read, 5) == "" and linux.ftrace.idle()
    # The answers for many at once are those for each.
    many = [at for at in linux.ftrace.sites.tolist() if linux.site_refusal(at, 5) == ""][:100]
    assert linux.site_refusals([(at, 5) for at in many]) == [""] * 100
    claimed = linux.claims(many)
    assert claimed == [claim for at in many for claim in linux.claims([at])]
    released = linux.releases(claimed)
    assert released == [one for claim in claimed for one in linux.releases([claim])]
    assert all(a[0] == b[0] and a[1] != b[1] for a, b in zip(claimed, released, strict=True))

    # Claimed and patched: a tracer of all functions leaves it alone and does not complain.
    before = guest.read(linux.ftrace.record(read).flags_address, 8)  # type: ignore[union-attr]
    claims = linux.claims([read, read + 5])
    assert len(claims) == 1 and linux.claims([]) == []
    for at, data in claims:
        guest.write(at, data)
    guest.write(read, NOP_AGAIN)
    assert linux.claims([read]) == []
    tracing(guest, "function")
    enabled = guest.sh("grep -E '^vfs_(read|write) ' /sys/kernel/tracing/enabled_functions")
    assert "vfs_write" in enabled and "vfs_read" not in enabled
    assert guest.read(read, 5) == NOP_AGAIN and guest.read(write, 1) == b"\xe8"
    assert linux.releases(claims) == []
    tracing(guest, "nop")
    assert guest.read(read, 5) == NOP_AGAIN and guest.read(write, 5) == bytes.fromhex("0f1f440000")
    guest.write(read, bytes.fromhex("0f1f440000"))
    for at, data in linux.releases(claims):
        guest.write(at, data)
    after = linux.ftrace.record(read)
    assert after and guest.read(after.flags_address, 8) == before
    tracing(guest, "function", "vfs_read")
    assert "vfs_read" in guest.sh("cat /sys/kernel/tracing/enabled_functions")
    tracing(guest, "nop")
    assert "WARNING" not in guest.sh("dmesg")

    # The purpose: without the claim, ftrace finds a byte that is not its own.
    guest.write(write, NOP_AGAIN)
    tracing(guest, "function", "vfs_write")
    assert "WARNING" in guest.sh("dmesg")
