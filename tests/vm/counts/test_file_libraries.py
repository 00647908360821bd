"""Probes of the D libraries fsinfo and vminfo, against the guest's own events of system calls and
against /proc/vmstat."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiers import ISAS, of_kernel_versions
from tests.vm.command import guest_script, kinst, warnings
from tests.vm.system_call_events import is_of_c, numbers_in

pytestmark = pytest.mark.vm

# Without arm64's 5.10, which lacks operations (docs/kernels.md).
KERNELS = of_kernel_versions(ISAS, [("amd64", "5.10"), ("amd64", "6.12"), ("amd64", "7.3"),
                                    ("arm64", "6.12"), ("arm64", "7.3"),
                                    ("riscv64", "7.2")])  # fmt: skip

FOLDER = "/tmp/work"  # a file system of its own
FILES = f"""
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
mkdir {FOLDER}; mount -t tmpfs none {FOLDER}
dmesg -c > /dev/null
cd /sys/kernel/tracing
echo 4096 > buffer_size_kb
echo 1 > events/syscalls/enable
filework {FOLDER} || echo failed
echo 0 > events/syscalls/enable
cat trace
dmesg -r | tail -100
"""
OPERATIONS = """
fsinfo::: /execname == "filework"/ {
    @n[probename, args[0]->fi_pathname, args[0]->fi_mount, args[0]->fi_fs] = count();
    @bytes[probename, args[0]->fi_pathname] = sum(arg1);
}
END {
    printa("n|%s|%s|%s|%s|%@d\\n", @n); printa("bytes|%s|%s|%@d\\n", @bytes);
}
"""
# Of each operation: the system calls that do it, without those that only some instruction sets
# have. The kernel's events write names with at where programs say unlink or unlinkat.
CALLS = {
    "read": ("read", "pread64", "readv", "preadv", "sendfile64", "copy_file_range"),
    "write": ("write", "pwrite64", "writev", "pwritev", "sendfile64", "copy_file_range"),
    "fsync": ("fsync", "fdatasync"), "seek": ("lseek",), "ioctl": ("ioctl",),
    "frlock": ("flock",), "space": ("fallocate",), "map": ("mmap",), "readdir": ("getdents64",),
    "getattr": ("newfstat", "newfstatat"), "setattr": ("chmod", "fchmod", "fchmodat"),
    "mkdir": ("mkdir", "mkdirat"), "link": ("link", "linkat"),
    "symlink": ("symlink", "symlinkat"), "readlink": ("readlink", "readlinkat"),
    "rename": ("rename", "renameat", "renameat2"),
}  # fmt: skip
# The argument with the number of bytes, counted from 0.
SIZES = {"read": 2, "write": 2, "pread64": 2, "pwrite64": 2, "sendfile64": 3, "copy_file_range": 4}
VECTOR = 128  # bytes of the program's two buffers, for readv(2) and the like
F_SETFL, AT_REMOVEDIR = 4, 0x200


def calls_of(trace: str) -> list[tuple[str, list[int], int]]:
    """Return the program's system calls between its two calls of getppid(2), by the kernel's
    events: name, arguments, result."""
    of_c = is_of_c(trace)
    calls: list[tuple[str, list[int], int]] = []
    for line in trace.splitlines():
        if found := re.match(r" *filework-\d+ .*?: sys_(\w+)\((.*)\)$", line):
            calls.append((found[1], numbers_in(found[2], of_c=of_c), 0))
        elif (found := re.match(r" *filework-\d+ .*?: sys_\w+ -> 0x([0-9a-f]+)$", line)) and calls:
            result = int(found[1], 16)
            calls[-1] = (*calls[-1][:2], result - (result >> 63 << 64))
    first, last = (k for k, call in enumerate(calls) if call[0] == "getppid")
    return calls[first + 1 : last]


def operations(calls: list[tuple[str, list[int], int]]) -> Counter[str]:
    """Return how often each operation of fsinfo was asked for."""
    count: Counter[str] = Counter()
    for name, arguments, result in calls:
        count.update(one for one, names in CALLS.items() if name in names)
        count["open"] += name in ("open", "openat") and result >= 0
        count["close"] += name == "close" and result == 0
        count["setfl"] += name == "fcntl" and arguments[1] == F_SETFL
        folder = name == "rmdir" or (name == "unlinkat" and bool(arguments[2] & AT_REMOVEDIR))
        count["rmdir"] += folder
        count["remove"] += name == "unlink" or (name == "unlinkat" and not folder)
    return +count


def sizes(calls: list[tuple[str, list[int], int]], operation: str) -> int:
    return sum(
        arguments[SIZES[name]] if name in SIZES else VECTOR
        for name, arguments, _ in calls
        if name in CALLS[operation]
    )


@pytest.mark.parametrize(("isa", "kernel"), KERNELS)
def test_operations_on_files_are_those_of_the_program_s_calls(
    isa: str, kernel: str, program_for: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The program's files have the paths that it gives them, in the file system of their own."""
    chosen = (f"--vm={isa}", *(("--kernel", kernel) if kernel else ()))
    done = kinst(
        *chosen, "--cpus", "1", "-v", "-x", "quiet", "-n", OPERATIONS, "-c", "files",
        copy=[program_for("filework", isa), guest_script(tmp_path, "files", FILES)],
    ).good()  # fmt: skip
    assert "failed" not in done.guest, done.guest
    calls = calls_of(done.guest)
    wanted = operations(calls)
    assert len(wanted) > 20, wanted
    found: Counter[str] = Counter()
    paths: dict[str, set[str]] = {}
    for line in re.findall(r"^n\|(.*)$", done.out, re.M):
        name, path, mount, system, count = line.split("|")
        if path == FOLDER or path.startswith(f"{FOLDER}/"):
            assert (mount, system) == (FOLDER, "tmpfs"), line
            found[name] += int(count)
            paths.setdefault(name, set()).add(path.removeprefix(f"{FOLDER}/"))
    # Two of the files are new; the last close of each file ends its use.
    wanted |= {"create": 2, "inactive": wanted["close"]}
    assert found == wanted, done.out
    assert paths["read"] == paths["seek"] == {"data"}
    assert paths["write"] == paths["fsync"] == paths["create"] == {"data", "copy"}
    assert paths["mkdir"] == paths["rmdir"] == paths["readdir"] == {"dir"}
    assert paths["open"] == {"data", "copy", "dir"} == paths["close"]
    assert paths["remove"] == {"third", "short", "copy", "data"} and paths["rename"] == {"other"}
    assert paths["link"] == {"data"} and paths["symlink"] == paths["readlink"] == {"short"}
    assert paths["setattr"] == paths["getattr"] == {"data", "copy"}
    told: Counter[str] = Counter()
    for name, path, size in re.findall(r"^bytes\|(.*)\|(.*)\|(\d+)$", done.out, re.M):
        if path.startswith(f"{FOLDER}/"):
            told[name] += int(size)
    assert +told == {"read": sizes(calls, "read"), "write": sizes(calls, "write"), "space": 16384}
    assert not warnings(done.guest), done.guest[-3000:]


