"""Contract of an instruction set: a machine behind a GDB stub.

kinst takes the instruction set from the kernel's file.  kinst did not start the machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import kinst
from tests.vm.isa_guest import Guest
from tests.vm.stub_guest import stub_guest

pytestmark = pytest.mark.vm


def test_a_stub_of_any_instruction_set(guest: Guest, tmp_path: Path) -> None:
    """vfs_read is entered from ksys_read, once for each read; its third argument is 1."""
    with stub_guest(guest.isa, guest.kernel, guest.reads(), tmp_path, "unix") as stub:
        to = ("--gdb", stub.address, "--kernel", str(guest.kernel.debug))
        done = kinst(
            *to, "-n",
            """kinst::ksys_read:0 /execname == "reads"/ { @a = count(); in = 1; }
            fbt::vfs_read:entry /execname == "reads" && in/
            { @b = count(); @c = sum(arg2); @[func(caller)] = count(); n++; }
            fbt::vfs_read:entry /n == 20/ { exit(5); }
            END { printa("a %@d\\n", @a); printa("b %@d\\n", @b); printa("c %@d\\n", @c); }""",
            boots=False,
        )  # fmt: skip
        assert done.status == 5, done
        found = dict(re.findall(r"(a|b|c) (\d+)$", done.out, re.M))
        assert found == {"a": "20", "b": "20", "c": "20"}, done.out
        assert re.search(r"`ksys_read +20$", done.out, re.M), done.out
        assert stub.goes_on()
        listing = kinst(*to, "-l", "-v", "-n", "kinst::vfs_read:", boots=False).good()
        assert len(re.findall(r" {2,}stop(?: {2,}|$)", listing.out, re.M)) > 20
        # Source lines are found, whatever code ftrace has before the function.
        assert re.search(r" {2,}stop {2,}fs/read_write.c:\d+$", listing.out, re.M)
        assert stub.goes_on()
