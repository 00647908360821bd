"""Warm starts: equal configurations, and guests that continue from another guest's saved state."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.isa import Isa
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from kinst.machines.vm.files import shares
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import MEGABYTE, VmConfig
from kinst.machines.vm.warm import warm_start
from kinst.systems.linux.guest.initramfs import build
from kinst.systems.linux.isafacts import facts_of
from tests.machines.booted import ISA, SECONDS, Guest, boot_of


def config_of(prepared: Prepared, folder: Path) -> VmConfig:
    return VmConfig(prepared.kernel, boot_of(ISA), build(prepared.busybox, {}), states=folder)


def key(config: VmConfig, isa: Isa = ISA) -> str:
    warm = warm_start(config, isa.board)
    assert warm is not None
    return warm._key


def test_all_that_matters_is_in_the_key(prepared: Prepared, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel"
    kernel.write_bytes(b"kernel")
    one = replace(config_of(prepared, tmp_path), kernel=kernel)
    assert key(one) == key(replace(one))
    other = [
        replace(one, cpus=3),
        replace(one, memory=512 * MEGABYTE),
        replace(one, scratch=2 * one.scratch),
        replace(one, append="nokaslr"),
        replace(one, shares=shares(None, [tmp_path])),
        replace(one, shares=shares(tmp_path, [tmp_path])),
        replace(one, kernel=prepared.kernel),
        replace(one, initrd=build(prepared.busybox, {"/bin/other": prepared.busybox})),
    ]
    keys = {key(one), *map(key, other)}
    elsewhere = [replace(one, shares=shares(Path(name), [])) for name in ("/", "/usr")]
    assert key(elsewhere[0]) == key(elsewhere[1])  # the folder is plugged in later
    assert len(keys) == len(other) + 1
    time.sleep(0.02)
    kernel.write_bytes(b"KERNEL")  # another one of the same size and name
    assert key(one) not in keys


@pytest.mark.full  # the key has the QEMU that would run it
def test_another_instruction_set_has_another_key(prepared: Prepared, tmp_path: Path) -> None:
    config = config_of(prepared, tmp_path)
    assert key(config) != key(config, load("arm64"))


def test_guests_that_are_not_kept(prepared: Prepared, tmp_path: Path) -> None:
    one = config_of(prepared, tmp_path)
    for other in (
        replace(one, states=None),
        replace(one, control=False),
        replace(one, initrd=prepared.busybox),
        replace(one, qemu_args=("-s",)),
    ):
        assert warm_start(other, ISA.board) is None
    assert key(replace(one, accel="kvm")) != key(one)
    shared = replace(one, shares=shares(tmp_path, []))
    assert warm_start(shared, load("riscv64").board) is None


def start(config: VmConfig, isa: Isa, say: Callable[[str], None]) -> Guest:
    output = bytearray()
    vm = Vm(isa, config, facts_of(isa.name).virtual_layout, output.extend)
    try:
        vm.bring_up(say)
    except BaseException:
        vm.close()
        raise
    return Guest(vm, output)


def about(guest: Guest) -> dict[str, str]:
    """Return facts that a guest reports of itself."""
    wanted = "dmesg | head -n 150 | md5sum; nproc; ls /proc/1 | wc -l; cat /proc/uptime; date +%s"
    boot, cpus, entries, uptime, clock = guest.run(f"{wanted}; sleep 0.2").split("\n")[:5]
    assert abs(int(clock) - time.time()) < 30
    return {"boot": boot, "cpus": cpus, "entries": entries, "up": uptime.split()[0]}


@pytest.mark.vm
@pytest.mark.parametrize(
    "isa",
    ["amd64", *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("arm64", "riscv64"))],
)
def test_a_guest_goes_on_from_where_another_had_booted(isa: str, tmp_path: Path) -> None:
    """The first guest boots; the second and third, at once, continue from its saved state.

    The fourth finds a damaged state and boots; the fifth continues from the fourth's.
    """
    kernel, machine = prepared_kernel(isa), load(isa)
    assert kernel is not None, f"no {isa} kernel is there: run `make setup-all`"
    config = config_of(kernel, tmp_path)
    said: list[str] = []
    found = []

    def say(text: str) -> None:
        if not text.endswith("restarting it"):  # QEMU's own defect (decision 17), on riscv64
            said.append(text)

    def look(kept: bool = True) -> None:
        guest = start(config, machine, say)
        try:
            assert len(guest.vm.qemu.console.lines) < 10 or not kept
            found.append(about(guest))
        finally:
            guest.vm.close()

    look(kept=False)
    (file,) = (tmp_path / "guests").iterdir()
    assert file.stat().st_size < 200 * MEGABYTE
    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not said
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(os.urandom(4096))
    look(kept=False)
    assert re.search("is replaced: .* is damaged", said.pop()) and not said
    look()
    assert not said
    first, second, third, fourth, fifth = found
    assert first["boot"] == second["boot"] == third["boot"]
    assert fourth["boot"] == fifth["boot"] != first["boot"]
    assert {one["cpus"] for one in found} == {"2"}
    assert len({one["entries"] for one in found}) == 1
