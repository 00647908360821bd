"""sdt probes against the guest's own events: the same firings with the same values, while the guest
turns the same tracepoints on and off.

A thread that starts after the guest's events are on, and ends before they are off, has all of its
firings in the guest's buffer and in kinst's.  These are compared thread by thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import kinst as library
from tests.tiers import of_kernels
from tests.vm.command import guest_script, kinst, warnings

pytestmark = pytest.mark.vm

# By event: the values that kinst prints, in D, and the names of the event's fields with them.  What
# is the current thread's own is in no list: lines begin with it.
EVENTS = {
    "sched:sched_switch": ("args[1]->pid, args[2]->pid", "prev_pid next_pid"),
    "sched:sched_wakeup": ("args[0]->pid", "pid"),
    "sched:sched_waking": ("args[0]->pid", "pid"),
    "sched:sched_process_fork": ("args[0]->pid, args[1]->pid", "pid child_pid"),
    "sched:sched_process_exec": ("args[0]->pid, args[1]", "pid old_pid"),
    "sched:sched_process_exit": ("args[0]->pid", "pid"),
    "signal:signal_generate": ("args[0], args[2]->pid, args[3], args[4]", "sig pid grp res"),
    "signal:signal_deliver": ("args[0]", "sig"),
    "irq:softirq_entry": ("args[0]", "vec"),
    "irq:softirq_raise": ("args[0]", "vec"),
    "kmem:kmalloc": ("args[2], args[3]", "bytes_req bytes_alloc"),
    "kmem:mm_page_alloc": ("args[1], args[3]", "order migratetype"),
    "timer:timer_start": ("args[0]->expires", "expires"),
    "task:task_newtask": ("args[0]->pid", "pid"),
    "writeback:writeback_mark_inode_dirty": ("args[0]->i_ino", "ino"),
}
# Events of the thread itself, never of an interrupt.
IN_ORDER = {"sched_switch", "sched_process_fork", "sched_process_exec", "sched_process_exit",
            "signal_deliver", "task_newtask"}  # fmt: skip
ROUNDS = 4
KTHREADD = 2  # thread that forks the kernel's own threads (init/main.c, rest_init())
# Programs that fork, execute, wait, write, sleep and kill.
WORK = """
echo some > /tmp/some; cat /tmp/some > /tmp/other; rm /tmp/other
sleep 0.01 & usleep 2000; kill $! 2>/dev/null
wait
for n in 1 2 3; do ls / > /dev/null; done
"""

# Commands one after another, each in a process of its own and to its end. (The guest's shell runs
# its own ls in a new process without execve.)
STEADY = "for n in 1 2 3; do ls / > /dev/null; done"


def script(events: list[str]) -> str:
    """Return the guest's script: work without its events and with them, and its buffer."""
    switch = "\n".join(f"echo $1 > events/{one.replace(':', '/')}/enable" for one in events)
    return f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo 0 > tracing_on; echo > trace; echo 4096 > buffer_size_kb
echo 0 > options/irq-info; echo 0 > options/record-cmd
turn() {{
{switch}
}}
work
for n in $(seq {ROUNDS}); do
    turn 1; echo 1 > tracing_on
    work
    echo 0 > tracing_on; turn 0
    work
