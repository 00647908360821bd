"""Tracepoints of a kernel's file, against nm, a disassembler, DWARF and an emulator.

tests/vm/counts/test_tracepoints.py has what the running kernel says of them.
"""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import capstone
import pytest

from kinst.core.errors import KinstError
from kinst.core.layout import ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.paths import cache_folder
from kinst.core.probe import Argument
from kinst.core.system import TracepointSite
from kinst.image.dwarf.index import open_index
from kinst.kernels.fetch import Prepared, prepare
from kinst.kernels.fetch import prepared as prepared_kernel
from kinst.systems.linux.tracepoint_firings import TracepointFirings
from tests.isa.symbolic_rig import CODE, PAGE, PROCESSORS, Run, compared
from tests.systems.linux.kernel_file import KernelFile
from tests.tiers import of_kernels


@pytest.fixture(scope="module")
def file(prepared: Prepared) -> KernelFile:
    return KernelFile("amd64", prepared.debug)


def test_all_that_nm_has_are_there(file: KernelFile, prepared: Prepared) -> None:
    shown = subprocess.run(["nm", prepared.debug], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in shown.stdout.splitlines()}
    expected = {n.removeprefix("__tracepoint_") for n in names if n.startswith("__tracepoint_")}
    found = file.tracepoints.named("*")
    assert {one.name for one in found} == expected and len(expected) > 600
    systems = {one.name: one.subsystem for one in found}
    known = {"sched_switch": "sched", "kmalloc": "kmem", "sys_enter": "raw_syscalls",
             "irq_handler_entry": "irq", "netif_rx": "net", "timer_start": "timer"}  # fmt: skip
    assert {name: systems[name] for name in known} == known
    assert sum(not system for system in systems.values()) < 20


def test_no_event_is_read_for_a_name_that_no_tracepoint_has(prepared: Prepared) -> None:
    file = KernelFile("amd64", prepared.debug)
    assert file.tracepoints.named("BEGIN") == () == file.tracepoints.named("entry")
    assert "_systems" not in vars(file.tracepoints)
    (one,) = file.tracepoints.named("sched_swit?h")
    assert (one.subsystem, one.name) == ("sched", "sched_switch")


@pytest.mark.parametrize("name", ["sched_switch", "sched_process_exit", "kfree", "netif_rx"])
def test_each_call_has_a_site_before_it(file: KernelFile, name: str) -> None:
    """A disassembler finds the calls of the tracepoint's trampoline in the functions of the sites,
    and before each the load of its list that is the site."""
    trampoline = file.elf.address(f"__SCT__tp_func_{name}")
    start = file.elf.address(f"__tracepoint_{name}")
    assert trampoline is not None and start is not None
    funcs = start + file.btf.offset("tracepoint", "funcs")
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    sites = file.tracepoints.sites(name)
    assert sites
    for function in {site.function for site in sites}:
        code = file.elf.read(function.address, function.size)
        loads, calls = [], 0
        for one in decoder.disasm(code, function.address):
            loaded = re.fullmatch(r"\w+, qword ptr \[rip \+ (\w+)\]", one.op_str)
            if loaded and one.address + one.size + int(loaded[1], 16) == funcs:
                loads.append(one.address)
            calls += one.mnemonic == "call" and one.op_str == hex(trampoline)
        assert calls == len(loads) > 0
        assert sorted(s.address for s in sites if s.function == function) == loads


WITHOUT_STATIC_CALLS = of_kernels(["arm64", "riscv64"])
DRAWN = 120  # loads of lists, compared with an emulator


@pytest.fixture(scope="module", params=WITHOUT_STATIC_CALLS)
def other(request: pytest.FixtureRequest) -> KernelFile:
    """Return the file of a kernel without static calls."""
    kernel = prepared_kernel(request.param)
    assert kernel is not None
    return KernelFile(request.param, kernel.debug)


def test_a_called_function_is_the_site(other: KernelFile) -> None:
    (site,) = other.tracepoints.sites("mm_page_alloc")
    assert site.function.name == "__traceiter_mm_page_alloc" and not site.code
    slots = other.isa.argument_slots[1:]
    assert site.arguments[: len(slots)] == tuple(Argument(ARGUMENT_SLOT, slot) for slot in slots)
    # Nothing calls this one's function: its code is in __schedule() itself.
    (site,) = other.tracepoints.sites("sched_switch")
    assert site.function.name == "__schedule" and site.code


# A function of arm64's 5.10 that contains the body of __traceiter_kmalloc().
INLINED = {"kmalloc_order_trace"}


