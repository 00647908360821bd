"""Probes of the D libraries sched and proc against the guest's own events, thread by thread."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst, warnings

pytestmark = pytest.mark.vm

EVENTS = ("sched_switch", "sched_waking", "sched_process_fork", "sched_process_exec",
          "sched_process_exit", "signal_generate", "signal_deliver")  # fmt: skip
# Programs that fork, execute, fail to, wait, write, sleep, and are killed.
WORK = """
echo some > /tmp/some; cat /tmp/some > /tmp/other; rm /tmp/other
sleep 0.01 & usleep 2000; kill $! 2>/dev/null
wait
/bin/busybox true; /bin/busybox sh -c 'exit 3'
/bin/busybox sh -c 'kill -9 $$'
/nowhere 2>/dev/null
busy=0; while [ $busy -lt 3000 ]; do busy=$((busy + 1)); done
"""
ROUNDS = 3
SCRIPT = f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo 0 > tracing_on; echo > trace; echo 4096 > buffer_size_kb
echo 0 > options/irq-info; echo 0 > options/record-cmd
turn() {{
for one in {" ".join(EVENTS)}; do for event in events/*/$one; do echo $1 > $event/enable; done; done
}}
turn 1; echo 1 > tracing_on
for n in $(seq {ROUNDS}); do work; done
echo 0 > tracing_on; turn 0
cat per_cpu/cpu*/stats | grep overrun
cat trace
dmesg -r | tail -100
"""
PROGRAM = r"""
sched:::off-cpu { printf("+ %d off-cpu %d\n", tid, args[0]->pr_lwpid); }
sched:::on-cpu { printf("+ %d on-cpu\n", tid); }
sched:::sleep { printf("+ %d sleep\n", tid); }
sched:::preempt { printf("+ %d preempt\n", tid); }
sched:::wakeup { printf("+ %d wakeup %d\n", tid, args[0]->pr_lwpid); }
sched:::enqueue { @queue[args[0]->pr_lwpid] = sum(1); @to[args[2]->cpu_id, args[3]] = count(); }
sched:::dequeue { @queue[args[0]->pr_lwpid] = sum(-1); }
fbt::enqueue_task_fair:entry, fbt::enqueue_task_rt:entry, fbt::enqueue_task_dl:entry,
fbt::enqueue_task_stop:entry { @below = count(); }
sched:::tick { @ticks = count(); }
proc:::create { printf("+ %d create %d\n", tid, args[0]->pr_pid); }
proc:::start { printf("+ %d start\n", tid); }
proc:::exec { printf("+ %d exec %s\n", tid, stringof(args[0])); }
proc:::exec-success { printf("+ %d exec-success\n", tid); }
proc:::exec-failure { printf("+ %d exec-failure %d\n", tid, args[0]); }
proc:::exit { printf("+ %d exit %d\n", tid, args[0]); }
proc:::lwp-exit { printf("+ %d lwp-exit\n", tid); }
proc:::signal-send { printf("+ %d signal-send %d %d\n", tid, args[2], args[0]->pr_lwpid); }
proc:::signal-handle { printf("+ %d signal-handle %d\n", tid, args[0]); }
END { printa("queue %d %@d\n", @queue); printa("to %d %d %@d\n", @to);
    printa("ticks %@d\n", @ticks); printa("below %@d\n", @below); }
"""

Firings = dict[int, Counter[tuple[str, ...]]]


def of_kinst(out: str) -> Firings:
    found: Firings = {}
    for line in re.findall(r"^\+ (.+)$", out, re.M):
        thread, *words = line.split()
        found.setdefault(int(thread), Counter())[tuple(words)] += 1
    return found


