"""Loaded modules: traced by function and instruction, with the kernel's own description of them."""

from __future__ import annotations

import re

import pytest
from command import kinst

pytestmark = pytest.mark.vm

# Whatever is sent through dummy0 is counted by the driver and dropped.
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
    # A packet may leave between the two counters being read and the end of the trace.
    assert sent <= int(entry) <= sent + 5
    everything = {name: int(n) for name, n in re.findall(r"all (\S+) (\d+)", done.out)}
    assert everything["dummy_xmit"] > int(entry) and len(everything) > 1
    assert "caller vmlinux`dev_hard_start_xmit" in done.out
    assert "kernel text is as before" in done.err


def test_a_module_that_is_unloaded_while_it_is_traced() -> None:
    """Its memory is not kinst's to write any more; all else goes on."""
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
