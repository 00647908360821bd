"""Functions that hints name in place of functions of other kernels: this kernel has them."""

from __future__ import annotations

import pytest

from kinst.image.elf import open_elf
from kinst.image.function_table import FunctionTable
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.counterparts import counterpart_in
from kinst.systems.linux.isafacts import facts_of
from kinst.systems.linux.system import MODULE, PADDING


@pytest.fixture(scope="module")
def table(prepared: Prepared) -> FunctionTable:
    return FunctionTable(open_elf(prepared.debug), 0, MODULE, PADDING)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kern_openat", "do_sys_openat2"),
        ("malloc", "__kmalloc"),
        ("uma_zalloc", "kmem_cache_alloc"),
        ("namei", "filename_lookup"),
        ("do_fork", "kernel_clone"),
        ("vm_fault", "handle_mm_fault"),
        ("sys_open", "syscall::open:entry and syscall::open:return trace the system call;"
         " its function is __x64_sys_open"),
        ("read", "syscall::read:entry and syscall::read:return trace the system call;"
         " its function is __x64_sys_read"),
        ("vfs_reda", ""),
    ],
)  # fmt: skip
def test_the_function_of_this_kernel(table: FunctionTable, name: str, meant: str) -> None:
    assert counterpart_in(table, name, facts_of("amd64").system_calls) == meant


def test_only_functions_that_the_kernel_has(
    table: FunctionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FunctionTable, "lookup", lambda self, name: [])
    assert not counterpart_in(table, "malloc", facts_of("amd64").system_calls)
