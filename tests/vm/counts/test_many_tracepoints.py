"""sdt probes at some seventy tracepoints at once, on several kernels, against the guest's own
events.

The guest has one CPU, so both logs have one order, but for interrupts between the two records of a
firing. A shell makes a mark in both logs before and after the work of a round: it writes its own
oom_score_adj. Between the marks the logs must have the same firings with the same values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import kinst as library
from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepare
from tests.tiers import ISAS
from tests.vm.command import guest_script, kinst, warnings

pytestmark = [pytest.mark.vm, pytest.mark.slow]

# By event: the values that kinst prints, in D, and the names of the event's fields with them; empty
# if the event shows no plain numbers of its arguments, or other ones in other kernels.
PID, NOTHING = ("args[0]->pid", "pid"), ("", "")
EVENTS = {
    "oom:oom_score_adj_update": (
        "args[0]->pid, args[0]->signal->oom_score_adj", "pid oom_score_adj"),
    "sched:sched_switch": ("args[1]->pid, args[2]->pid", "prev_pid next_pid"),
    "sched:sched_wakeup": PID, "sched:sched_waking": PID, "sched:sched_wakeup_new": PID,
    "sched:sched_process_fork": ("args[0]->pid, args[1]->pid", "pid child_pid"),
    "sched:sched_process_exec": ("args[0]->pid, args[1]", "pid old_pid"),
    "sched:sched_process_exit": PID, "sched:sched_process_free": PID,
    "sched:sched_process_wait": NOTHING,
    "sched:sched_stat_runtime": ("args[0]->pid, args[1]", "pid runtime"),
    "signal:signal_generate": ("args[0], args[2]->pid, args[3], args[4]", "sig pid grp res"),
    "signal:signal_deliver": ("args[0]", "sig"),
    "irq:softirq_entry": ("args[0]", "vec"), "irq:softirq_exit": ("args[0]", "vec"),
    "irq:softirq_raise": ("args[0]", "vec"),
    "irq:irq_handler_entry": ("args[0]", "irq"), "irq:irq_handler_exit": ("args[0]", "irq"),
    "kmem:kmalloc": ("args[2], args[3]", "bytes_req bytes_alloc"), "kmem:kfree": NOTHING,
    "kmem:kmem_cache_alloc": NOTHING, "kmem:kmem_cache_free": NOTHING,
    "kmem:mm_page_alloc": ("args[1], args[3]", "order migratetype"),
    "kmem:mm_page_free": ("args[1]", "order"), "kmem:mm_page_free_batched": NOTHING,
    "kmem:mm_page_alloc_zone_locked": ("args[1], args[2]", "order migratetype"),
    "kmem:mm_page_pcpu_drain": ("args[1], args[2]", "order migratetype"),
    "kmem:rss_stat": NOTHING,
    "timer:timer_init": NOTHING, "timer:timer_start": ("args[0]->expires", "expires"),
    "timer:timer_expire_entry": NOTHING, "timer:timer_expire_exit": NOTHING,
    "timer:timer_cancel": NOTHING, "timer:hrtimer_init": NOTHING,
    "timer:hrtimer_start": ("args[0]->node.expires", "expires"),
    "timer:hrtimer_cancel": NOTHING, "timer:hrtimer_expire_entry": ("*args[1]", "now"),
    "timer:hrtimer_expire_exit": NOTHING, "timer:tick_stop": NOTHING,
    "task:task_newtask": ("args[0]->pid, args[1]", "pid"), "task:task_rename": PID,
    "workqueue:workqueue_queue_work": ("args[0]", "req_cpu"),
    "workqueue:workqueue_activate_work": NOTHING, "workqueue:workqueue_execute_start": NOTHING,
    "workqueue:workqueue_execute_end": NOTHING,
    "writeback:writeback_mark_inode_dirty": ("args[0]->i_ino", "ino"),
    "writeback:writeback_dirty_inode_start": ("args[0]->i_ino", "ino"),
    "writeback:writeback_dirty_inode": ("args[0]->i_ino", "ino"),
    "filemap:mm_filemap_add_to_page_cache": NOTHING,
    "filemap:mm_filemap_delete_from_page_cache": NOTHING,
    "net:netif_rx": ("args[0]->len", "len"), "net:net_dev_queue": ("args[0]->len", "len"),
    "net:netif_receive_skb": ("args[0]->len", "len"),
    "net:net_dev_start_xmit": ("args[0]->len", "len"),
    "net:net_dev_xmit": ("args[3], args[1]", "len rc"),
    "skb:kfree_skb": NOTHING, "skb:consume_skb": NOTHING,
    "skb:skb_copy_datagram_iovec": ("args[1]", "len"),
    "sock:inet_sock_set_state": NOTHING, "tcp:tcp_probe": NOTHING,
    "tcp:tcp_destroy_sock": NOTHING, "tcp:tcp_rcv_space_adjust": NOTHING,
    "tcp:tcp_receive_reset": NOTHING, "tcp:tcp_send_reset": NOTHING,
    "napi:napi_poll": NOTHING, "fib:fib_table_lookup": NOTHING,
    "power:cpu_idle": ("(uint64_t)args[0], (uint64_t)args[1]", "state cpu_id"),
    "rcu:rcu_utilization": NOTHING,
    "cgroup:cgroup_mkdir": ("args[0]->level", "level"),
    "cgroup:cgroup_rmdir": ("args[0]->level", "level"), "cgroup:cgroup_attach_task": NOTHING,
    "percpu:percpu_alloc_percpu": NOTHING, "percpu:percpu_free_percpu": NOTHING,
    "maple_tree:ma_write": NOTHING, "maple_tree:ma_read": NOTHING,
    "maple_tree:ma_op": NOTHING, "tlb:tlb_flush": NOTHING,
    "vmscan:mm_shrink_slab_start": NOTHING, "vmscan:mm_shrink_slab_end": NOTHING,
}  # fmt: skip
# Other values, by instruction set, version of the kernel ("7" for 7.2 and 7.3), and event.
OTHERS = {
    # The tracepoint has the time itself, not a pointer to it.
    ("", "7"): {"timer:hrtimer_expire_entry": ("args[1]", "now")},
    # The kernel computes args[3] after the instruction that is probed, by a comparison.
    ("arm64", "5.10"): {
        "signal:signal_generate": ("args[0], args[2]->pid, args[4]", "sig pid res")
    },
}
MARK = "oom_score_adj_update"
ROUNDS = 3
# The guest itself turns keys on for its first socket and its first cgroup.
UNDONE = re.compile("kernel text is as before|patches are all undone")
EDGE = 40  # most firings of an interrupt between the two records of a mark
# (instruction set, kernel, events that must have fired, subsystems).
KERNELS = [
    ("amd64", "", 60, 10), ("amd64", "5.10", 40, 8), ("amd64", "6.12", 50, 8),
    ("amd64", "7.3", 45, 8), ("arm64", "5.10", 40, 8), ("arm64", "", 50, 8),
    ("arm64", "6.12", 50, 8), ("arm64", "7.3", 45, 8), ("riscv64", "", 50, 8),
    ("riscv64", "7.2", 45, 8),
]  # fmt: skip
WORK = """
echo some > /tmp/some; cat /tmp/some > /tmp/other; rm /tmp/other
sleep 0.01 & usleep 2000; kill $! 2>/dev/null
wait
wget -q -O /dev/null http://127.0.0.1/some; wget -q -O /dev/null http://127.0.0.1:81/ 2>/dev/null
ping -q -c 1 127.0.0.1 > /dev/null
mkdir /tmp/cgroup/one; echo $$ > /tmp/cgroup/one/cgroup.procs
echo $$ > /tmp/cgroup/cgroup.procs; rmdir /tmp/cgroup/one
echo 3 > /proc/sys/vm/drop_caches
for n in 1 2 3; do ls / > /dev/null; done
usleep 20000
"""


def script(events: list[str]) -> str:
    switch = "\n".join(f"echo $1 > events/{one.replace(':', '/')}/enable" for one in events)
    return f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
ip link set lo up; ip addr add 127.0.0.1/8 dev lo 2>/dev/null
httpd -p 127.0.0.1:80 -h /tmp
mkdir -p /tmp/cgroup; mount -t cgroup2 none /tmp/cgroup
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo 0 > tracing_on; echo > trace; echo 16384 > buffer_size_kb
echo 0 > options/irq-info; echo 0 > options/record-cmd
turn() {{
{switch}
}}
work
for n in $(seq {ROUNDS}); do
    turn 1; echo 1 > tracing_on
    echo $((2 * n)) > /proc/self/oom_score_adj
    work
    echo $((2 * n + 1)) > /proc/self/oom_score_adj
    echo 0 > tracing_on; turn 0
    work
done
cat per_cpu/cpu*/stats | grep overrun
cat trace
dmesg -r | tail -100
"""


