"""kinst --boot: how often functions run in a boot, as QEMU itself counts it in the same boot."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinst as library
from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepared
from tests.tiers import FIRST
from tests.vm.boot.executions import Executions
from tests.vm.boot.kernel_tables import initcalls

pytestmark = [pytest.mark.vm, pytest.mark.full, pytest.mark.slow]

FUNCTIONS = Path(__file__).with_name("functions.txt").read_text().split()
EACH = 5  # of so many initcalls, one is counted


def test_counts_are_those_of_qemu(tmp_path: Path) -> None:
    """200 functions, with KASLR, page table isolation and 4 CPUs."""
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
