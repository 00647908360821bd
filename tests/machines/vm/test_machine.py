"""The vm target on a real kernel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.core.machine import CommandEnded, Stopped
from kinst.isa.amd64 import board as machine
from kinst.isa.amd64.paging import PAGING
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.cpus import cpus_of
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import MEGABYTE, VmConfig
from kinst.machines.vm.warm import warm_start
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.guest.initramfs import build
from tests import ROOT
from tests.host_processes import wait_until_ended
from tests.machines.booted import ISA, SECONDS, Guest, boot, boot_of, is_gone, wait_for
from tests.second_boot import FIRST_SECONDS

pytestmark = pytest.mark.vm
CALLS = 20000
BOOT = boot_of(ISA)
VIRTUAL_LAYOUT = LINUX.virtual_layout


@pytest.fixture(scope="module")
def guest(prepared: Prepared, guest_program: Callable[[str], Path]) -> Iterator[Guest]:
    made = boot(prepared, {"getppid": guest_program("getppid")})
    yield made
    made.vm.close()


def test_text_is_found_where_the_kernel_says(guest: Guest) -> None:
    assert guest.vm.find_text() == guest.symbol("_text")


def test_memory_reads_as_the_guest_has_it(guest: Guest) -> None:
    version = guest.run("cat /proc/version").encode()
    assert guest.vm.read(guest.symbol("linux_banner"), len(version)) == version
    with pytest.raises(TargetError, match="0x1000 cannot be read"):
        guest.vm.read(0x1000, 8)


def test_memory_is_readable_while_the_machine_runs(guest: Guest) -> None:
    at = guest.symbol("jiffies_64")
    guest.vm.read(at, 8)
    guest.vm.resume()
    first = int.from_bytes(guest.vm.read(at, 8), "little")
    moved = wait_for(lambda: int.from_bytes(guest.vm.read(at, 8), "little") > first)
    guest.vm.stop()
    assert moved


def test_a_commands_output_and_status_arrive_whole_and_in_order(guest: Guest) -> None:
    wanted = "".join(f"{i}\n" for i in range(1, 3001))
    assert guest.run("seq 3000") == wanted
    pid = guest.vm.prepare_command("echo $$; exit 37")
    guest.vm.start_command()
    guest.vm.resume()
    del guest.output[:]
    assert guest.vm.wait(SECONDS) == CommandEnded(37)
    assert int(guest.output) == pid
    guest.vm.stop()


def test_breakpoints_on_all_cpus_at_once(guest: Guest) -> None:
    vm = guest.vm
    function = guest.symbol("__x64_sys_getppid")
    vm.prepare_command("taskset 1 getppid 150 & taskset 2 getppid 150 & getppid 150; wait")
    vm.insert_breakpoint(function)
    vm.start_command()
    vm.resume()
    hits = [0] * vm.cpus
    while isinstance(event := vm.wait(SECONDS), Stopped):
        assert event.pc == function
        hits[event.cpu] += 1
        vm.step_over(event.cpu, function)
        vm.resume()
    assert event == CommandEnded(0)
    assert 450 <= sum(hits) <= 460
    assert min(hits) >= 150
    vm.stop()
    vm.remove_breakpoint(function)


def counting_hook(at: int, back: int, counter: int) -> bytes:
    """Return push rax; movabs rax, counter; lock inc qword [rax]; pop rax; jmp back."""
    code = b"\x50\x48\xb8" + counter.to_bytes(8, "little") + b"\xf0\x48\xff\x00\x58"
    return code + b"\xe9" + (back - (at + len(code) + 5)).to_bytes(4, "little", signed=True)


def test_scratch_is_executed_and_an_alias_of_it_written(guest: Guest) -> None:
    """A function that has run before is diverted into scratch.

    A counter there, at an alias address below a page table that was missing, is incremented.
    """
    divert_and_count(guest)


@pytest.mark.parametrize(
    ("append", "cpu"), [("nokaslr", "Nehalem"), ("", "max")], ids=["pti", "5-level"]
)
def test_scratch_with_other_page_tables(
    prepared: Prepared, guest_program: Callable[[str], Path], append: str, cpu: str
) -> None:
    programs = {"getppid": guest_program("getppid")}
    guest = boot(prepared, programs, append=append, qemu_args=("-cpu", cpu))
    try:
        if cpu == "max":
            assert guest.vm.registers(0)["cr4"] & 1 << 12  # LA57
        else:
            told = guest.run("cat /sys/devices/system/cpu/vulnerabilities/meltdown")
            assert told == "Mitigation: PTI\n"
        divert_and_count(guest)
    finally:
        guest.vm.close()


def divert_and_count(guest: Guest) -> None:
    vm = guest.vm
    function = guest.symbol("__x64_sys_getppid")
    guest.run("getppid 10")
    text = vm.find_text()
    scratch = vm.map_scratch(16 * MEGABYTE, (text, text + 16 * MEGABYTE))
    assert scratch is not None
    # Beside the direct map, in its 512 GB: each process has its own top-level entries, which are
    # not made.
    start, away = direct_map(guest), 5 << 30
    alias = start + away if start >> 39 == start + away >> 39 else start - away
    assert vm.map_alias(alias, 8 * MEGABYTE, 4 * MEGABYTE)
    assert not vm.map_alias(alias, 8 * MEGABYTE, 2 * MEGABYTE)
    vm.scratch_view()[12 * MEGABYTE - 3 : 12 * MEGABYTE] = b"abc"
    assert vm.read(alias + 4 * MEGABYTE - 3, 3) == b"abc"

    before = vm.read(function, 5)
    assert before == bytes.fromhex("0f1f440000")  # ftrace's nop of five bytes
    hook = counting_hook(scratch, function + 5, alias + 64)
    vm.scratch_view()[: len(hook)] = hook
    jump = b"\xe9" + (scratch - function - 5).to_bytes(4, "little", signed=True)
    vm.write_text([(function, jump)])
    guest.run(f"getppid {CALLS}")
    vm.write_text([(function, before)])
    at = 8 * MEGABYTE + 64
    counted = int.from_bytes(vm.scratch_view()[at : at + 8], "little")
    # Shells ask for it as well, when they start.
    assert CALLS <= counted <= CALLS + 10
    guest.run("getppid 10")
    assert int.from_bytes(vm.scratch_view()[at : at + 8], "little") == counted


def direct_map(guest: Guest) -> int:
    at = guest.symbol("page_offset_base")
    return int.from_bytes(guest.vm.read(at, 8), "little")


def test_many_writes_arrive_and_nothing_else_changes(guest: Guest) -> None:
    vm = guest.vm
    text = vm.find_text()
    live = vm.read(text, 4 * MEGABYTE)
    # Beyond the first page, which Linux itself no longer executes, in strides that cross pages;
    # the written bytes are the same as before, except for one function's first bytes.
    places = [(text + at, live[at : at + 5]) for at in range(4093, 4 * MEGABYTE - 5, 197)]
    vm.write_text(places)
    assert vm.read(text, 4 * MEGABYTE) == live
    assert len(places) > 20000
    cave = guest.symbol("__x64_sys_getppid")
    was = vm.read(cave - 8, 32)
    vm.write_text([(cave + 2, b"\x11\x22"), (cave, b"\x33"), (cave + 3, b"\x44")])
    assert vm.read(cave - 8, 32) == was[:8] + b"\x33" + was[9:10] + b"\x11\x44" + was[12:]
    vm.write_text([(cave, was[8:])])
    assert vm.read(cave - 8, 32) == was


def test_breakpoints_are_hit_exactly(guest: Guest) -> None:
    vm = guest.vm
    function = guest.symbol("__x64_sys_getppid")
    vm.prepare_command("getppid 500")
    vm.insert_breakpoint(function)
    vm.start_command()
    vm.resume()
    hits = 0
    while isinstance(event := vm.wait(SECONDS), Stopped):
        assert event.pc == function
        registers = vm.registers(event.cpu)
        assert registers["rip"] == function
        hits += 1
        vm.step_over(event.cpu, function)
        assert vm.registers(event.cpu)["rip"] == function + 5
        vm.resume()
    assert event == CommandEnded(0)
    assert 500 <= hits <= 510
    vm.stop()
    vm.remove_breakpoint(function)
    guest.run("getppid 10")


def test_stop_and_resume_are_idempotent(guest: Guest) -> None:
    for _ in range(3):
        guest.vm.stop()
        guest.vm.stop()
        guest.vm.resume()
        guest.vm.resume()
        assert guest.vm.wait(0.01) is None
    guest.vm.stop()
    assert guest.run("echo alive") == "alive\n"


def test_what_needs_a_stopped_machine_says_so(guest: Guest) -> None:
    guest.vm.resume()
    for action in (
        lambda: guest.vm.registers(0),
        lambda: guest.vm.insert_breakpoint(0xFFFFFFFF81000000),
        lambda: guest.vm.write_text([(guest.vm.find_text(), b"x")]),
    ):
        with pytest.raises(TargetError, match="must be stopped"):
            action()
    guest.vm.stop()


def test_a_panic_is_reported_with_the_console(prepared: Prepared) -> None:
    guest = boot(prepared)
    try:
        guest.vm.prepare_command("echo c >/proc/sysrq-trigger")
        guest.vm.start_command()
        guest.vm.resume()
        event = guest.vm.wait(SECONDS)
        assert is_gone(event, "Kernel panic - not syncing: sysrq triggered crash")
        assert "sysrq_handle_crash" in getattr(event, "console", "")
        with pytest.raises(TargetError, match="Kernel panic"):
            guest.vm.stop()
    finally:
        guest.vm.close()
        guest.vm.close()


def test_a_kernel_hung_with_interrupts_off_is_reported(prepared: Prepared) -> None:
    guest = boot(prepared, cpus=1)
    try:
        guest.vm.watch_heartbeat(guest.symbol("jiffies_64"))
        function = guest.symbol("__x64_sys_getppid")
        guest.vm.write_text([(function, b"\xfa\xeb\xfe")])  # cli; jmp to itself
        # No process calls getppid(2) until the shell starts, which waits for a request.
        guest.vm.prepare_command("sh -c :")
        guest.vm.start_command()
        guest.vm.resume()
        event = guest.vm.wait(SECONDS)
        assert is_gone(event, f"hangs with interrupts off: CPU 0 at {function + 1:#x}")
    finally:
        guest.vm.close()


@pytest.mark.slow
def test_a_loop_that_only_qemu_has_is_left(prepared: Prepared) -> None:
    """QEMU has a translation of code that is no longer in memory, as its races leave it.

    Here the code is changed without notice to QEMU.  kinst detects it by missing ticks, and has
    the code translated again.
    """
    guest = boot(prepared, cpus=1)
    try:
        vm = guest.vm
        vm.watch_heartbeat(guest.symbol("jiffies_64"))
        function = guest.symbol("__x64_sys_getppid")
        was = vm.read(function, 3)
        vm.write_text([(function, b"\xfa\xeb\xfd")])  # cli; jmp to it
        vm.prepare_command("sh -c 'echo $PPID'")
        vm.start_command()
        vm.resume()

        def loops() -> bool:
            assert vm.wait(0.1) is None
            vm.stop()
            at = vm.registers(0)["rip"]
            vm.resume()
            return function <= at < function + 3

        assert wait_for(loops)
        (physical, _) = next(vm.memory.pieces(function, 3))
        vm.qemu.view_physical(physical, 3)[:] = was
        assert loops()
        assert vm.wait(SECONDS) == CommandEnded(0)
    finally:
        guest.vm.close()


def test_a_killed_qemu_is_reported(prepared: Prepared) -> None:
    guest = boot(prepared)
    guest.vm.resume()
    os.kill(guest.vm.qemu.pid, signal.SIGKILL)
    assert is_gone(guest.vm.wait(SECONDS), "QEMU ended by signal 9")
    with pytest.raises(TargetError, match="signal 9"):
        guest.vm.stop()
    guest.vm.close()


@pytest.mark.parametrize("append", ["nokaslr", "quiet nokaslr"])
def test_an_initrd_of_the_users(prepared: Prepared, tmp_path: Path, append: str) -> None:
    """Ready when its init runs, even if the kernel prints nothing; and a RAM that q35 splits."""
    initrd = tmp_path / "initrd"
    initrd.write_bytes(build(prepared.busybox, {}))
    config = VmConfig(
        prepared.kernel, BOOT, initrd, control=False, append=append, memory=3072 * MEGABYTE
    )
    vm = Vm(ISA, config, VIRTUAL_LAYOUT)
    try:
        try:
            vm.wait_ready(FIRST_SECONDS)
        except TargetError:  # about one guest in a hundred hangs during boot in QEMU
            vm.start_again()
            vm.wait_ready(SECONDS)
        assert vm.find_text() == 0xFFFFFFFF81000000
        # Its text is final, that is, write-protected.
        leaf = PAGING.walk(vm.qemu.read_physical, vm.memory.root, 0xFFFFFFFF81000000)
        assert leaf is not None and leaf.executable and not leaf.writable
        scratch = vm.map_scratch(64 * MEGABYTE, (0xFFFFFFFF81000000, 0xFFFFFFFF82000000))
        assert scratch is not None
        vm.scratch_view()[-4:] = b"last"
        assert vm.read(scratch + 64 * MEGABYTE - 4, 4) == b"last"
        # The kernel looks for pages that are writable and executable just before its init.
        vm.resume()
        assert wait_for(
            lambda: vm.wait(0.1) is None and (vm.qemu.console.init_runs or "quiet" in append)
        )
        assert vm.take_warnings() == []
        vm.stop()
        with pytest.raises(TargetError, match="commands need kinst's init"):
            vm.prepare_command("true")
    finally:
        vm.close()


PARENT = """
import sys
from pathlib import Path
from tests.machines.booted import ISA
from kinst.machines.vm.qemu import VmConfig
from kinst.machines.vm.machine import Vm
from kinst.systems.linux.amd64 import LINUX
vm = Vm(ISA, VmConfig(Path(sys.argv[1]), LINUX.boot, control=False), LINUX.virtual_layout)
print(vm.qemu.pid, flush=True)
sys.stdin.read()
"""


def test_kill_9_leaves_nothing(prepared: Prepared) -> None:
    def names() -> set[str]:
        return {f for d in ("/tmp", "/dev/shm") for f in os.listdir(d) if "qemu" in f or "vl." in f}

    before = names()
    argv = [sys.executable, "-c", PARENT, str(prepared.kernel)]
    parent = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdout, parent.stdin:
        pid = int(parent.stdout.readline())
        assert "qemu" in Path(f"/proc/{pid}/comm").read_text()
        parent.kill()
        parent.wait(SECONDS)
        dead = wait_until_ended(pid)
    assert dead
    # Another test's QEMU may have such a file for a moment.
    assert wait_for(lambda: names() <= before, 20.0), names() - before


def test_a_guest_that_does_not_boot_is_started_again(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that hangs during boot, and one that can no longer boot, for which kinst does not
    wait.

    Here the first one is made to hang, and the second is reported so.
    """
    output = bytearray()
    vm = Vm(
        ISA,
        VmConfig(prepared.kernel, BOOT, build(prepared.busybox, {})),
        VIRTUAL_LAYOUT,
        output.extend,
    )
    try:
        first = vm.qemu.pid
        os.kill(first, signal.SIGSTOP)
        assert not vm.boots(0.5)
        vm.start_again()
        assert not Path(f"/proc/{first}").exists() and vm.qemu.pid != first
        with monkeypatch.context() as patched:
            patched.setattr(machine, "is_lost", lambda registers: registers["cs"] >= 0)
            vm.qemu.console.heard -= 10.0
            assert not vm.boots(SECONDS)
        vm.start_again()
        assert vm.boots(SECONDS)
        vm.wait_ready(SECONDS)
        assert Guest(vm, output).run("echo up") == "up\n"
    finally:
        vm.close()


