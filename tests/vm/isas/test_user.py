"""Memory of the traced program on every instruction set: data that it writes, and its
arguments."""

from __future__ import annotations

import re

import pytest

from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

LINES = 3000
PROGRAM = """
fbt::ksys_write:entry /execname == "seq"/ { printf("%s", stringof(copyin(arg1, arg2))); }
fbt::do_sys_openat2:entry /execname == "cat"/ { @opened[copyinstr(arg1), execargs] = count(); }
fbt::ksys_read:entry /execname == "cat"/ { @read[ustackdepth > 0] = count(); }
END { printa("open %s of %s %@d\\n", @opened); printa("read %d %@d\\n", @read); }
"""


def test_what_is_written_is_copied_in(guest: Guest) -> None:
    """Writes of up to a page go through a pipe.

    The kernel checks each copy (Debian's kernels have CONFIG_HARDENED_USERCOPY) and panics if it
    is not allowed.
    """
    command = f"seq {LINES} | cat >/tmp/lines; cat /tmp/lines >/dev/null; sleep 0.1"
    done = guest.trace("-q", "-x", "strsize=8k", "-n", PROGRAM, "-c", command, copy=[])
    text, _, table = done.out.partition("open ")
    assert text.splitlines() == [str(k) for k in range(1, LINES + 1)]
    assert "/tmp/lines of cat /tmp/lines 1\n" in f"open {table}"
    ((depth, reads),) = re.findall(r"^read (\d+) (\d+)$", table, re.M)
    assert depth == "1" and int(reads) > 1
