"""Actions in a running kernel: stacks in all ways of planting, speculation, tracemem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import Row, kinst

pytestmark = pytest.mark.vm

READS = 20


def test_probes_inside_the_unwinder(reads: Path) -> None:
    """Plant a trap at every instruction of functions that the unwinder executes.

    Nested firings are dropped and counted, and the stack is the same as without the traps.
    """
    program = """
        kinst::stack_trace_save_regs:, kinst::unwind_next_frame:, kinst::__unwind_start:
        { trace(1); }
        kinst::vfs_read:0 /execname == "reads"/ { @[stack(4), stackdepth] = count(); }
        END { printa("%k%d %@d\\n", @); }"""
    done = kinst(
        "-q", "-x", "plant=trap", "-n", program, "-c", f"reads {READS}", copy=[reads]
    ).good()  # fmt: skip
    frames = [line.strip() for line in done.out.splitlines() if "`" in line]
    stack = [frame.partition("+")[0] for frame in frames if not frame.endswith("(inlined)")]
    assert stack == [
        f"vmlinux`{name}"
        for name in ("vfs_read", "ksys_read", "do_syscall_64", "entry_SYSCALL_64_after_hwframe")
    ], done
    assert re.findall(r"^4 (\d+)$", done.out, re.M) == [str(READS)], done
    assert "it was already in a probe" in done.err


@pytest.mark.slow
def test_stop_planted_stacks_are_the_same(read_path: dict[str, list[Row]], reads: Path) -> None:
    """kinst, with the kernel's tables, finds the same stack as the kernel's unwinder.

    Speculation, tracemem and its dynamic number of bytes are the same in all ways of planting.
    """
    program = """
        kinst::vfs_read:19, kinst::read_zero:8 /execname == "reads"/
        { stack(); trace(stackdepth); }
        kinst::read_zero:8 /execname == "reads"/ { tracemem(regs[R_RIP] + 8, 8, 4); }
        kinst::vfs_read:19 /execname == "reads"/ { self->s = speculation(); }
        kinst::vfs_read:19 /execname == "reads"/ { speculate(self->s); printf("kept %d\\n", pid); }
        kinst::read_zero:8 /self->s/ { commit(self->s); self->s = 0; }"""
    seen = {
        way: kinst(
            "-q", "-x", f"plant={way}", "-n", program, "-c", "reads 3",
            append="nokaslr", copy=[reads],
        ).good().out
        for way in ("jump", "trap", "stop")
    }  # fmt: skip
    plain = {way: re.sub(r"kept \d+", "kept", out) for way, out in seen.items()}
    assert plain["jump"].count("vmlinux`ksys_read+") == 6
    assert plain["jump"].count("kept") == 3
    rows = {row.offset: row.code for row in read_path["read_zero"]}
    code = b"".join(rows[at] for at in sorted(rows))[16:20]
    assert plain["jump"].count(f"0: {code.hex(' ')}  ") == 3
    assert plain["trap"] == plain["jump"] == plain["stop"]


def test_profile_samples_the_kernel_without_another_probe() -> None:
    """profile-N alone boots the kernel: each sample finds a CPU in the kernel (arg0) or in user
    mode (arg1), and the stacks are those of the CPUs (Guide, ch. 19)."""
    program = """
        BEGIN { began = timestamp; }
        profile-97
        {
            @[stack(2)] = count(); @cpus[cpu] = count();
            @wrong = sum((arg0 != 0) == (arg1 != 0));
        }
        profile-97 /cpu == 1/ { rounds++; }
        profile-97 /rounds == 25/ { exit(0); }
        END
        {
            printa("%k %@d\\n", @); printa("cpu %d %@d\\n", @cpus); printa("wrong %@d\\n", @wrong);
            printf("took %d\\n", timestamp - began);
        }"""
    out = kinst("-q", "-n", program).good().out
    frames = [line.strip() for line in out.splitlines() if "`" in line]
    assert frames and all(frame.startswith("vmlinux`") for frame in frames), out
    assert re.findall(r"^cpu (\d+) (\d+)$", out, re.M) == [("0", "25"), ("1", "25")], out
    assert re.findall(r"^wrong (\d+)$", out, re.M) == ["0"], out
    # Not more often than asked for; on a busy host it may be less often.
    (took,) = re.findall(r"^took (\d+)$", out, re.M)
    assert int(took) >= 25 * 10**9 // 97, out
