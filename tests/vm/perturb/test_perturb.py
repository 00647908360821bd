"""regs[] =, return(), skip(), goto() and stores to memory, in real kernels: what programs in the
guest see of them.
"""

from __future__ import annotations

import re

import pytest

from tests.vm.command import Result, kinst
from tests.vm.isa_guest import Guest
from tests.vm.perturb.perturbed_functions import COUNT, RESULT, setting_of_result

pytestmark = pytest.mark.vm

COMPLAINTS = r"dmesg | grep -E 'BUG|Oops|WARNING|Unable to handle' >&2; true"


def run(guest: Guest, program: str, command: str, *options: str) -> Result:
    """Run a shell command under a program with -w; the kernel must have nothing to complain of."""
    told = f'sh -c "({command}) 2>&1; {COMPLAINTS}"'
    done = guest.trace("-q", "-w", *options, "-n", program, "-c", told, copy=[])
    assert not re.search("BUG|Oops|WARNING|Unable to handle", done.guest + done.err), done
    return done


@pytest.mark.parametrize("way", ["auto", "trap", "stop"])
def test_a_function_returns_without_having_run(guest: Guest, way: str) -> None:
    program = """
        fbt::vfs_open:entry /execname == "cat" && !done/ { done = 1; return(-13); }
        fbt::vfs_open:return /execname == "cat"/ { @ = count(); }"""
    command = "cat /etc/passwd; cat /etc/passwd"
    done = run(guest, program, command, "-x", f"plant={way}")
    assert done.guest.count("Permission denied") == 1, done
    assert done.guest.count("root:x:") == 1


@pytest.mark.parametrize("way", ["auto", "trap", "stop"])
def test_a_written_argument_is_what_the_function_gets(guest: Guest, way: str) -> None:
    register = COUNT[guest.isa]
    program = f"kinst::vfs_read:0 /regs[{register}] == 100/ {{ regs[{register}] = 1; }}"
    command = "dd if=/dev/zero of=/dev/null bs=100 count=5"
    done = run(guest, program, command, "-x", f"plant={way}")
    assert "0+5 records in" in done.guest, done


@pytest.mark.parametrize("action", ["skip()", "goto({after})"])
@pytest.mark.parametrize("way", ["auto", "stop"])
def test_an_instruction_is_left_out(guest: Guest, action: str, way: str) -> None:
    """A read of /dev/null returns 0, or what is in the register without that instruction."""
    row = setting_of_result(guest)
    left_out = action.format(after=row.after)
    program = f"{row.name} {{ regs[{RESULT[guest.isa]}] = 5; {left_out}; }}"
    command = "dd if=/dev/null of=/dev/null bs=10 count=3"
    done = run(guest, program, command, "-x", f"plant={way}")
    assert "0+3 records in" in done.guest, done


def test_variables_of_the_kernel_are_assigned(guest: Guest) -> None:
    program = """
        fbt::vfs_open:entry /execname == "cat" && !done/ { `panic_timeout = 77; done = 1; }
        fbt::vfs_open:entry /execname == "head" && !bad/
        { bad = 1; *(char *)&`linux_banner = 33; }
        ERROR { @[arg4] = count(); }"""
    done = run(guest, program, "cat /proc/sys/kernel/panic; head -c 5 /proc/version")
    assert "77\n" in done.guest, done
    assert "Linux" in done.guest
    assert done.out.split() == ["1", "1"]  # a bad address


def test_signals_reach_the_current_process(guest: Guest) -> None:
    program = """
        fbt::vfs_open:entry /execname == "head"/ { raise(9); }
        fbt::vfs_open:entry /execname == "cat" && !done/ { done = 1; stop(); }
        """
    command = (
        "head -c 4 /etc/passwd; cat /etc/passwd & n=0;"
        " until grep -q stopped /proc/\\$!/status || [ \\$n = 300 ];"
        " do sleep 0.1; n=\\$((n + 1)); done;"
        " grep State: /proc/\\$!/status; kill -CONT \\$!; wait"
    )
    done = run(guest, program, command)
    assert "Killed" in done.guest, done
    assert "T (stopped)" in done.guest
    assert "root:" in done.guest


def test_the_kernel_panics(guest: Guest) -> None:
    program = 'fbt::vfs_open:entry /execname == "cat"/ { panic(); }'
    done = kinst(f"--vm={guest.isa}", "-w", "-n", program, "-c", "cat /etc/passwd")
    assert done.status != 0
    assert "kinst: panic() in a D program" in done.err, done


def test_refusals_name_the_reason() -> None:
    for program, reason in (
        ("fbt::kfree:entry { return(1); }", "kfree returns void"),
        ("kinst::fdget_pos:entry { return(1); }", "inlined copy of fdget_pos"),
        ("kinst::vfs_read:0 { regs[R_RSP] = 1; }", "stack pointer"),
        ("fbt::vfs_read:entry { goto(1 << 20); }", "no instruction of vfs_read begins there"),
    ):
        done = kinst("-w", "-n", program, "-c", "true")
        assert done.status == 1 and reason in done.err, done
