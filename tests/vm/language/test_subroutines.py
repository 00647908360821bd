"""Subroutines and built-ins about the traced process, in a running kernel.

The guest boots once for each way of planting; its own program prints the right values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst

pytestmark = pytest.mark.vm

TEXT = "a text of the traced program"
# vfs_write(file, buf, count, pos): buf is the program's.
HERE = 'kinst::vfs_write:0 /execname == "usertext" && regs[R_RDX] == 61/'
PROGRAM = f"""
{HERE}
{{
    printf("string %s|%s|%s\\n", copyinstr(regs[R_RSI]), copyinstr(regs[R_RSI], 6),
        strtok(copyinstr(regs[R_RSI]), " t"));
}}
{HERE}
{{
    p = (char *)copyin(regs[R_RSI], 40);
    q = (char *)alloca(16);
    copyinto(regs[R_RSI] + 2, 4, q);
    printf("bytes %c%c%c %s %d\\n", p[0], p[2], q[1], stringof(q), strlen(p + 4));
}}
{HERE}
{{
    printf("ids %d %d %d %d\\n", pid, ppid, progenyof(pid), progenyof(ppid));
    printf("kin %d %d\\n", progenyof(1), progenyof(pid + 1));
}}
{HERE} {{ printf("args %s|\\n", execargs); }}
kinst::vfs_write:0 /(execname == "usertext" || execname == "jailed") && regs[R_RDX] == 61/
{{
    printf("at %s %s %s\\n", cwd, root, d_path(&((struct file *)regs[R_RDI])->f_path));
}}
{HERE}
{{
    self->word = strtok(copyinstr(regs[R_RSI]), " ");
    self->word = strtok(NULL, "!");
    self->last = self->word;
    self->word = strtok(NULL, "!");
    printf("words %s %d\\n", self->last, self->word == NULL);
    this->text = json("{{\\"a\\": [1, {{\\"b\\": true}}]}}", "a[1].b");
    printf("json %s %d\\n", this->text, json("[]", "a") == NULL);
}}
{HERE} {{ trace(self->word); }}
{HERE} {{ trace(copyinstr(0x10)); }}
{HERE} {{ trace(copyin(0xffffffff81000000, 8)); }}
{HERE} {{ trace(copyin(regs[R_RSI], 1 << 20)); }}
ERROR {{ printf("error %d %x\\n", arg4, arg5); }}
"""


@pytest.mark.parametrize("way", ["jump", "trap", "stop"])
def test_memory_of_the_program(
    guest_program: Callable[[str], Path], tmp_path: Path, way: str
) -> None:
    writes = f'{HERE} {{ copyoutstr("KINST", regs[R_RSI] + 2, 5); }}' if way != "stop" else ""
    lines = [
        "mkdir -p /jail/work /jail/dev && mount -o bind /dev /jail/dev",
        "cp $(which usertext) /jail/jailed && cd /jail/work",
        "usertext 1 two 'a b'",
        "chroot /jail /jailed 1 >/dev/null",
    ]
    script = guest_script(tmp_path, "work.sh", "\n".join(lines))
    done = kinst(
        "-q", "-w", "-x", f"plant={way}", "-n", PROGRAM + writes, "-c", "work.sh",
        copy=[guest_program("usertext"), script],
    ).good()  # fmt: skip
    out = [line for line in done.out.splitlines() if line]
    ((pid, ppid),) = re.findall(r"^ids (\d+) (\d+)$", done.guest, re.M)
    assert f"before {TEXT}" in done.guest
    assert out == [
        f"string {TEXT}|{TEXT[:6]}|a",
        f"bytes at{TEXT[3]} {TEXT[2:6]} {len(TEXT) - 4}",
        f"ids {pid} {ppid} 1 1",
        "kin 1 0",
        "args usertext 1 two a b|",
        "at /jail/work / /dev/null",
        f"words {TEXT[2:]} 1",
        "json true 1",
        "error 1 0",
        "error 1 10",
        "error 1 ffffffff81000000",
        "error 5 0",
        "at / /jail /dev/null",
    ]
    expected = TEXT[:2] + "KINST" + TEXT[7:] if writes else TEXT
    assert f"after {expected}" in done.guest
    assert "Traceback" not in done.err