def values_of(isa: str, kernel: str) -> dict[str, tuple[str, str]]:
    """Return EVENTS as they are in a version of the kernel; "" for the usual one."""
    major = kernel.partition(".")[0]
    return {**EVENTS, **OTHERS.get(("", major), {}), **OTHERS.get((isa, kernel), {})}


def program(events: dict[str, tuple[str, str]]) -> str:
    """Return a program that prints each firing of the events."""
    clauses = []
    for event, (expressions, fields) in events.items():
        subsystem, name = event.split(":")
        names = fields.split()
        values = "".join(f", {value}" for value in expressions.split(", ")[: len(names)])
        form = "".join(" %d" for _ in names)
        text = f'printf("+ %d {name}{form}\\n", tid{values if names else ""});'
        clauses.append(f"sdt:{subsystem}::{name} {{ {text} }}")
    return "\n".join(clauses)


def whole(listed: str) -> list[str]:
    """Return the events that have a probe at each of their sites, from a list of all probes of sdt.

    The others have a site in code in which no probe may run: cpu_idle since Linux 6.12.
    """
    parts = re.split(r"^ *\d+ +sdt +(\S+) .*?(\S+)$", listed, flags=re.M)[1:]
    there = {
        f"{subsystem}:{name}"
        for subsystem, name, sites in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        if " refused: the kernel marks it noinstr" not in sites
    }
    return [event for event in EVENTS if event in there]


