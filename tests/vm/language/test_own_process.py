"""Built-in variables and structures of BEGIN and timers, which fire in kinst's own process.

The types are the kernel's, but no guest runs.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.vm.command import KINST, SECONDS

pytestmark = pytest.mark.vm

PROCESS = """
BEGIN
{
    printf("%d %d %d %d %d\\n", curpsinfo->pr_nlwp, curpsinfo->pr_pid == $pid, curpsinfo->pr_ppid,
        curpsinfo->pr_pgid, curpsinfo->pr_sid);
    printf("%d %d %d %d\\n", curpsinfo->pr_uid, curpsinfo->pr_euid, curpsinfo->pr_gid,
        curpsinfo->pr_egid);
    printf("%s %d\\n", curpsinfo->pr_fname, curpsinfo->pr_psargs == execargs);
}
tick-10ms
{
    printf("%d %d %c %s\\n", curlwpsinfo->pr_lwpid == $pid, curlwpsinfo->pr_flag,
        curlwpsinfo->pr_sname, curlwpsinfo->pr_name);
    exit(0);
}
"""


def ran(program: str) -> subprocess.CompletedProcess[str]:
    command = [KINST, "-q", "-n", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_members_of_structures_are_those_of_this_process() -> None:
    """The parent is this test, and users and groups are inherited from it."""
    run = ran(PROCESS)
    family, ids, name, thread = run.stdout.split("\n")[:4]
    assert family == f"1 1 {os.getpid()} {os.getpgrp()} {os.getsid(0)}", run
    assert ids == f"{os.getuid()} {os.geteuid()} {os.getgid()} {os.getegid()}"
    assert (name, thread) == ("kinst 1", "1 0 O kinst")


def test_what_only_a_process_of_the_kernel_has_is_a_fault() -> None:
    run = ran("BEGIN { trace(curpsinfo->pr_size); } ERROR { exit(3); }")
    assert (run.returncode, run.stdout.strip()) == (3, "")
    assert "invalid address" in run.stderr
