"""Loaded modules, traced by function and by instruction, with their debug information."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

# The dummy0 driver counts every packet sent through it and drops it.
TRAFFIC = (
    "ifconfig dummy0 10.7.0.1 up; ping -c 5 -i 1 -W 1 10.7.0.9 >/dev/null;"
    " cat /sys/class/net/dummy0/statistics/tx_packets"
)


def test_a_module_by_function_and_by_instruction() -> None:
    """The first instruction of dummy_xmit runs once for each packet that the device sent."""
    done = kinst(
        "-v", "--module", "dummy",
        "-n", "kinst:dummy:dummy_xmit:0 { @entry = count(); }",
        "-n", "kinst:dummy:dummy_*: { @all[probefunc] = count(); }",
        "-n", "kinst:dummy:dummy_xmit:0 { @where[caller] = count(); }",
        "-n", 'END { printa("entry %@d\\n", @entry); printa("all %s %@d\\n", @all);'
        ' printa("caller %a %@d\\n", @where); }',
        "-c", TRAFFIC,
    ).good()  # fmt: skip
    sent = int(done.guest)
    assert sent > 0
    (entry,) = re.findall(r"entry (\d+)", done.out)
    # A packet may leave after the two counters are read and before the trace ends.
    assert sent <= int(entry) <= sent + 5
    everything = {name: int(n) for name, n in re.findall(r"all (\S+) (\d+)", done.out)}
    assert everything["dummy_xmit"] > int(entry) and len(everything) > 1
    assert "caller vmlinux`dev_hard_start_xmit" in done.out
    assert "kernel text is as before" in done.err


def test_a_module_that_is_unloaded_while_it_is_traced() -> None:
    """kinst must not write the memory of the unloaded module; everything else continues."""
    done = kinst(
        "-v", "--module", "dummy",
        "-n", "kinst:dummy:*: { @ = count(); }",
        "-n", 'kinst::vfs_read:0 /execname == "wc"/ { @reads["reads"] = count(); }',
        "-c", "rmmod dummy && insmod /lib/kinst/*dummy.ko && wc -c /etc/passwd",
    ).good()  # fmt: skip
    assert "went with a module that was unloaded" in done.err
    assert re.search(r"reads +[1-9]", done.out)


def test_modules_that_are_not_there() -> None:
    missing = kinst("--module", "dumy", "-n", "kinst::vfs_read:0 { }")
    assert missing.status == 1
    assert missing.err.strip() == "kinst: no module is called dumy (did you mean dummy?)"
    unloaded = kinst("-n", "kinst:dummy:dummy_xmit: { @ = count(); }")
    assert unloaded.status == 1
    assert 'no function named "dummy_xmit" in module "dummy"' in unloaded.err


INLINE = "dev_lstats_add"  # inlined into dummy_xmit, which counts every packet by it


def test_an_inline_function_in_a_module() -> None:
    """The single copy is entered and left once for each packet."""
    done = kinst(
        "-v", "--module", "dummy",
        "-n", f"kinst:dummy:{INLINE}:entry {{ @in[probefunc] = count(); }}",
        "-n", f"kinst:dummy:{INLINE}:return {{ @out[probefunc] = count(); }}",
        "-n", "kinst:dummy:dummy_xmit:0 { @calls[probefunc] = count(); }",
        "-n", 'END { printa("in %s %@d\\n", @in); printa("out %s %@d\\n", @out);'
        ' printa("calls %s %@d\\n", @calls); }',
        "-c", TRAFFIC,
    ).good()  # fmt: skip
    found = dict(re.findall(r"(in|out|calls) dummy_xmit (\d+)", done.out))
    assert int(found["calls"]) > 0
    assert found["in"] == found["out"] == found["calls"]


def test_a_debug_file_of_another_build(prepared: Prepared, tmp_path: Path) -> None:
    """The file is skipped with a warning; probes that need no debug file work."""
    other = prepared.modules / "kernel/drivers/net/veth.ko"
    shutil.copy(other, tmp_path / "dummy.ko")
    done = kinst(
        "--module", "dummy", "--debug", str(tmp_path), "-Z",
        "-n", f"kinst:dummy:{INLINE}:entry {{ @ = count(); }}",
        "-n", 'kinst:dummy:dummy_xmit:0 { @calls["calls"] = count(); }',
        "-c", TRAFFIC,
    ).good()  # fmt: skip
    assert f"{tmp_path / 'dummy.ko'} (build-id" in done.err and "skipped" in done.err
    assert re.search(r"calls +[1-9]", done.out)


def test_source_lines_of_a_module(prepared: Prepared) -> None:
    """Source lines of all instructions are those of addr2line(1), and a line works as a probe."""
    done = kinst(
        "-l", "-v", "--module", "dummy",
        "-n", "kinst:dummy:dummy_xmit:", "-n", "kinst:dummy:dummy_setup:",
    ).good()  # fmt: skip
    rows = re.findall(r"^ *\d+ +kinst +dummy +(\w+) (\d+)\n\t.*?(?: (\S+):(\d+))?$", done.out, re.M)
    assert {name for name, *_ in rows} == {"dummy_xmit", "dummy_setup"} and len(rows) > 40
    (debug,) = prepared.debug.parents[1].rglob("dummy.ko")
    nm = subprocess.run(["nm", str(debug)], capture_output=True, text=True, check=True).stdout
    start = {w[2]: int(w[0], 16) for w in map(str.split, nm.splitlines()) if len(w) == 3}
    addresses = [f"{start[name] + int(at):#x}" for name, at, *_ in rows]
    shown = subprocess.run(
        ["addr2line", "-e", str(debug), "-j", ".text", *addresses],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    expected = [line.split(" (")[0].rpartition("/")[2] for line in shown.splitlines()]
    found = [f"{file.rpartition('/')[2]}:{line}" for _, _, file, line in rows]
    assert found == expected
    file, line = next((f, n) for name, _, f, n in rows if name == "dummy_xmit" and "dummy.c" in f)
    wanted = [at for name, at, f, n in rows if (name, f, n) == ("dummy_xmit", file, line)]
    hit = kinst(
        "-q", "--module", "dummy", "-c", TRAFFIC,
        "-n", f'kinst:dummy:dummy_xmit:@{line} {{ @[probename] = count(); }}',
        "-n", 'END { printa("%s %@d\\n", @); }',
    ).good()  # fmt: skip
    counted = dict(re.findall(r"^(\d+) (\d+)$", hit.out, re.M))
    assert set(counted) <= set(wanted) and all(int(n) > 0 for n in counted.values()) and counted
