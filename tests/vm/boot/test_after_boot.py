"""kinst --boot -c: when the kernel is up, the same probes are planted as in any kernel that is up,
and nothing is lost or counted twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepared
from tests.tiers import FIRST, ISAS
from tests.vm.boot.executions import Executions
from tests.vm.boot.kernel_tables import jump_labels
from tests.vm.command import kinst

pytestmark = [pytest.mark.vm, pytest.mark.full, pytest.mark.slow]

# What boot and the command run, and an init function. Each hit during the boot costs QEMU the
# translation of the code that it needs next.
FUNCTIONS = (
    "kernel_clone", "alloc_pid", "wake_up_new_task", "vfs_read", "kernel_execve", "do_exit",
    "proc_reg_open", "setup_arch",
)  # fmt: skip
# The command's last system call, which kinst's init does not make.
LAST = {"amd64": "__x64_sys_sync", "arm64": "__arm64_sys_sync", "riscv64": "__riscv_sys_sync"}
READS = 20000
# A file, since kinst's init reads a command byte by byte.
SCRIPT = f"""#!/bin/sh
dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null
grep ' kernel_clone$' /proc/kallsyms
sync
"""


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_is_lost_when_probes_are_planted_anew(isa: str, tmp_path: Path) -> None:
    """A plugin of QEMU counts the same instructions from the boot through the command.

    On amd64, a jump label, which the kernel rewrites, keeps its breakpoint; the other probes become
    jumps, without which the command's reads would take a minute. A variable and the time go on."""
    kernel = prepared(isa)
    assert kernel is not None
    elf = open_elf(kernel.debug)
    last, places = LAST[isa], {name: elf.address(name) or 0 for name in FUNCTIONS}
    of_label = ""
    if isa == FIRST:
        label = jump_labels(elf, "wake_up_new_task")[0]
        places["label"] = places["wake_up_new_task"] + label
        of_label = f'kinst::wake_up_new_task:{label} /!over/ {{ @["label"] = count(); }}'
    executions = Executions(tmp_path, places.values(), elf.address(last))
    probes = ",\n".join(f"fbt::{name}:entry" for name in FUNCTIONS)
    program = f"""
    fbt::{last}:entry {{ over = 1; }}
    {probes} /!over/ {{ @[probefunc] = count(); }}
    {of_label}
    fbt::kernel_clone:entry /!over/ {{ clones++; printf("time: %d\\n", timestamp); }}
    END {{ printa("%s %@d\\n", @); printf("clones %d\\n", clones); }}
    """
    words = [word for one in executions.arguments for word in ("--qemu-arg", one)]
    script = tmp_path / "work"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    words += ["--boot", f"--vm={isa}", "-q", "-v", "-n", program, "-c", "work"]
    done = kinst(*words, copy=[script]).good()
    slide = int(done.guest.split()[0], 16) - (elf.address("kernel_clone") or 0)
    theirs = executions.read()
    expected = {name: theirs[at + slide] for name, at in places.items() if at + slide in theirs}
    ours = {name: int(count) for name, count in re.findall(r"^(\w+) (\d+)$", done.out, re.M)}
    clones = ours.pop("clones")
    assert ours == expected
    assert ours["setup_arch"] == 1 and ours["vfs_read"] > READS
    assert isa != FIRST or ours["label"] > 30
    assert clones == ours["kernel_clone"]
    times = [int(at) for at in re.findall(r"^time: (\d+)$", done.out, re.M)]
    assert times == sorted(times) and len(times) == clones
    told = re.search(r"the kernel is up; probes: (\d+) planted with .*, 1 freed", done.err)
    assert told is not None and int(told[1]) >= len(FUNCTIONS) - 1, done.err
    assert isa != FIRST or ", 1 at which the machine stops, " in told[0]
    assert "kernel text is as before" in done.err
