"""The gdb target against QEMU's own stub, started here without kinst's help."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import KinstError, TargetError
from kinst.core.machine import MachineConfig, Stopped
from kinst.core.options import MachineOptions
from kinst.kernels.fetch import Prepared
from kinst.machines import load
from kinst.machines.gdb.stub import GdbStub
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.guest.initramfs import build
from tests import second_boot
from tests.machines.booted import ISA, SECONDS, is_gone, wait_for

pytestmark = pytest.mark.vm
VIRTUAL_LAYOUT = LINUX.virtual_layout


def symbols(prepared: Prepared, *names: str) -> list[int]:
    """Return linked addresses by nm(1); with nokaslr they are the running ones too."""
    text = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True).stdout
    found = {line.split()[2]: int(line.split()[0], 16) for line in text.splitlines()}
    return [found[name] for name in names]


@pytest.fixture(scope="module")
def stub(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the stub's socket; its kernel has come to its init."""
    folder = tmp_path_factory.mktemp("qemu")
    (folder / "initrd").write_bytes(build(prepared.busybox, {}))
    console = folder / "console"
    argv = f"""qemu-system-x86_64 -nodefaults -display none -no-reboot -machine q35 -m 512 -smp 2
        -serial file:{console} -gdb unix:{folder}/gdb,server,nowait -kernel {prepared.kernel}
        -initrd {folder}/initrd""".split()
    # The last as in kinst's own guests: a busy host delivers timer ticks late.
    append = "console=ttyS0 nokaslr panic=-1 no_timer_check"

    def start() -> subprocess.Popen[bytes]:
        console.unlink(missing_ok=True)
        return subprocess.Popen([*argv, "-append", append])

    def comes_up(child: subprocess.Popen[bytes], seconds: float) -> bool:
        def runs_init() -> bool:
            assert child.poll() is None, "QEMU ended"
            return console.exists() and "Run /init" in console.read_text(errors="replace")

        return wait_for(runs_init, seconds)

    def end(child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()

    child = second_boot.booted(start, comes_up, end)
    try:
        yield folder / "gdb"
    finally:
        end(child)


def test_breakpoints_registers_and_steps(stub: Path, prepared: Prepared) -> None:
    tick, banner = symbols(prepared, "scheduler_tick", "linux_banner")
    target = GdbStub(ISA, str(stub), VIRTUAL_LAYOUT)
    assert target.cpus == 2
    assert target._rsp.ask_monitor("info kvm").startswith("kvm support: ")
    assert target.read(banner, 14) == b"Linux version "
    assert target.map_scratch(1 << 21, (tick, tick)) is None
    target.insert_breakpoint(tick)
    target.resume()
    for _ in range(20):
        event = target.wait(SECONDS)
        assert isinstance(event, Stopped)
        assert event.pc == tick
        registers = target.registers(event.cpu)
        assert registers["rip"] == tick
        assert registers["rsp"] >> 47 == (1 << 17) - 1
        return_address = int.from_bytes(target.read(registers["rsp"], 8), "little")
        assert 0xFFFFFFFF81000000 <= return_address < 0xFFFFFFFF83000000
        target.step_over(event.cpu, tick)
        assert target.registers(event.cpu)["rip"] == tick + 5  # over ftrace's nop
        target.resume()
    target.close()
    target.close()


def test_it_is_left_running_and_can_be_attached_again(stub: Path, prepared: Prepared) -> None:
    (jiffies,) = symbols(prepared, "jiffies_64")

    def ticks() -> int:
        target = GdbStub(ISA, f"unix:{stub}", VIRTUAL_LAYOUT)
        count = int.from_bytes(target.read(jiffies, 8), "little")
        target.close()
        return count

    first = ticks()
    assert wait_for(lambda: ticks() > first)
    target = GdbStub(ISA, f"unix:{stub}", VIRTUAL_LAYOUT)
    with pytest.raises(TargetError, match="0x1000 cannot be read"):
        target.read(0x1000, 4)
    target.close()


def test_what_a_stub_cannot_do_is_said(stub: Path) -> None:
    target = GdbStub(ISA, str(stub), VIRTUAL_LAYOUT)
    for action in (
        lambda: target.write_text([(0, b"x")]),
        lambda: target.prepare_command("true"),
        lambda: target.scratch_view(),
        lambda: target.registers(7),
    ):
        with pytest.raises(TargetError):
            action()
    target.close()
    with pytest.raises(TargetError, match="no GDB stub at"):
        GdbStub(ISA, str(stub) + ".not", VIRTUAL_LAYOUT)


def test_a_stub_that_goes_away_is_reported(stub: Path) -> None:
    target = GdbStub(ISA, str(stub), VIRTUAL_LAYOUT)
    target.resume()
    pid = int(subprocess.run(["pgrep", "-f", str(stub)], capture_output=True, text=True).stdout)
    os.kill(pid, 9)
    assert is_gone(target.wait(SECONDS), "closed the connection")
    target.close()


def test_load_finds_machines_by_name(tmp_path: Path) -> None:
    nowhere = MachineConfig(
        ISA, MachineOptions(address=str(tmp_path / "none")), virtual_layout=VIRTUAL_LAYOUT
    )
    with pytest.raises(TargetError, match="no GDB stub at"):
        load("gdb").open(nowhere)
    with pytest.raises(KinstError, match=r"no machine is called 'nothing' .*gdb.*vm"):
        load("nothing")