def of_guest(trace: str) -> tuple[Firings, set[int]]:
    """Return what the guest's events say of the libraries' probes, and the threads that are born
    and end in the buffer."""
    found: Firings = {}
    born, ended = set(), set()

    def add(thread: int, *words: str) -> None:
        found.setdefault(thread, Counter())[words] += 1

    for number, event, text in re.findall(r"^ *.+?-(\d+) +\[\d+\].*?: (\w+): (.*)$", trace, re.M):
        thread, values = int(number), dict(re.findall(r"(\w+)=(\S+)", text))
        if event == "sched_switch":
            add(thread, "off-cpu", values["next_pid"])
            add(int(values["next_pid"]), "on-cpu")
            state = values["prev_state"]
            if state == "R+":
                add(thread, "preempt")
            elif state[0] not in "RXZ":
                add(thread, "sleep")
        elif event == "sched_waking":
            add(thread, "wakeup", values["pid"])
        elif event == "sched_process_fork":
            add(thread, "create", values["child_pid"])
            add(int(values["child_pid"]), "start")
            born.add(int(values["child_pid"]))
        elif event == "sched_process_exec":
            add(thread, "exec-success")
        elif event == "sched_process_exit":
            add(thread, "lwp-exit")
            ended.add(thread)
        elif event == "signal_generate":
            add(thread, "signal-send", values["sig"], values["pid"])
        elif event == "signal_deliver":
            add(thread, "signal-handle", values["sig"])
    return found, born & ended


def test_sched_and_proc_are_the_guests_own_events(tmp_path: Path) -> None:
    scripts = [guest_script(tmp_path, "rounds", SCRIPT), guest_script(tmp_path, "work", WORK)]
    done = kinst(
        "--cpus", "1", "-v", "-x", "quiet", "-x", "bufsize=16m", "-n", PROGRAM, "-c", "rounds",
        copy=scripts,
    ).good()  # fmt: skip
    assert "overrun: 0" in done.guest and not re.search(r"overrun: [1-9]", done.guest)
    mine = of_kinst(done.out)
    theirs, whole = of_guest(done.guest)
    assert len(whole) >= 8 * ROUNDS, done.guest[-3000:]
    without = {"exec", "exec-failure", "exit"}  # the guest has no such events
    kinds: Counter[str] = Counter()
    for thread in whole:
        here = Counter({w: n for w, n in mine[thread].items() if w[0] not in without})
        assert here == theirs[thread], thread
        kinds.update({words[0]: n for words, n in theirs[thread].items()})
    wanted = {"off-cpu", "on-cpu", "sleep", "preempt", "wakeup", "create", "start", "exec-success",
              "lwp-exit", "signal-send", "signal-handle"}  # fmt: skip
    assert kinds.keys() >= wanted - {"preempt"}, kinds
    # What the script does in each round.
    every = sum((mine[thread] for thread in whole), Counter[tuple[str, ...]]())
    assert every["exec", "/bin/busybox"] == 3 * ROUNDS
    assert every["exec", "/nowhere"] == every["exec-failure", "2"] == ROUNDS
    # CLD_KILLED: by kill, and by kill -9.  Each process ends once.
    ends = Counter({words[1]: n for words, n in every.items() if words[0] == "exit"})
    assert sum(ends.values()) == len(whole)
    assert ends["2"] >= ROUNDS and set(ends) <= {"1", "2"}, ends
    # A thread that has ended was taken from a queue as often as it was put into one.
    queue = {int(a): int(b) for a, b in re.findall(r"^queue (\d+) (-?\d+)$", done.out, re.M)}
    assert {queue[thread] for thread in whole} == {0}
    to = {m[1]: int(m[2]) for m in re.finditer(r"^to (\d+ \d+) (\d+)$", done.out, re.M)}
    assert to.keys() <= {"0 0", "0 1"}
    # The clause of a probe over several others runs once for each firing of these.
    assert f"\nbelow {sum(to.values())}\n" in done.out
    assert re.search(r"^ticks [1-9]", done.out, re.M)
    assert "kernel text is as before" in done.err and "drop" not in done.err, done.err
    assert not warnings(done.guest), done.guest[-3000:]


def test_a_user_s_library_is_read_from_its_folder(tmp_path: Path) -> None:
    """A file alone adds a provider: its probes count what the probes below them do."""
    (tmp_path / "files.d").write_text("""
#pragma D depends_on library fileinfo.d
provider files {
    probe read(struct file *file, char *buffer, size_t size) :
        (fileinfo_t *file, size_t size) = fbt::vfs_read:entry / size == 7 /;
    probe nothing() = refuse("files are never nothing");
};
""")
    options = ("-L", str(tmp_path), "-q")
    program = "files:::read { @[probeprov, probefunc, args[0]->fi_name, args[1]] = count(); }"
    command = "echo abcdefghijklmn > /tmp/letters; dd if=/tmp/letters bs=7 count=2 of=/dev/null"
    done = kinst(*options, "-n", program, "-c", command).good()
    assert done.out.split() == ["files", "vfs_read", "letters", "7", "2"]
    listed = kinst("-L", str(tmp_path), "-l", "-P", "files").good()
    assert re.findall(r"^ *\d+ +(\S+) +(\S+) +(\S+) +(\S+)$", listed.out, re.M) == [
        ("files", "vmlinux", "vfs_read", "read")
    ]
    refused = kinst(*options, "-n", "files:::nothing { }", "-c", "true")
    assert refused.status == 1 and "files are never nothing" in refused.err