Firing = tuple[str, ...]  # thread, name of the event, values


def of_kinst(out: str) -> list[Firing]:
    return [tuple(line.split()) for line in re.findall(r"^\+ (.+)$", out, re.M)]


def of_guest(trace: str, events: dict[str, tuple[str, str]]) -> list[Firing]:
    fields = {event.split(":")[1]: names.split() for event, (_, names) in events.items()}
    found: list[Firing] = []
    for thread, name, text in re.findall(r"^ *.+?-(\d+) +\[\d+\].*?: (\w+):(.*)$", trace, re.M):
        if name in fields:
            values = dict(re.findall(r"(\w+)=(\S+)", text))
            found.append((thread, name, *(values[field] for field in fields[name])))
    return found


def between_marks(log: list[Firing], number: int) -> list[Firing]:
    """Return the firings of a round, whose number begins with 1."""
    at = {one[-1]: k for k, one in enumerate(log) if one[1] == MARK}
    return log[at[str(2 * number)] + 1 : at[str(2 * number + 1)]]


def same(one: list[Firing], other: list[Firing]) -> bool:
    """Whether two logs have the same firings, but for those of an interrupt next to a mark."""
    if len(one) < len(other):
        one, other = other, one
    more, wanted = len(one) - len(other), Counter(other)
    return more <= EDGE and any(
        Counter(one[k : len(one) - (more - k)]) == wanted for k in range(more + 1)
    )


@pytest.mark.parametrize(("isa", "kernel", "fewest", "subsystems"), KERNELS)
def test_firings_between_marks_are_the_guests_own(
    isa: str, kernel: str, fewest: int, subsystems: int, tmp_path: Path
) -> None:
    if kernel:
        prepare(isa, lambda what, part: None, kernel)
    chosen = (f"--vm={isa}", *(("--kernel", kernel) if kernel else ()))
    there = whole(kinst(*chosen, "-l", "-v", "-n", "sdt:::").good().out)
    every = values_of(isa, kernel)
    events = {event: every[event] for event in there}
    scripts = [
        guest_script(tmp_path, "rounds", script(there)), guest_script(tmp_path, "work", WORK),
    ]  # fmt: skip
    done = kinst(
        *chosen, "--cpus", "1", "-v", "-x", "quiet", "-x", "bufsize=16m",
        "-n", program(events), "-c", "rounds", copy=scripts,
    ).good()  # fmt: skip
    assert not re.search(r"overrun: [1-9]", done.guest) and "drop" not in done.err, done.err
    assert UNDONE.search(done.err) and not warnings(done.guest), done.guest[-3000:]
    mine, theirs = of_kinst(done.out), of_guest(done.guest, events)
    seen: Counter[str] = Counter()
    for number in range(1, ROUNDS + 1):
        ours, others = between_marks(mine, number), between_marks(theirs, number)
        assert same(ours, others), (number, Counter(ours) - Counter(others),
                                    Counter(others) - Counter(ours))  # fmt: skip
        seen.update(name for _, name, *_ in others)
    fired = [event for event in events if seen[event.split(":")[1]]]
    print(f"{isa} {kernel}: {len(fired)} of {len(events)} tracepoints fired, {sum(seen.values())}")
    assert len(fired) >= fewest, sorted(set(events) - set(fired))
    assert len({event.split(":")[0] for event in fired}) >= subsystems, fired


