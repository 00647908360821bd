"""A one-liner of bpftrace is refused with the same line in D, and that line does what was meant."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.vm.command import kinst

pytestmark = pytest.mark.vm


def test_the_line_that_follows_the_error_runs() -> None:
    program = 'kretprobe:vfs_read /comm == "wc"/ { @calls++; @bytes[comm] = sum(retval); }'
    refused = kinst("-q", "-n", program, "-c", "wc -c /etc/passwd", boots=0)
    assert refused.status == 1
    command, option, _, *words = shlex.split(refused.err.splitlines()[-1])
    assert (command, option) == ("kinst", "-o")  # kinst() names the file for the output
    assert words[-2:] == ["-c", "wc -c /etc/passwd"]
    ran = kinst(*words)
    size = re.search(r"^([0-9]+) /etc/passwd$", ran.guest, re.M)  # by wc itself
    total = re.search(r"^\s+wc\s+([0-9]+)$", ran.out, re.M)
    assert size is not None and total is not None and ran.status == 0
    assert total[1] == size[1]