def test_probes_of_a_library_are_listed() -> None:
    listed = kinst("-l", "-P", "sched").good().out
    found = re.findall(r"^ *\d+ +sched +vmlinux +(\S+) +(\S+)$", listed, re.M)
    functions: dict[str, set[str]] = {}
    for function, name in found:
        functions.setdefault(name, set()).add(function)
    assert {"on-cpu", "off-cpu", "sleep", "wakeup", "enqueue", "tick"} <= functions.keys()
    assert len(found) == len({*found}) and "surrender" not in functions
    assert {"enqueue_task_fair", "enqueue_task_rt"} < functions["enqueue"]
    assert functions["off-cpu"] == {"__schedule"}
    refused = kinst("-l", "-n", "sched:::surrender")
    assert refused.status == 1 and "there is no sched:vmlinux::surrender" in refused.err


DISK = """
cd /tmp; dd if=/dev/zero of=image bs=1M count=24 2>/dev/null
losetup /dev/loop0 image; mkdir -p /mnt
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
turn() {
for one in block_rq_issue block_rq_complete; do
    echo $1 > /sys/kernel/tracing/events/block/$one/enable
done
}
turn 1
mke2fs -F /dev/loop0 > /dev/null 2>&1; sync
mount -t ext4 /dev/loop0 /mnt
dd if=/dev/urandom of=/mnt/written bs=64k count=20 2>/dev/null; sync
umount /mnt; mount -t ext4 /dev/loop0 /mnt
dd if=/mnt/written of=/dev/null bs=4k 2>/dev/null
umount /mnt; turn 0
grep ' loop0 ' /proc/diskstats
grep -c 'block_rq_issue: 7,0 ' /sys/kernel/tracing/trace
grep -c 'block_rq_complete: 7,0 ' /sys/kernel/tracing/trace
"""
REQUESTS = """
inline string way[int flags] = flags & B_READ ? "read" : flags & B_WRITE ? "write" : "flush";
io:::start /args[1]->dev_statname == "loop0"/ {
    @begun[way[args[0]->b_flags]] = count();
    begun[args[0]->b_edev, args[0]->b_blkno] = timestamp;
}
io:::done /args[1]->dev_statname == "loop0"/ {
    @done[way[args[0]->b_flags]] = count(); @bytes[way[args[0]->b_flags]] = sum(args[0]->b_bcount);
    @files[args[2]->fi_pathname, args[2]->fi_mount, args[2]->fi_fs, way[args[0]->b_flags]] =
        sum(args[0]->b_bcount);
    @errors[args[0]->b_error, args[0]->b_flags & B_ERROR] = count();
    @device[args[1]->dev_major, args[1]->dev_minor, getmajor(args[0]->b_edev),
        args[1]->dev_pathname] = count();
}
io:::done /begun[args[0]->b_edev, args[0]->b_blkno]/ {
    @paired[timestamp > begun[args[0]->b_edev, args[0]->b_blkno] ? "after" : "before"] = count();
    begun[args[0]->b_edev, args[0]->b_blkno] = 0;
}
io:::wait-start { self->waits = 1; }
io:::wait-done /self->waits/ { @waits = count(); self->waits = 0; }
END {
    printa("begun %s %@d\\n", @begun); printa("done %s %@d\\n", @done);
    printa("bytes %s %@d\\n", @bytes); printa("file %s %s %s %s %@d\\n", @files);
    printa("errors %d %d %@d\\n", @errors);
    printa("device %d %d %d %s %@d\\n", @device); printa("paired %s %@d\\n", @paired);
    printa("waits %@d\\n", @waits);
}
"""