done
echo ROUNDS OVER
cat per_cpu/cpu*/stats | grep overrun
cat trace
dmesg -r | tail -100
"""


def program(events: list[str]) -> str:
    clauses = []
    for event in events:
        subsystem, name = event.split(":")
        values, _ = EVENTS[event]
        form = " ".join("%d" for _ in values.split(","))
        clauses.append(
            f'sdt:{subsystem}::{name} {{ printf("+ %d {name} {form}\\n", tid, {values}); }}'
        )
    return "\n".join(clauses)


Firings = dict[int, list[tuple[str, ...]]]


def of_kinst(out: str) -> Firings:
    found: dict[int, list[tuple[str, ...]]] = {}
    for line in re.findall(r"^\+ (.+)$", out, re.M):
        thread, *words = line.split()
        found.setdefault(int(thread), []).append(tuple(words))
    return found


def of_guest(trace: str, events: list[str]) -> Firings:
    """Return the firings in the guest's buffer, with the fields that kinst prints."""
    fields = {event.split(":")[1]: EVENTS[event][1].split() for event in events}
    found: dict[int, list[tuple[str, ...]]] = {}
    for thread, name, text in re.findall(r"^ *.+?-(\d+) +\[\d+\].*?: (\w+): (.*)$", trace, re.M):
        if name not in fields:
            continue
        values = dict(re.findall(r"(\w+)=(\S+)", text))
        own = tuple(values[field] for field in fields[name])
        found.setdefault(int(thread), []).append((name, *own))
    return found


def whole_threads(trace: Firings) -> list[int]:
    """Return the threads that the buffer has from their first firing to their end."""
    born = {int(values[2]) for some in trace.values() for values in some
            if values[0] == "sched_process_fork"}  # fmt: skip
    return [t for t, some in trace.items() if t in born and ("sched_process_exit", str(t)) in some]


def compared(out: str, guest: str, events: list[str]) -> Counter[str]:
    """Compare the firings of the threads that both have whole; return how many of each event."""
    mine, theirs = of_kinst(out), of_guest(guest, events)
    threads = whole_threads(theirs)
    assert len(threads) >= 2 * ROUNDS, guest[-3000:]
    counts: Counter[str] = Counter()
    for thread in threads:
        # An interrupt may come between kinst's record of a firing and the guest's.
        assert sorted(mine[thread]) == sorted(theirs[thread]), thread
        own = [[one for one in some[thread] if one[0] in IN_ORDER] for some in (mine, theirs)]
        assert own[0] == own[1], thread
        counts.update(name for name, *_ in theirs[thread])
    return counts


@pytest.mark.parametrize("isa", of_kernels(["amd64", "arm64", "riscv64"]))
def test_firings_are_the_guests_own(isa: str, tmp_path: Path) -> None:
    listed = kinst(f"--vm={isa}", "-l", "-n", "sdt:::").good().out
    events = [event for event in EVENTS if re.search(rf" {event.split(':')[1]}$", listed, re.M)]
    assert len(events) >= len(EVENTS) - 1, listed
    if isa == "riscv64":
        events.remove("signal:signal_generate")  # reading two of its arguments is an ERROR there
    scripts = [
        guest_script(tmp_path, "rounds", script(events)), guest_script(tmp_path, "work", WORK),
    ]  # fmt: skip
    options = ("--cpus", "1", "-v", "-x", "quiet", "-x", "bufsize=16m")
    done = kinst(
        f"--vm={isa}", *options, "-n", program(events), "-c", "rounds", copy=scripts
    ).good()
    assert "overrun: 0" in done.guest and not re.search(r"overrun: [1-9]", done.guest)
    counts = compared(done.out, done.guest, events)
    assert len(counts) >= (10 if isa == "amd64" else 4), counts
    assert "kernel text is as before" in done.err and "drop" not in done.err, done.err
    assert not warnings(done.guest), done.guest[-3000:]
    # Firings while the guest had its events off, between and before its rounds.
    every = Counter(name for some in of_kinst(done.out).values() for name, *_ in some)
    assert every["sched_process_exec"] >= 2 * counts["sched_process_exec"] > 0


