"""The initramfs, read back by this file's own reader and by busybox's cpio, then booted."""

from __future__ import annotations

import select
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.guest.initramfs import build
from tests import second_boot


@dataclass(frozen=True)
class Member:
    mode: int
    data: bytes
    device: tuple[int, int]


def read_back(archive: bytes) -> dict[str, Member]:
    """Read cpio(5), New ASCII Format: 6 bytes magic, 13 fields of 8 hexadecimal digits."""
    members: dict[str, Member] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        values = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = values[1], values[6], values[11]
        name = archive[at + 110 : at + 110 + name_size]
        assert name.endswith(b"\0")
        start = (at + 110 + name_size + 3) // 4 * 4
        at = (start + size + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            assert at == len(archive)
            return members
        path = name[:-1].decode()
        assert path not in members
        data = archive[start : start + size]
        members[path] = Member(mode, data, (values[9], values[10]))


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Return a file in place of busybox: its length is odd, so that padding shows."""
    file = tmp_path / "box"
    file.write_bytes(b"\x7fELF not quite")
    return file


def test_what_is_inside(box: Path, tmp_path: Path) -> None:
    program, data, module = (tmp_path / name for name in ("program", "data", "net.ko"))
    for file in (program, data, module):
        file.write_bytes(file.name.encode())
    program.chmod(0o700)
    data.chmod(0o600)
    archive = build(box, {"/root/deep/program": program, "/data": data}, [module, box])
    members = read_back(archive)
    assert members["bin/busybox"] == Member(stat.S_IFREG | 0o755, box.read_bytes(), (0, 0))
    assert members["init"].data.startswith(b"#!/bin/busybox sh\n")
    assert members["init"].mode == stat.S_IFREG | 0o755
    assert members["root/deep/program"] == Member(stat.S_IFREG | 0o755, b"program", (0, 0))
    assert members["data"] == Member(stat.S_IFREG | 0o644, b"data", (0, 0))
    assert members["dev/console"].device == (5, 1)
    assert members["dev/null"].device == (1, 3)
    assert members["dev/ttyS3"].device == (4, 67)
    assert stat.S_ISCHR(members["dev/zero"].mode)
    assert members["tmp"].mode == stat.S_IFDIR | 0o1777
    assert b"root:" in members["etc/passwd"].data
    loaded = sorted(name for name in members if name.startswith("lib/kinst/"))
    assert [members[name].data for name in loaded] == [b"net.ko", box.read_bytes()]


def test_parents_come_first(box: Path) -> None:
    seen = {""}
    for name, member in read_back(build(box, {"/a/b/c/d": box})).items():
        assert name.rpartition("/")[0] in seen, name
        if stat.S_ISDIR(member.mode):
            seen.add(name)
    assert {"a", "a/b", "a/b/c"} <= seen


def test_same_files_same_bytes(box: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(box.read_bytes())
    assert build(box, {"/x": box}) == build(other, {"/x": other})
    assert build(box, {"/x": box}) != build(box, {"/y": box})


def test_busybox_reads_it(prepared: Prepared, box: Path) -> None:
    archive = build(prepared.busybox, {"/root/box": box})
    command = [str(prepared.busybox), "cpio", "-it"]
    listed = subprocess.run(command, input=archive, capture_output=True, check=True)
    assert listed.stdout.decode().split() == list(read_back(archive))


@pytest.mark.parametrize("path", ["relative", "/", "/../x", ""])
def test_bad_guest_path(box: Path, path: str) -> None:
    with pytest.raises(KinstError, match="not a path"):
        build(box, {path: box})


def test_missing_file(box: Path, tmp_path: Path) -> None:
    for arguments in (
        (tmp_path / "none", {}, ()),
        (box, {"/x": tmp_path / "none"}, ()),
        (box, {}, (tmp_path / "none",)),
    ):
        with pytest.raises(KinstError, match=r"none.*No such file"):
            build(*arguments)


class Guest:
    """A booted guest, used through the protocol of guest_init.sh without kinst's code."""

    def __init__(self, prepared: Prepared, initramfs: Path) -> None:
        pairs = [socket.socketpair() for _ in range(3)]
        command = [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2",
            "-m", "512", "-display", "none", "-nodefaults", "-no-reboot",
            "-kernel", str(prepared.kernel), "-initrd", str(initramfs),
            "-append", "console=ttyS0 quiet no_timer_check",
        ]  # fmt: skip
        for number, (_, theirs) in enumerate(pairs):
            command += ["-chardev", f"socket,id=s{number},fd={theirs.fileno()}"]
            command += ["-serial", f"chardev:s{number}"]
        self.qemu = subprocess.Popen(command, pass_fds=[theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        self.ports = [ours for ours, _ in pairs]
        self.seen = [b"", b"", b""]

    def pump(self, timeout: float) -> bool:
        ready, _, _ = select.select(self.ports, [], [], timeout)
        for port in ready:
            self.seen[self.ports.index(port)] += port.recv(65536)
        return bool(ready)

    def say(self, text: str) -> None:
        self.ports[2].sendall(text.encode() + b"\n")

    def comes_up(self, seconds: float) -> bool:
        """Return whether it sends something on the control port within so many seconds."""
        end = time.monotonic() + seconds
        while b"\n" not in self.seen[2] and (left := end - time.monotonic()) > 0:
            self.pump(left)
        return b"\n" in self.seen[2]

    def close(self) -> None:
        self.qemu.kill()
        self.qemu.wait()
        for port in self.ports:
            port.close()

    def line(self) -> str:
        while b"\n" not in self.seen[2]:
            assert self.pump(240), f"the guest is silent; console: {self.seen[0][-2000:]!r}"
        line, _, self.seen[2] = self.seen[2].partition(b"\n")
        return line.decode()

    def prepare(self, command: str) -> int:
        self.say(f"prepare {command.encode().hex()}")
        word, pid = self.line().split()
        assert word == "pid"
        return int(pid)

    def run(self, command: str) -> tuple[int, bytes]:
        """Return status and output.  All output must have come when the exit line has."""
        self.prepare(command)
        self.seen[1] = b""
        self.say("go")
        word, status = self.line().split()
        assert word == "exit"
        while self.pump(0):
            pass
        return int(status), self.seen[1]


@pytest.fixture(scope="module")
def guest(
    prepared: Prepared,
    guest_program: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guest]:
    file = tmp_path_factory.mktemp("guest") / "initramfs"
    names = ("reads", "getppid", "workload")
    programs = {f"/root/{name}": guest_program(name) for name in names}
    modules = [next(prepared.modules.rglob(name)) for name in ("failover.ko", "net_failover.ko")]
    file.write_bytes(build(prepared.busybox, programs, modules))
    guest = second_boot.booted(lambda: Guest(prepared, file), Guest.comes_up, Guest.close)
    try:
        assert guest.line() == "ready"
        yield guest
    finally:
        guest.close()


@pytest.mark.vm
def test_status_and_output(guest: Guest) -> None:
    assert guest.run("echo out; echo err >&2; exit 3") == (3, b"out\nerr\n")
    assert guest.run("true") == (0, b"")
    assert guest.run("kill -9 $$")[0] == 128 + 9
    assert guest.run("no-such-program")[0] == 127


@pytest.mark.vm
def test_output_is_raw(guest: Guest) -> None:
    assert guest.run(r"printf 'a\nb\r\n\003\004\021\023\377\000c'") == (
        0,
        b"a\nb\r\n\x03\x04\x11\x13\xff\x00c",
    )


@pytest.mark.vm
def test_all_output_before_exit(guest: Guest) -> None:
    status, output = guest.run("seq 1 20000")
    assert status == 0
    assert output == "".join(f"{n}\n" for n in range(1, 20001)).encode()


@pytest.mark.vm
def test_odd_commands(guest: Guest) -> None:
    assert guest.run("echo 'ü \"$HOME\" %s \\\\ *'\n# end\n") == (
        0,
        'ü "$HOME" %s \\\\ *\n'.encode(),
    )
    assert guest.run("echo " + "x" * 20000) == (0, b"x" * 20000 + b"\n")
    assert guest.run("cat; echo read") == (0, b"read\n")  # its input is empty


@pytest.mark.vm
def test_held_until_go_and_keeps_its_pid(guest: Guest) -> None:
    pid = guest.prepare("cat /proc/self/stat")
    guest.seen[1] = b""
    assert not guest.pump(0.5), "it ran before go"
    guest.say("go")
    assert guest.line() == "exit 0"
    assert guest.seen[1].split()[:2] == [str(pid).encode(), b"(cat)"]


@pytest.mark.vm
def test_requests_out_of_order(guest: Guest) -> None:
    guest.say("go")
    assert guest.line().startswith("error no command")
    guest.say("dance")
    assert guest.line().startswith("error unknown request: dance")
    guest.prepare("sleep 1000")
    guest.say("prepare 00")
    assert guest.line().startswith("error a command is already")
    guest.say("go")
    guest.say("prepare 00")
    assert guest.line().startswith("error a command is already")
    guest.say("signal TERM")
    assert guest.line() == "exit 143"
    guest.prepare("echo never")
    guest.seen[1] = b""
    guest.say("signal KILL")
    assert guest.line() == "exit 137"
    assert guest.run("echo fine") == (0, b"fine\n")
    assert b"never" not in guest.seen[1]


@pytest.mark.vm
def test_many_in_a_row(guest: Guest) -> None:
    """The next request comes right after the last exit: none of it may be lost."""
    for number in range(20):
        assert guest.run(f"exit {number}") == (number, b"")


@pytest.mark.vm
def test_what_is_set_up(guest: Guest) -> None:
    _, mounts = guest.run("cat /proc/mounts")
    assert {line.split()[1] for line in mounts.decode().splitlines()} >= {
        "/proc", "/sys", "/dev", "/tmp", "/run", "/sys/kernel/tracing", "/sys/kernel/debug",
    }  # fmt: skip
    assert guest.run("ping -c 1 -W 5 127.0.0.1 >/dev/null; id -un; ls /dev/fd >/dev/null") == (
        0,
        b"root\n",
    )
    _, modules = guest.run("cut -d' ' -f1 /proc/modules")
    assert modules.split() == [b"net_failover", b"failover"]
    assert guest.run("[ -e /sys/kernel/tracing/kprobe_events ]")[0] == 0


@pytest.mark.vm
def test_programs(guest: Guest) -> None:
    status, output = guest.run("/root/reads 5000; /root/getppid 5000; /root/workload 2")
    words = [line.split() for line in output.decode().splitlines()]
    assert status == 0
    assert words[0][:3] == ["reads", "5000", "ns"] and 10 < float(words[0][3]) < 1e6
    assert words[1][:3] == ["getppid", "5000", "ns"] and 10 < float(words[1][3]) < 1e6
    counts = {line[1]: int(line[2]) for line in words[2:-1]}
    assert set(counts) == {
        "read", "open", "stat", "mmap", "fork", "exec", "pipe", "signal", "poll",
    }  # fmt: skip
    assert all(counts.values())
    assert words[-1] == ["workload", "done"]


@pytest.mark.vm
def test_kernel_is_content(guest: Guest) -> None:
    _, log = guest.run("dmesg")
    for word in (b"BUG", b"Oops", b"WARNING", b"stall"):
        assert word not in log
    # Only the kernel writes to its console: every line begins with its time.
    assert all(line.startswith(b"[") for line in guest.seen[0].splitlines() if line)


@pytest.mark.vm
def test_poweroff_is_last(guest: Guest) -> None:
    guest.prepare("sleep 1000")
    guest.say("go")
    guest.say("poweroff")
    assert guest.qemu.wait(240) == 0
