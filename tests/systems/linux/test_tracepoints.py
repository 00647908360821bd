"""Tracepoints of a kernel's file, against nm and a disassembler.

tests/vm/counts/test_tracepoints.py has what the running kernel says of them.
"""

from __future__ import annotations

import re
import subprocess

import capstone
import pytest

from kinst.core.errors import KinstError
from kinst.core.layout import ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
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


@pytest.mark.parametrize("isa", of_kernels(["arm64", "riscv64"]))
def test_without_static_calls_the_site_is_the_function_that_all_calls_reach(isa: str) -> None:
    kernel = prepared_kernel(isa)
    assert kernel is not None
    file = KernelFile(isa, kernel.debug)
    (site,) = file.tracepoints.sites("mm_page_alloc")
    assert site.function.name == "__traceiter_mm_page_alloc" and not site.code
    slots = file.isa.argument_slots[1:]
    assert site.arguments[: len(slots)] == tuple(Argument(ARGUMENT_SLOT, slot) for slot in slots)
    # Nothing calls this one's function: its code is in __schedule() itself.
    with pytest.raises(
        KinstError, match=r"does not call __traceiter_sched_switch\(\) in __schedule"
    ):
        file.tracepoints.sites("sched_switch")


def test_those_that_need_more_are_refused_with_the_reason(file: KernelFile) -> None:
    with pytest.raises(KinstError, match=r"only after the kernel has run syscall_regfunc\(\)"):
        file.tracepoints.sites("sys_enter")
    refused = []
    for one in file.tracepoints.named("*"):
        try:
            assert file.tracepoints.sites(one.name)
        except KinstError as error:
            refused.append(error.message)
    assert len(refused) < 60
    assert all("nowhere" in text or "only after" in text for text in refused), refused
