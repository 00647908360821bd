"""Names of functions in FreeBSD and in older Linux, with the functions that this kernel has for the
same work.

Tested by tests/systems/linux/test_counterparts.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinst.image.function_table import FunctionTable
from kinst.systems.linux.isafacts import CallNames
from kinst.systems.linux.system_calls import call_named

# Linux's functions for each name. A hint names the first one that the kernel has.
_COUNTERPARTS = {
    # FreeBSD's kernel
    "amd64_syscall": "x64_sys_call",
    "fork1": "kernel_clone _do_fork",
    "kern_execve": "do_execveat_common bprm_execve",
    "kern_openat": "do_sys_openat2 do_sys_open",
    "malloc": "__kmalloc __kmalloc_noprof",
    "free": "kfree",
    "mi_switch": "__schedule",
    "mtx_lock_sleep": "__mutex_lock_slowpath",
    "namei": "filename_lookup",
    "tcp_output": "tcp_write_xmit",
    "uma_zalloc": "kmem_cache_alloc kmem_cache_alloc_noprof",
    "uma_zalloc_arg": "kmem_cache_alloc kmem_cache_alloc_noprof",
    "uma_zfree": "kmem_cache_free",
    "uma_zfree_arg": "kmem_cache_free",
    "vm_fault": "handle_mm_fault",
    "vm_fault_trap": "handle_mm_fault",
    "vn_open": "do_filp_open",
    "vn_read": "vfs_read",
    "vn_write": "vfs_write",
    # older Linux
    "do_execve": "do_execveat_common bprm_execve",
    "do_fork": "kernel_clone _do_fork",
    "do_page_fault": "handle_mm_fault",
}
_CALL = "sys_"  # begins the names of system calls' functions before Linux 4.17


def counterpart_in(table: FunctionTable, name: str, layouts: Iterable[CallNames]) -> str:
    """Return what this kernel has in place of a function that it lacks, as a hint; "" if nothing is
    known.

    Args:
        table: the kernel's functions.
        name: the function that it lacks.
        layouts: naming conventions of the functions of system calls.
    """
    for function in _COUNTERPARTS.get(name, "").split():
        if table.lookup(function):
            return function
    return call_named(name.removeprefix(_CALL), table, layouts)
