"""Built-in variables in a running kernel, against values that the guest itself prints."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import Row, counts, guest_script, kinst, warnings

pytestmark = pytest.mark.vm

WAYS = ["jump", "trap", pytest.param("stop", marks=pytest.mark.slow)]


@pytest.mark.parametrize("way", WAYS)
def test_who_runs(
    read_function: str, guest_program: Callable[[str], Path], way: str, tmp_path: Path
) -> None:
    """Threads run on both CPUs, as a user that is not root."""
    threads = guest_program("threads")
    script = guest_script(tmp_path, "who.sh", "threads 6 12345; echo script $$")
    program = f"""
        kinst::{read_function}:0 /execname == "threads"/
        {{
            @[pid, tid, ppid, uid, cpu] = count();
            @threads[tid, (uint64_t)curthread] = count();
            @names[probeprov, probemod, probefunc, probename, execname] = count();
        }}
        END
        {{
            printa("thread %d %d %d %d %d %@d\\n", @);
            printa("curthread %d %x %@d\\n", @threads);
            printa("name %s %s %s %s %s %@d\\n", @names);
        }}"""
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", program, "-c", "who.sh", copy=[threads, script]
    ).good()
    theirs = re.findall(r"^thread .*$", done.guest, re.M)
    assert len(theirs) == 6
    assert sorted(re.findall(r"^thread .*$", done.out, re.M)) == sorted(theirs)
    (shell,) = re.findall(r"^script (\d+)$", done.guest, re.M)
    assert {line.split()[3] for line in theirs} == {shell}
    current = re.findall(r"^curthread (\d+) (\w+) (\d+)$", done.out, re.M)
    assert len(current) == 6 == len({address for _, address, _ in current})
    assert all(int(address, 16) >> 47 == (1 << 17) - 1 for _, address, _ in current)
    total = sum(int(line.split()[-1]) for line in theirs)
    names = f"name kinst vmlinux {read_function} 0 threads {total}"
    assert re.findall(r"^name .*$", done.out, re.M) == [names]


def test_curthread_is_the_current_task(reads: Path) -> None:
    """do_exit() passes the current task to exit_files() as its first argument."""
    program = """
        kinst::exit_files:0
        {
            @[execname, (uint64_t)curthread == regs[R_RDI]] = count();
        }"""
    command = "for i in 1 2 3 4 5; do reads 1; done"
    done = kinst("-q", "-n", program, "-c", command, copy=[reads]).good()
    found = counts(done.out)
    assert found["reads", "1"] == 5
    assert {key[1] for key in found} == {"1"}


def kallsyms(text: str, name: str) -> int:
    (address,) = re.findall(rf"^([0-9a-f]{{16}}) [tTrRdD] {name}$", text, re.M)
    return int(address, 16)


def linked(prepared: Prepared, name: str) -> int:
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    (address,) = re.findall(rf"^([0-9a-f]{{16}}) [tTrRdD] {name}$", shown.stdout, re.M)
    return int(address, 16)


@pytest.mark.parametrize("append", ["", pytest.param("nokaslr", marks=pytest.mark.slow)])
def test_addresses_and_callers_with_and_without_kaslr(
    prepared: Prepared, read_path: dict[str, list[Row]], reads: Path, tmp_path: Path, append: str
) -> None:
    """rip at each of a function's instructions is the instruction's address as the kernel lists
    it.

    The caller is in ksys_read, at every instruction, whatever the stack looks like there.
    """
    rows = [row for row in read_path["vfs_read"] if not row.way.startswith("refused")]
    script = guest_script(
        tmp_path,
        "symbols.sh",
        "reads 50; grep -E ' (vfs_read|ksys_read|linux_banner|_text)$' /proc/kallsyms;"
        " cat /proc/cmdline /proc/version",
    )
    program = """
        kinst::vfs_read: /execname == "reads"/
        {
            @rip[probename, regs[R_RIP]] = count();
            @caller[probename, caller] = count();
        }
        kinst::vfs_read:0 /execname == "reads"/
        {
            @top[*(uint64_t *)regs[R_RSP] == caller] = count();
        }
        END
        {
            printa("rip %s %x %@d\\n", @rip); printa("caller %s %x %@d\\n", @caller);
            printa("top %d %@d\\n", @top);
        }"""
    done = kinst(
        "-q", "-n", program, "-c", "symbols.sh", append=append, copy=[reads, script]
    ).good()
    start = kallsyms(done.guest, "vfs_read")
    slide = kallsyms(done.guest, "_text") - linked(prepared, "_text")
    assert start == linked(prepared, "vfs_read") + slide
    assert slide % (1 << 21) == 0 and (slide == 0 or not append)
    rips = re.findall(r"^rip (\d+) (\w+) (\d+)$", done.out, re.M)
    assert len(rips) > 20
    assert {int(address, 16) - int(offset) for offset, address, _ in rips} == {start}
    assert {int(offset) for offset, _, _ in rips} <= {row.offset for row in rows}
    entered = [int(count) for offset, _, count in rips if offset == "0"]
    assert entered[0] >= 50
    callers = re.findall(r"^caller (\d+) (\w+) (\d+)$", done.out, re.M)
    assert {offset for offset, _, _ in callers} == {offset for offset, _, _ in rips}
    last = read_path["ksys_read"][-1].after
    caller = kallsyms(done.guest, "ksys_read")
    for offset, address, count in callers:
        inside = caller < int(address, 16) < caller + last
        assert inside or int(count) < 50, (offset, address, count)
    assert {address for _, address, n in callers if int(n) >= 50} == {
        address for offset, address, n in callers if offset == "0" and int(n) >= 50
    }
    assert re.findall(r"^top (\d) (\d+)$", done.out, re.M) == [("1", str(entered[0]))]


@pytest.mark.parametrize("way", WAYS)
def test_clocks(read_function: str, guest_program: Callable[[str], Path], way: str) -> None:
    """timestamp follows the guest's monotonic clock, walltimestamp is its time of day.

    vtimestamp does not advance while the process sleeps.  A busy host is late now and then: most
    of the moments must agree well, and all of them must be in order.
    """
    moments = guest_program("moments")
    program = f"""
        kinst::{read_function}:0 /execname == "moments"/
        {{
            printf("%d %d %d\\n", timestamp, walltimestamp, vtimestamp);
        }}"""
    began = time.time_ns()
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", program, "-c", "moments 20 100", copy=[moments]
    ).good()
    ended = time.time_ns()
    guest = [tuple(map(int, m)) for m in re.findall(r"^moment (\d+) (\d+)$", done.guest, re.M)]
    ours = [tuple(map(int, line.split())) for line in done.out.split("\n") if line.strip()]
    assert len(ours) == len(guest) == 20
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(ours))
    # If the machine is stopped at hits, vtimestamp is kinst's time less the guest's: only as exact
    # as a busy host allows.
    assert way == "stop" or all(a[2] <= b[2] for a, b in pairwise(ours))
    apart = [o[0] - g[0] for o, g in zip(ours, guest, strict=True)]
    spans = [a - sorted(apart)[10] for a in apart]
    # To kinst a stopped machine's clocks stop only to within a stop, some ms and on a busy host
    # more: there each step from one moment to the next is checked by itself.
    if way == "stop":
        spans = [b - a for a, b in pairwise(apart)]
    near = 20_000_000 if way != "stop" else 400_000_000
    assert sum(abs(span) < near for span in spans) >= 15, spans
    if way == "stop":
        # The time of day is the host's.  The guest's is late by all the time that it was stopped.
        assert began < ours[0][1] < ours[-1][1] < ended
    else:
        wall = sorted(o[1] - g[1] for o, g in zip(ours, guest, strict=True))
        assert abs(wall[10]) < 2 * 10**9, wall
        assert abs(ours[0][1] - began) < 600 * 10**9
        assert ours[-1][2] - ours[0][2] < (ours[-1][0] - ours[0][0]) / 2, ours


@pytest.mark.parametrize("way", WAYS)
def test_wild_pointers(
    read_function: str, guest_program: Callable[[str], Path], tmp_path: Path, way: str
) -> None:
    """Each fires dtrace:::ERROR with the address, and the kernel does not notice.

    Addresses: the first page, one that is not canonical, one in the user's half, and an unmapped
    kernel address (the last page of the address space's guard hole).
    """
    addresses = (0x123, 0x8000000000000000, 0xFFFF7FFFFFFFF000, 0xFFFFFFFFFFFFF000)
    clauses = "\n".join(
        f'kinst::{read_function}:0 /execname == "sizes"/'
        f" {{ trace({k}); trace(*(uint64_t *){address:#x}); @never = count(); }}"
        for k, address in enumerate(addresses)
    )
    program = f"""
        {clauses}
        kinst::{read_function}:0 /execname == "sizes"/ {{ trace(7 / (regs[R_RDX] - 1)); }}
        kinst::{read_function}:0 /execname == "sizes" && *(char *)0x10 == 1/ {{ @no = count(); }}
        kinst::{read_function}:0 /execname == "sizes"/ {{ @good = count(); }}
        ERROR {{ @[arg4, arg2, arg5] = count(); }}
        END {{ printf("\\n"); printa("error %d %d %x %@d\\n", @); printa("good %@d\\n", @good);
               printa("never %@d\\n", @never); printa("no %@d\\n", @no); }}"""
    script = guest_script(
        tmp_path, "wild.sh", "dmesg -r; echo ==work; sizes 100; echo ==after; dmesg -r"
    )
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", program, "-c", "wild.sh",
        copy=[guest_program("sizes"), script],
    ).good()  # fmt: skip
    before, work, after = re.split("^==.*$", done.guest, flags=re.M)
    assert warnings(before) == warnings(after), done.guest
    assert "sizes 100" in work
    errors = {
        (int(kind), int(action), int(value, 16)): int(count)
        for kind, action, value, count in re.findall(
            r"^error (\d+) (-?\d+) (\w+) (\d+)$", done.out, re.M
        )
    }
    badaddr, divzero = 1, 4  # DTRACEFLT_*: Dynamic Tracing Guide, "ERROR Probe"
    # The second action of each clause; 0 is the predicate.
    expected = {(badaddr, 2, address): 100 for address in addresses}
    expected[badaddr, 0, 0x10] = 100
    divided = [e for e in errors if e[0] == divzero]
    assert {e: n for e, n in errors.items() if e[0] == badaddr} == expected, errors
    # sizes asks for 1 byte in its first read only.
    assert [(e[1], errors[e]) for e in divided] == [(1, 1)], errors
    assert re.findall(r"^(good|never|no) (\d+)$", done.out, re.M) == [("good", "100")]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("way", WAYS)
def test_kernel_data_through_pointers(
    prepared: Prepared, read_function: str, reads: Path, way: str
) -> None:
    """linux_banner, at the address where it is linked (no KASLR), is the text of /proc/version.

    The byte that read(2) has not written yet has its previous value in the program's memory.
    """
    at = linked(prepared, "linux_banner")
    words = ", ".join(f"*(uint64_t *){at + 8 * k:#x}" for k in range(4))
    odd = f"*(uint32_t *){at + 1:#x}, *(char *){at + 6:#x}, *(uint16_t *){at + 7:#x}"
    program = f"""
        kinst::{read_function}:0 /execname == "reads"/
        {{
            printf("%x %x %x %x ", {words}); printf("%x %c %x\\n", {odd});
        }}"""
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", program,
        "-c", "reads 3; cat /proc/version", append="nokaslr", copy=[reads],
    ).good()  # fmt: skip
    version = next(x for x in done.guest.splitlines() if x.startswith("Linux version")).encode()
    lines = [line for line in done.out.splitlines() if line]  # dtrace(1) ends with an empty one
    assert len(lines) == 3 and len(set(lines)) == 1
    *found, dword, char, word = lines[0].split(" ")
    assert b"".join(int(w, 16).to_bytes(8, "little") for w in found) == version[:32]
    assert int(dword, 16).to_bytes(4, "little") == version[1:5]
    assert char.encode() == version[6:7]
    assert int(word, 16).to_bytes(2, "little") == version[7:9]


def test_errno_where_functions_return(tmp_path: Path) -> None:
    """errno of a system call (a long) and of a function that returns int equal the programs'
    errors.

    At the entry of a function errno is never set.
    """
    script = guest_script(
        tmp_path, "opens.sh", "cat /no/such; cat /etc/passwd; echo x > /proc/version; cat /dev"
    )
    calls = "fbt::__x64_sys_openat:return, fbt::__x64_sys_open:return, fbt::do_filp_open:return"
    program = f"""
        {calls}, fbt::ksys_read:return /execname == "cat" || execname == "opens.sh"/
        {{ @[probefunc, errno] = count(); @sign = min(errno); }}
        fbt::vfs_statx:return /execname == "stat"/ {{ @stats[errno ? "failed" : "did"] = count(); }}
        END {{ printa("%s %d %@d\\n", @); printa("stat %s %@d\\n", @stats); }}"""
    done = kinst(
        "-q", "-n", program, "-c", "opens.sh; stat /no/such; stat /etc/passwd", copy=[script]
    ).good()  # fmt: skip
    found = {(name, int(error)) for name, error in re.findall(r"^(\w+) (\d+) \d+$", done.out, re.M)}
    # errno(3): ENOENT 2, EACCES 13, EISDIR 21.
    assert ("__x64_sys_openat", 2) in found and ("__x64_sys_openat", 0) in found, done
    assert ("do_filp_open", 2) in found  # a pointer, ERR_PTR() of it
    assert {name for name, error in found if error == 21} == {"ksys_read"}, done
    assert {error for _, error in found} <= {0, 2, 13, 21}, done
    stats = dict(re.findall(r"^stat (\w+) (\d+)$", done.out, re.M))
    assert set(stats) == {"failed", "did"}
    refused = kinst("-n", "fbt::vfs_read:entry, fbt::vfs_read:return { trace(errno); }")
    assert refused.status == 1 and "errno is not available at fbt::vfs_read:entry" in refused.err