def test_the_guests_own_events_are_as_before_after_a_trace(tmp_path: Path) -> None:
    """A second trace has no sdt probe; its guest turns on what the first one used."""
    events = ["sched:sched_process_fork", "sched:sched_process_exec"]
    again = script(events)
    with library.boot(cpus=1, copies=[
        guest_script(tmp_path, "rounds", again), guest_script(tmp_path, "work", STEADY),
    ]) as machine:  # fmt: skip
        counted = []
        for text in ("BEGIN { }", program(events), "BEGIN { }", program(events), "BEGIN { }"):
            done = machine.run(text, command="rounds", options={"quiet": True})
            guest = done.output.decode()
            theirs = of_guest(guest, events)
            theirs.pop(KTHREADD, None)  # a busy kernel may want another worker at any time
            counted.append(Counter(one[0] for some in theirs.values() for one in some))
            assert not warnings(guest), guest[-3000:]
        # In each round: the script itself, and three times ls.
        once = Counter(sched_process_exec=ROUNDS, sched_process_fork=4 * ROUNDS)
        assert counted == [once] * 5, guest[-3000:]


def test_the_list_has_the_kernels_events(tmp_path: Path) -> None:
    """Subsystems and names are those of the running kernel's own list."""
    listed = kinst("-l", "-n", "sdt:::").good().out
    mine = {(m[1], m[2]) for m in re.finditer(r"^ *\d+ +sdt +(\S+) +(\S+)$", listed, re.M)}
    command = "mount -t tracefs n /sys/kernel/tracing; cat /sys/kernel/tracing/available_events"
    guest = kinst("-q", "-n", "BEGIN { }", "-c", command).good().guest
    events = {
        tuple(line.split(":")) for line in guest.splitlines() if re.fullmatch(r"\w+:\w+", line)
    }
    events = {one for one in events if one[0] not in ("syscalls", "ftrace")}
    assert len(events) > 600 and len(mine & events) > 600
    assert not {name for _, name in mine - events} & {name for _, name in events}


def test_what_fires_only_after_a_function_is_refused() -> None:
    done = kinst("-n", "sdt:raw_syscalls::sys_enter { @ = count(); }", "-c", "true")
    assert done.status == 1 and "fires only after the kernel has run syscall_regfunc()" in done.err


SENT = 50


# A round in which the guest's own event is on until all packets of the connection have been sent.
WITH_EVENT = f"echo 1 > $event; vsock {SENT}; sleep 0.3; echo 0 > $event"


@pytest.mark.parametrize(
    ("rounds", "lengths"),
    [
        ([WITH_EVENT] * 3, "all"),
        # How many packets without data there are differs by round.
        ([f"vsock {SENT}", WITH_EVENT, f"vsock {SENT}"], "data"),
    ],
    ids=["its event is on", "its event is turned on and off"],
)
def test_tracepoints_of_a_module(
    rounds: list[str], lengths: str, guest_program: Callable[[str], Path]
) -> None:
    """Packets that a module sends, by its own event and by kinst; a packet of data has one byte.

    The guest has one CPU: its worker sends the last packets before `sleep` ends, however busy the
    host is, and QEMU's TCG keeps no old translation when the kernel turns the event on.
    """
    event = "events/vsock/virtio_transport_alloc_pkt/enable"
    text = f"""
mount -t tracefs none /sys/kernel/tracing; cd /sys/kernel/tracing; event={event}
dmesg -c > /dev/null
{"; ".join(rounds)}
cat trace | grep virtio_transport_alloc_pkt
dmesg -r | tail -50
"""
    done = kinst(
        "--cpus", "1", "-v", "-x", "quiet", "--module", "vsock_loopback", "-n",
        'sdt:vsock::virtio_transport_alloc_pkt { @[args[4]] = count(); }', "-n",
        'END { printa("length %d count %@d\\n", @); }', "-c", text, copy=[guest_program("vsock")],
    ).good()  # fmt: skip
    mine = {int(a): int(b) for a, b in re.findall(r"length (\d+) count (\d+)", done.out)}
    theirs = Counter(map(int, re.findall(r"alloc_pkt: .* len=(\d+)", done.guest)))
    assert mine.keys() == theirs.keys()
    if lengths == "all":
        assert mine == theirs, done.guest
    assert mine[1] == len(rounds) * SENT
    assert theirs[1] == rounds.count(WITH_EVENT) * SENT
    assert "kernel text is as before" in done.err and not warnings(done.guest), done.guest