def test_io_is_what_diskstats_counts() -> None:
    """Requests of a loop device: /proc/diskstats has completed reads, merged, sectors, ms,
    completed writes, merged, sectors, ..., and flushes."""
    done = kinst(
        "--cpus", "1", "-v", "-x", "quiet", "--module", "loop", "-n", REQUESTS, "-c", DISK,
    ).good()  # fmt: skip
    line = re.search(r"^ +7 +0 loop0 (.*)\n(\d+)\n(\d+)$", done.guest, re.M)
    assert line is not None, done.guest
    reads, _, read_sectors, _, writes, _, written_sectors, *_ = map(int, line[1].split())
    assert reads > 5 and writes > 5 and written_sectors >= 20 * 128 and read_sectors >= 20 * 128
    found = {
        (m[1], m[2]): int(m[3])
        for m in re.finditer(r"^(begun|done|bytes|paired) (\w+) (\d+)$", done.out, re.M)
    }
    # A write that flushes the device's cache before it, or after it, completes a second time.
    assert found["done", "read"] == reads and found["done", "write"] >= writes, (line[1], done.out)
    ways = ("read", "write", "flush")
    assert sum(found["begun", way] for way in ways) == int(line[2]), done.out
    assert sum(found["done", way] for way in ways) == int(line[3]), done.out
    assert found["bytes", "read"] == 512 * read_sectors
    assert found["bytes", "write"] == 512 * written_sectors
    assert found["begun", "read"] == reads
    assert "paired before" not in done.out and found["paired", "after"] > 10
    file = dict(re.findall(r"^file /mnt/written /mnt ext4 (\w+) (\d+)$", done.out, re.M))
    assert {way: int(size) for way, size in file.items()} == {"read": 20 << 16, "write": 20 << 16}
    assert re.findall(r"^errors (.*) \d+$", done.out, re.M) == ["0 0"]
    assert set(re.findall(r"^device (.*) \d+$", done.out, re.M)) == {"7 0 7 /dev/loop0"}
    assert re.search(r"^waits [1-9]", done.out, re.M)
    # To mount a file system, the kernel changes static keys of its own.
    assert re.search("kernel text is as before|kinst's patches are all undone", done.err), done.err
    assert not warnings(done.guest)


NET = """
ifconfig lo up
echo big enough to be several segments > /tmp/sent
dd if=/dev/zero bs=1k count=40 >> /tmp/sent 2>/dev/null
for to in 127.0.0.1 ::1; do
    sleep 3 | nc -l -p 5000 > /tmp/got &
    until grep -q ':1388 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done  # it listens
    nc $to 5000 < /tmp/sent
    wait; cmp /tmp/sent /tmp/got && echo the same
done
nc 127.0.0.1 5001 < /dev/null 2> /dev/null
ping -c 3 -s 100 127.0.0.1 > /dev/null
ping -c 1 -s 4000 127.0.0.1 > /dev/null
nslookup some.where 127.0.0.1 > /dev/null 2>&1
cat /proc/net/snmp6 | grep -E '^Ip6(InDelivers|OutRequests)'
grep -E '^(Ip|Tcp|Udp):' /proc/net/snmp
"""
TRAFFIC = r"""
ip:::send { @n["send", args[2]->ip_ver] = count(); }
ip:::receive { @n["receive", args[2]->ip_ver] = count(); }
ip:::send /args[2]->ip_ver == 4 && args[4]->ipv4_protocol == IPPROTO_ICMP/ {
    @n[strjoin(args[4]->ipv4_protostr, args[3]->if_name), args[2]->ip_plength] = count();
}
tcp:::send, tcp:::receive { @n[strjoin("tcp-", probename), 0] = count(); }
tcp:::send /args[4]->tcp_flags & TH_RST/ { @n["reset", args[4]->tcp_sport] = count(); }
tcp:::send /args[4]->tcp_flags & TH_SYN && !(args[4]->tcp_flags & TH_ACK)/ {
    @n[args[3]->tcps_raddr, args[4]->tcp_dport] = count();
    to[args[4]->tcp_sport] = args[4]->tcp_seq;
}
tcp:::receive /to[args[4]->tcp_dport] && args[4]->tcp_flags & TH_SYN/ {
    @n["answered", args[4]->tcp_ack - to[args[4]->tcp_dport]] = count();
}
tcp:::connect-request, tcp:::connect-established, tcp:::connect-refused {
    @n[probename, args[3]->tcps_rport] = count();
}
tcp:::accept-established { @n[probename, args[3]->tcps_lport] = count(); }
tcp:::connect-request, tcp:::connect-established, tcp:::accept-* {
    @n[strjoin("to-", strjoin(args[2]->ip_daddr, probename)), args[4]->tcp_dport] = count();
}
tcp:::connect-refused, tcp:::accept-refused {
    @n[strjoin("from-", strjoin(args[2]->ip_saddr, probename)), args[4]->tcp_sport] = count();
}
tcp:::state-change /args[3]->tcps_rport == 5000 || args[3]->tcps_rport == 5001/ {
    @n[strjoin(tcp_state_string[args[5]->tcps_state], tcp_state_string[args[3]->tcps_state]),
        args[3]->tcps_rport] = count();
}
ip:::send /args[2]->ip_ver == 6 && args[5]->ipv6_nextstr == "TCP"/ {
    @n[strjoin("six-", args[5]->ipv6_daddr), args[5]->ipv6_plen - args[2]->ip_plength] = count();
}
udp:::send, udp:::receive { @n[strjoin("udp-", probename), args[4]->udp_dport] = count(); }
udp:::send { @n["length", args[4]->udp_length - args[2]->ip_plength] = count(); }
END { printa("= %s %d %@d\n", @n); }
"""