MEMORY = """
before=$(cat /proc/vmstat)
n=0; while [ $n -lt 30 ]; do /bin/busybox true; n=$((n + 1)); done
cd /tmp; dd if=/dev/zero of=image bs=1M count=16 2>/dev/null
losetup /dev/loop0 image; mkdir -p /mnt; mke2fs -F /dev/loop0 > /dev/null 2>&1
mount -t ext4 /dev/loop0 /mnt; cp /bin/busybox /mnt/busybox; umount /mnt
mount -t ext4 /dev/loop0 /mnt; /mnt/busybox true; umount /mnt
for one in "$before" "$(cat /proc/vmstat)"; do
    echo "$one" | grep -E '^(pgfault|pgmajfault) '; echo =
done
"""
FAULTS = """
vminfo:::as_fault { @n["pgfault"] = sum(arg0); }
vminfo:::maj_fault { @n["pgmajfault"] = sum(arg0); }
END { printa("= %s %@d\\n", @n); }
"""


def test_page_faults_are_what_vmstat_counts() -> None:
    """Faults before the first and after the second reading of /proc/vmstat are kinst's alone."""
    done = kinst(
        "--cpus", "1", "-v", "-x", "quiet", "--module", "loop", "-n", FAULTS, "-c", MEMORY,
    ).good()  # fmt: skip
    first, second, *_ = done.guest.split("=\n")
    before, after = (
        {name: int(n) for name, n in re.findall(r"^(\w+) (\d+)$", text, re.M)}
        for text in (first, second)
    )
    found = {name: int(n) for name, n in re.findall(r"^= (\w+) (\d+)$", done.out, re.M)}
    grown = after["pgfault"] - before["pgfault"]
    assert grown > 1000 and grown <= found["pgfault"] < grown * 1.1 + 500, (grown, found)
    major = after["pgmajfault"] - before["pgmajfault"]
    assert major > 0 and found["pgmajfault"] == major, (major, found)
    assert not warnings(done.guest)