def test_a_module_that_the_guest_refuses(prepared: Prepared, tmp_path: Path) -> None:
    """A module that was built for another kernel: the error has the kernel's own reason. No guest
    may continue from the state of one that lacks its module."""
    module = tmp_path / "own.ko"
    release = prepared.modules.name.encode()
    good = next(prepared.modules.rglob("failover.ko")).read_bytes()
    other = good.replace(b"vermagic=" + release + b" SMP", b"vermagic=" + release + b" ONE")
    module.write_bytes(other.replace(b"~Module signature appended~", b""))
    initrd = build(prepared.busybox, {}, [module])
    config = VmConfig(prepared.kernel, BOOT, initrd, states=tmp_path / "states")
    vm = Vm(ISA, config, VIRTUAL_LAYOUT)
    with pytest.raises(TargetError) as caught:
        vm.bring_up(lambda text: None)
    vm.close()
    assert re.fullmatch(
        r"the guest could not load own\.ko: invalid module format \(kernel log: failover: version"
        r" magic '\S+ ONE .*' should be '\S+ SMP .*'\)",
        caught.value.message,
    )
    kept = warm_start(config, ISA.board)
    assert kept is not None and not kept.is_there


def test_what_cannot_start_is_said(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="/no/kernel: no such kernel"):
        Vm(ISA, VmConfig(Path("/no/kernel"), BOOT), VIRTUAL_LAYOUT)
    with pytest.raises(TargetError, match="not enough memory"):
        Vm(ISA, VmConfig(prepared.kernel, BOOT, memory=1 << 50), VIRTUAL_LAYOUT)
    config = VmConfig(prepared.kernel, BOOT, control=False, qemu_args=("-no-such-option",))
    vm = Vm(ISA, config, VIRTUAL_LAYOUT)
    with pytest.raises(TargetError, match=r"status 1: -no-such-option: invalid option"):
        vm.wait_ready(SECONDS)
    vm.close()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(TargetError, match="qemu-system-x86_64 not found"):
        Vm(ISA, VmConfig(prepared.kernel, BOOT), VIRTUAL_LAYOUT)


def test_cpus_and_scratch_are_as_the_machine_has_them(prepared: Prepared) -> None:
    """-smp among QEMU's arguments, and data that the loader left in scratch (a large initrd)."""
    size = 16 * MEGABYTE
    arguments = ("-smp", "3")
    initrd = build(prepared.busybox, {})
    config = VmConfig(
        prepared.kernel, BOOT, initrd, qemu_args=arguments, cpus=cpus_of(arguments), scratch=size
    )
    vm = Vm(ISA, config, VIRTUAL_LAYOUT)
    try:
        left = vm.scratch_view()
        left[:16] = left[-16:] = b"part of a file\r\n"
        text = vm.bring_up(lambda line: None).text
        assert vm.cpus == 3 and vm.registers(2)["rip"]
        assert text is not None
        assert vm.map_scratch(size, (text, text + 0x1000)) is not None
        assert not any(vm.scratch_view()[:])
    finally:
        vm.close()