@pytest.mark.slow
def test_a_call_that_needs_a_list_has_a_site_before_it() -> None:
    """arm64's 5.10 loads the list and calls the function only if there is a list. A disassembler
    finds the calls in the functions of the sites: a load is before each."""
    file = KernelFile("arm64", prepare("arm64", lambda what, part: None, "5.10").debug)
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN)
    for name in ("oom_score_adj_update", "sched_process_fork", "kmalloc", "net_dev_queue"):
        target = file.elf.address(f"__traceiter_{name}")
        assert target is not None
        sites = file.tracepoints.sites(name)
        assert sites and all(site.code for site in sites)
        for function in {site.function for site in sites}:
            code = file.elf.read(function.address, function.size)
            found = list(decoder.disasm(code, function.address))
            calls = [one.address for one in found
                     if one.mnemonic == "bl" and one.op_str == f"#{target:#x}"]  # fmt: skip
            loads = [site.address for site in sites if site.function == function]
            assert {one.mnemonic for one in found if one.address in loads} == {"ldr"}
            inside = [one.address for one in found
                      if one.mnemonic == "blr" and function.name in INLINED]  # fmt: skip
            assert len(calls or inside) == len(loads) > 0, (name, function)
    every, refused = sites_of(file)
    unknown = {name for name, why in refused.items() if "in a way that kinst" in why}
    assert len(every) > 570 and len(unknown) < 10, unknown


def sites_of(file: KernelFile) -> tuple[dict[str, list[TracepointSite]], dict[str, str]]:
    """Return the sites of each tracepoint, and the reason of each that is refused."""
    sites, refused = {}, {}
    for one in file.tracepoints.named("*"):
        try:
            sites[one.name] = list(file.tracepoints.sites(one.name))
        except KinstError as error:
            refused[one.name] = error.message
    return sites, refused


def test_loads_are_in_the_inlined_copies_that_dwarf_has(other: KernelFile) -> None:
    """Each load of a list is in a copy of __traceiter_NAME(), and each copy has a load."""
    compare_with_dwarf(other, most_unknown=10)


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "kernel"), [("arm64", "7.3"), ("riscv64", "7.2")])
def test_loads_of_new_kernels_are_in_the_copies_that_dwarf_has(isa: str, kernel: str) -> None:
    """In these kernels the linker has moved code out of mtree_erase(), and a call of
    __stack_chk_fail() stands before code of mas_wr_node_store()."""
    debug = prepare(isa, lambda what, part: None, kernel).debug
    compare_with_dwarf(KernelFile(isa, debug), most_unknown=30)


def compare_with_dwarf(other: KernelFile, most_unknown: int) -> None:
    sites, refused = sites_of(other)
    index = open_index(other.path, cache_folder())
    count = 0
    for name, every in sites.items():
        loads = {site.address for site in every if site.code}
        copies = [
            copy.ranges
            for function in index.functions(f"__traceiter_{name}")
            if function.inlined
            for copy in index.copies_of(function)
            if copy.ranges and not other.tables.is_boot_code(copy.ranges[0][0])
        ]
        inside = [
            {at for at in loads if any(low <= at < high for low, high in ranges)}
            for ranges in copies
        ]
        assert set().union(*inside) == loads, name
        assert all(inside), (name, copies)
        count += len(copies)
    assert count > 300
    unknown = {name for name, why in refused.items() if "in a way that kinst" in why}
    assert len(sites) > 580 and len(unknown) < most_unknown, unknown


def test_arguments_at_a_load_are_those_of_the_call(other: KernelFile, tmp_path: Path) -> None:
    """An emulator runs from loads to the next indirect call, from random registers.

    The code is moved, so that all memory that it uses can be there in a C program, too.
    """
    rng, isa = random.Random(1), other.isa
    sites, _ = sites_of(other)
    loads = [(name, one) for name, every in sites.items() for one in every if one.code]
    runs, unknown, total = [], 0, 0
    for name, site in rng.sample(loads, DRAWN):
        code = other.elf.read(site.function.address, site.function.size)
        function = replace(site.function, address=CODE + site.function.address % PAGE)
        down = site.function.address - function.address
        firings = TracepointFirings(
            isa, lambda at, size, of=function, text=code: text[at - of.address :][:size],
            lambda at, of=function: of if of.address <= at < of.address + of.size else None,
            lambda at: None, (), {}, (),
        )  # fmt: skip
        load = firings.instruction(site.address - down)
        symbolic = isa.symbolic_run()
        assert load is not None and symbolic is not None
        place = symbolic.pointer_load(load)
        assert place is not None
        call, arguments, _ = firings.call_of(load, 1 + len(site.arguments))
        run = Run(PROCESSORS[isa.name], code, rng.getrandbits(32), at=function.address)
        run.point(run.place(place))
        indirect = {one.address for one in isa.decode(code, function.address)
                    if re.match(r"(blr|(c\.)?jalr) [a-z0-9]+$", one.text)}  # fmt: skip
        assert call in indirect
        there = run.arguments(load.address, indirect, 1 + len(arguments))
        runs.append((f"{name} in {function.name}", run, arguments, there[1:]))
        unknown += sum(a.kind == ARGUMENT_NONE and not a.expression for a in arguments)
        total += len(arguments)
    assert compared(runs, tmp_path) > DRAWN // 10
    assert unknown <= total // 20


def test_those_that_need_more_are_refused_with_the_reason(file: KernelFile) -> None:
    with pytest.raises(KinstError, match=r"only after the kernel has run syscall_regfunc\(\)"):
        file.tracepoints.sites("sys_enter")
    sites, refused = sites_of(file)
    assert all(sites.values()) and len(refused) < 60
    assert all("nowhere" in text or "only after" in text for text in refused.values()), refused
