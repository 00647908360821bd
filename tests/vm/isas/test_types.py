"""The kernel's types in a running kernel: members, symbols, args[], print().

Each ISA boots once (char is unsigned except on amd64).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinst.core.paths import cache_folder
from kinst.image.btf import open_btf
from kinst.image.elf import open_elf
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

PROGRAM = r"""
BEGIN { printf("init %s %d %d\n", `init_task.comm, `init_task.pid, `jiffies > 0); }
BEGIN { printf("data %a %a %a", &`init_task, (uintptr_t)&`init_task + 9, &`vfs_read); }
BEGIN { sym((uintptr_t)&`init_task + 9); printf("\n"); }
fbt::vfs_read:entry
/execname == "wc" && args[0]->f_path.dentry->d_parent != args[0]->f_path.dentry/
{
    self->buffer = args[1];
    printf("read %s %d\n", stringof(args[0]->f_path.dentry->d_name.name), args[2]);
    printf("same %d %d %d %d %d\n", curthread->comm == execname, curthread->tgid == pid,
        curthread->pid == tid, curthread->cred->uid.val == uid,
        curthread->real_parent->tgid == ppid);
    printf("bits %d %d\n", curthread->in_execve, curthread->cred->user_ns == &`init_user_ns);
    printf("mode %o\n", args[0]->f_inode->i_mode);
    printf("array %s %c\n", curthread->comm, curthread->comm[1]);
}
fbt::vfs_read:entry /execname == "wc" && !printed++/
{ print(*curthread->cred); print(curthread->comm); }
fbt::vfs_read:return /execname == "wc"/ { printf("returned %d\n", args[1]); }
fbt::vfs_read:entry /execname == "wc" && !chained++/
{ trace(((struct task_struct *)0)->real_parent->mm->pgd); }
dtrace:::ERROR { printf("error %d %x\n", arg4, arg5); }
"""
# The function's name and arguments are private to the kernel and its ISA, like everything about an
# instruction; names of the kernel's variables are private too, with an unknown class (Guide,
# "Stability" and "fbt Provider").
STABILITY = """
	Minimum Probe Description Attributes
		Identifier Names: Private
		Data Semantics:   Private
		Dependency Class: ISA

	Minimum Statement Attributes
		Identifier Names: Private
		Data Semantics:   Private
		Dependency Class: Unknown
"""


def test_types_in_a_running_kernel(guest: Guest, tmp_path: Path) -> None:
    script = tmp_path / "types.d"
    script.write_text(PROGRAM)
    command = "wc -c /etc/passwd; stat -c %a /etc/passwd"
    done = guest.trace("-q", "-v", "-s", str(script), "-c", command, copy=[])
    size, mode = re.findall(r"\d+", done.guest)[0], done.guest.split()[-1]
    assert STABILITY in done.out
    assert "init swapper/0 0 1" in done.out
    names = " ".join(re.findall("^data (.*)$", done.out, re.M)[0].split())
    assert names == "vmlinux`init_task vmlinux`init_task+0x9 vmlinux`vfs_read vmlinux`init_task"
    assert "read passwd " in done.out
    assert set(re.findall(r"^same (.*)$", done.out, re.M)) == {"1 1 1 1 1"}
    assert set(re.findall(r"^bits (.*)$", done.out, re.M)) == {"0 1"}
    assert f"mode 100{mode}" in done.out
    assert "array wc c" in done.out
    assert f"returned {size}" in done.out and "returned 0" in done.out
    assert re.search(r"^(const )?struct cred \{$", done.out, re.M)
    assert "    kuid_t uid = {\n        uid_t val = 0\n    }\n" in done.out
    assert 'char [16] "wc"' in done.out
    assert "    struct user_namespace *user_ns = 0xffff" in done.out
    # A chain that begins with NULL faults at its first step, with that address.
    ((kind, address),) = set(re.findall(r"error (\d+) (\w+)$", done.out, re.M))
    assert kind == "1"
    elf = open_elf(guest.kernel.debug)
    btf = open_btf(elf, cache_folder())
    assert btf is not None and int(address, 16) == btf.offset("task_struct", "real_parent")
