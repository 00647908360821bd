"""kinst --boot: how often functions run in a boot, as QEMU itself counts it in the same boot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kinst as library
from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepared
from tests.tiers import FIRST
from tests.vm.boot.executions import Executions
from tests.vm.boot.kernel_tables import initcalls
from tests.vm.boot.test_boot import text_of

pytestmark = [pytest.mark.vm, pytest.mark.full, pytest.mark.slow]

FUNCTIONS = Path(__file__).with_name("functions.txt").read_text().split()
EACH = 5  # of so many initcalls, one is counted


def functions() -> dict[int, str]:
    """Return the functions to count, by their linked addresses: those of functions.txt, and some
    initcalls."""
    kernel = prepared(FIRST)
    assert kernel is not None
    elf = open_elf(kernel.debug)
    symbols = elf.symbols
    addresses = {name: elf.address(name) for name in FUNCTIONS}
    starts = {address: name for name, address in addresses.items() if address is not None}
    named = {int(symbols.address[k]): symbols.name_of(k) for k in range(len(symbols.address))}
    for address in initcalls(elf)[::EACH]:
        if len(symbols.indexes(named.get(address, ""))) == 1:
            starts[address] = named[address]
    return starts


def differs_elsewhere(text: bytes, other: bytes, slide: int) -> list[int]:
    """Return the offsets at which two texts differ, without addresses that KASLR has moved.

    Such an address has 32 bits, or is sign-extended from them; it moves with the kernel or, if it
    is relative to something that KASLR does not move, against it.

    Args:
        slide: distance of the kernel of `text` from that of `other`.
    """
    ours, theirs = np.frombuffer(text, np.uint8), np.frombuffer(other, np.uint8)
    assert len(ours) == len(theirs)
    moved = {slide & 0xFFFFFFFF, -slide & 0xFFFFFFFF}
    explained, found = 0, []
    for at in np.flatnonzero(ours != theirs).tolist():
        if at < explained:
            continue
        for start in range(at - 3, at + 1):
            both = (int.from_bytes(one[start : start + 4], "little") for one in (text, other))
            if (next(both) - next(both)) & 0xFFFFFFFF in moved:
                explained = start + 4
                break
        else:
            found.append(at)
    return found


def test_the_text_is_that_of_a_boot_without_probes() -> None:
    """200 functions, with KASLR, page table isolation and 4 CPUs. Where the kernel is, its own list
    of symbols says."""
    probes = ",\n".join(f"fbt::{name}:entry" for name in sorted(functions().values()))
    command = "grep ' _text$' /proc/kallsyms"
    with library.boot(FIRST, cpus=4, append="pti=on", trace_boot=True) as machine:
        done = machine.run(f"{probes} {{ @[probefunc] = count(); }}", command=command)
        assert len(done.aggregations[""]) > 100
        ours, place = text_of(machine), int(done.output.split()[0], 16)
    with library.boot(FIRST, cpus=4, append="pti=on", cold=True, accel="tcg") as machine:
        other = int(machine.execute(command).output.split()[0], 16)
        theirs = text_of(machine)
    assert place != other and len(ours) > 10 << 20
    assert differs_elsewhere(ours, theirs, place - other) == []
    changed = bytearray(ours)
    changed[len(ours) // 2] ^= 0x55
    assert differs_elsewhere(bytes(changed), theirs, place - other) == [len(ours) // 2]


def test_counts_are_those_of_qemu(tmp_path: Path) -> None:
    """200 functions, with KASLR, page table isolation and 4 CPUs."""
    starts = functions()
    executions = Executions(tmp_path, starts)
    probes = ",\n".join(f"fbt::{name}:entry" for name in sorted(starts.values()))
    with library.boot(
        FIRST, cpus=4, append="pti=on", qemu_args=executions.arguments, trace_boot=True
    ) as machine:
        trace = machine.trace(f"{probes} {{ @[probefunc] = count(); }}")
        for _ in trace:
            pass
        assert trace.end is not None and trace.end.reason == "boot"
        ours = {key[0]: count for key, count in trace.aggregations()[""].items()}
        places = {site.function.name: site.address for site in trace.sites if not site.reason}
        theirs = executions.read()
    expected = {name: theirs[address] for name, address in places.items() if address in theirs}
    assert ours == expected
    assert len(ours) >= 200 and max(ours.values()) > 100
    # Page table isolation copies the entry code's tables; each of the other CPUs reports itself.
    assert ours["pti_user_pagetable_walk_pmd"] and ours["notify_cpu_starting"] == 3
    slides = {places[name] - address for address, name in starts.items() if name in places}
    assert len(slides) == 1 and slides != {0}