TURNS = 500
TURNED = ["sched:sched_process_exec", "sched:sched_process_fork", "sched:sched_process_exit"]


SWITCH = "; ".join(f"echo $1 > events/{one.replace(':', '/')}/enable" for one in TURNED)
TURN = f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo > trace; echo 8192 > buffer_size_kb; echo 0 > options/record-cmd
turn() {{ {SWITCH}; }}
for n in $(seq $1); do
    turn 1; /bin/ls / > /dev/null; turn 0; /bin/ls / > /dev/null
done
cat trace
dmesg -r | tail -100
"""


def symbols(machine: library.Machine, isa: str) -> dict[str, int]:
    """Return the addresses of the jump table and of the tracepoints: those of the kernel's file, as
    far away as the guest says that a function is. (arm64's kernel lists no data symbols.)"""
    elf = open_elf(prepare(isa, lambda what, part: None).debug)
    told = machine.execute("grep ' kernel_clone$' /proc/kallsyms").output.decode()
    slide = int(told.split()[0], 16) - (elf.address("kernel_clone") or 0)
    names = [f"__tracepoint_{one.split(':')[1]}" for one in TURNED]
    names += ["__start___jump_table", "__stop___jump_table"]
    places = {one: elf.address(one) for one in names}
    return {name: at + slide for name, at in places.items() if at}


def state(machine: library.Machine, at: Mapping[str, int]) -> dict[str, bytes]:
    """Return the guest's kernel text, its jump table, and the number of users of each tracepoint's
    key, which is the first member after the tracepoint's name (struct tracepoint)."""
    assert machine._started is not None
    traced = machine._started.machine
    (low, high), table = traced.text, at["__start___jump_table"]
    ranges = {"text": (low, high - low), "labels": (table, at["__stop___jump_table"] - table)}
    ranges.update({one: (at[one] + 8, 4) for one in at if one.startswith("__tracepoint")})
    traced.target.stop()
    try:
        return {name: traced.target.read(*place) for name, place in ranges.items()}
    finally:
        traced.target.resume()


@pytest.mark.parametrize("isa", ISAS)
def test_the_guest_turns_the_same_tracepoints_on_and_off(isa: str, tmp_path: Path) -> None:
    """A command runs with the events on and with the events off, in each of many rounds. Then the
    text, the jump table and the keys are as they were before."""
    clauses = "\n".join(
        f'sdt:sched::{one.split(":")[1]} {{ @["{one.split(":")[1]}"] = count(); }}'
        for one in TURNED
    )
    with library.boot(isa, cpus=1, copies=[guest_script(tmp_path, "turns", TURN)]) as machine:
        machine.execute("turns 2")  # what a guest turns on the first time stays on
        at = symbols(machine, isa)
        assert len(at) == 2 + len(TURNED), at
        before = state(machine, at)
        done = machine.run(clauses, command=f"turns {TURNS}")
        after = state(machine, at)
    (table,) = done.aggregations.values()
    counts = {str(key[0]): n for key, n in table.items()}
    guest = done.output.decode()
    theirs = Counter(re.findall(r": (sched_process_\w+): ", guest))
    assert theirs == {one.split(":")[1]: TURNS for one in TURNED}
    # More processes are those of the script itself: its shell, and mount, dmesg, seq and cat.
    for name in theirs:
        count = counts[name]
        assert isinstance(count, int) and 2 * TURNS <= count <= 2 * TURNS + 40, counts
    assert len(before["text"]) > 1 << 22 and len(before["labels"]) > 1 << 12
    assert [name for name in before if before[name] != after[name]] == []
    assert not done.lost and not warnings(guest), guest[-3000:]
