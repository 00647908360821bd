"""Changes that the guest itself makes to its text while it is traced.

Tracepoints, static keys, ftrace, kprobes and modules come and go beside the patches.  Counts stay
exact, and the text is restored.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst, warnings

pytestmark = [pytest.mark.vm, pytest.mark.slow]
ROUNDS, READS = 3, 1000
# Static keys are flipped in all of these: tracepoints and statistics of the scheduler.
NEAR_KEYS = ("__schedule", "try_to_wake_up", "finish_task_switch.isra.0", "vfs_read", "ksys_read")
SCRIPT = f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo 0 > /proc/sys/debug/kprobes-optimization 2>/dev/null
try() {{ "$@" 2>/dev/null || echo "refused: $*"; }}
say() {{ echo "$1" > "$2"; }}
add() {{ echo "$1" >> "$2"; }}
n=0
while [ $n -lt {ROUNDS} ]; do
    n=$((n + 1))
    say 1 events/sched/enable; say 1 /proc/sys/kernel/sched_schedstats
    reads {READS}
    say 0 events/sched/enable; say 0 /proc/sys/kernel/sched_schedstats
    # ftrace on functions beside, and on what is planted.
    say 'vfs_write vfs_open' set_ftrace_filter; say function current_tracer
    reads {READS}
    try add vfs_read set_ftrace_filter
    reads {READS}
    say nop current_tracer; say '' set_ftrace_filter
    # A kprobe on a function beside, and one on what is planted.
    say 'p:beside vfs_write' kprobe_events
    say 1 events/kprobes/beside/enable
    for at in vfs_read ksys_read; do
        try add "p:planted_$at $at" kprobe_events && try say 1 events/kprobes/planted_$at/enable
    done
    reads {READS}
    for one in events/kprobes/*/enable; do say 0 $one; done
    say '' kprobe_events
    rmmod dummy; reads {READS}; insmod /lib/kinst/*dummy.ko
done
echo rounds $n
dmesg -r | tail -200
"""


@pytest.mark.parametrize(
    ("isa", "way"), [("amd64", "auto"), ("amd64", "trap"), ("arm64", "auto"), ("riscv64", "auto")]
)
def test_the_guest_changes_its_text(
    isa: str, way: str, program_for: object, tmp_path: Path
) -> None:
    reads = program_for("reads", isa)  # type: ignore[operator]
    script = guest_script(tmp_path, "changes", SCRIPT)
    everything = ",".join(f"kinst::{name}:" for name in NEAR_KEYS)
    done = kinst(
        f"--vm={isa}", "-v", "-Z", "-x", f"plant={way}", "--module", "dummy",
        "-n", f"{everything} {{ @all[probefunc] = count(); }}",
        "-n", "kinst:dummy:*: { @module = count(); }",
        "-n", 'kinst::vfs_read:0 /execname == "reads"/ { @reads["reads"] = count(); }',
        "-n", 'END { printa("reads %@d\\n", @reads); printa("all %s %@d\\n", @all); }',
        "-c", "changes",
        copy=[reads, script],
    ).good()  # fmt: skip
    assert f"rounds {ROUNDS}" in done.guest
    (counted,) = map(int, re.findall(r"reads (\d+)", done.out))
    assert counted == 5 * ROUNDS * READS
    everywhere = dict(re.findall(r"all (\S+) (\d+)", done.out))
    assert {"__schedule", "try_to_wake_up", "vfs_read"} <= set(everywhere)
    assert "kernel text is as before" in done.err, done.err
    # The scheduler's statistics are off at first.
    said = [line for line in warnings(done.guest) if "schedstats" not in line]
    assert not said, said
    assert "drop" not in done.err