def test_packets_are_what_the_guest_s_counters_count() -> None:
    done = kinst("--cpus", "1", "-v", "-x", "quiet", "-n", TRAFFIC, "-c", NET).good()
    assert done.guest.count("the same") == 2, done.guest
    found = {
        (m[1], int(m[2])): int(m[3])
        for m in re.finditer(r"^= (\S+) (-?\d+) (\d+)$", done.out, re.M)
    }
    counters: dict[str, dict[str, int]] = {}
    for name, heads, values in re.findall(r"^(\w+): (\D.*)\n\1: (.*)$", done.guest, re.M):
        counters[name] = dict(zip(heads.split(), map(int, values.split()), strict=True))
    ip, tcp, udp = counters["Ip"], counters["Tcp"], counters["Udp"]
    # A long packet is one request, and leaves as fragments: its receiver joins them.
    assert ip["FragCreates"] == 0  # the loopback device takes 64 KB
    assert found["send", 4] == ip["OutRequests"] > 20
    assert found["receive", 4] == ip["InDelivers"]
    for name, key in (("InDelivers", "receive"), ("OutRequests", "send")):
        counted = re.search(rf"^Ip6{name}\s+(\d+)$", done.guest, re.M)
        assert counted is not None and found[key, 6] == int(counted[1]) >= 8
    assert found["tcp-receive", 0] == tcp["InSegs"]
    assert 12 < found["tcp-send", 0] <= tcp["OutSegs"]  # this counts segments of one packet
    # Requests and their answers, with the headers of ICMP.
    assert found["ICMPlo", 108] == 6 and found["ICMPlo", 4008] == 2
    assert found["reset", 5001] == tcp["OutRsts"] == 1
    assert found["connect-request", 5000] == 2 and found["connect-request", 5001] == 1
    assert tcp["ActiveOpens"] == 3 and found["connect-refused", 5001] == tcp["AttemptFails"] == 1
    assert found["connect-established", 5000] == found["accept-established", 5000] == 2
    assert tcp["PassiveOpens"] == 2
    # The addresses and ports of the segments: from the client, or from the server that refuses.
    for to in ("127.0.0.1", "::1"):
        for name in ("connect-request", "connect-established", "accept-established"):
            assert found[f"to-{to}{name}", 5000] == 1, (to, name)
    assert found["to-127.0.0.1connect-request", 5001] == 1
    assert found["from-127.0.0.1connect-refused", 5001] == 1
    assert found["from-127.0.0.1accept-refused", 5001] == 1
    sent = "state-syn-sent"
    assert found[f"state-closed{sent}", 5000] == found[f"{sent}state-established", 5000] == 2
    assert found[f"state-closed{sent}", 5001] == found[f"{sent}state-closed", 5001] == 1
    assert found["six-::1", 0] >= 8
    assert found["127.0.0.1", 5000] == found["::1", 5000] == found["127.0.0.1", 5001] == 1
    assert found["answered", 1] == 2  # RFC 9293, 3.5: the number of the SYN, and one
    assert found["udp-send", 53] == udp["OutDatagrams"] >= 1 and found["length", 0] >= 1
    assert found["udp-receive", 53] == udp["InDatagrams"] + udp["NoPorts"]
    # The first connections turn static keys of the kernel on.
    assert re.search("kernel text is as before|kinst's patches are all undone", done.err), done.err
    assert not warnings(done.guest)
