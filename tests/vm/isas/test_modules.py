"""Modules on every instruction set, traced by function, by instruction and inline.

tests/vm/changes/test_modules.py has more detail for amd64.
"""

from __future__ import annotations

import re

import pytest

from tests.vm.command import kinst, listed

pytestmark = pytest.mark.vm

# The dummy0 driver counts every packet sent through it and drops it.
TRAFFIC = (
    "ifconfig dummy0 10.7.0.1 up; ping -c 5 -i 1 -W 1 10.7.0.9 >/dev/null;"
    " cat /sys/class/net/dummy0/statistics/tx_packets"
)
INLINE = "dev_lstats_add"  # inlined into dummy_xmit, which counts every packet by it


@pytest.mark.parametrize("isa", ["arm64", pytest.param("riscv64", marks=pytest.mark.slow)])
def test_a_module(isa: str) -> None:
    """dummy_xmit runs once for each packet that the device reports as sent.

    dev_hard_start_xmit calls it through netdev_start_xmit, which is inline.
    """
    done = kinst(
        f"--vm={isa}", "-v", "--module", "dummy",
        "-n", "kinst:dummy:dummy_xmit:0 { @entry = count(); @where[caller] = count(); }",
        "-n", "kinst:dummy:dummy_*: { @all[probefunc] = count(); }",
        "-n", "kinst:dummy:dummy_xmit: { @each[probename, caller] = count(); }",
        "-n", f"kinst:dummy:{INLINE}:entry {{ @in[probefunc] = count(); }}",
        "-n", f"kinst:dummy:{INLINE}:return {{ @out[probefunc] = count(); }}",
        "-n", 'END { printa("entry %@d\\n", @entry); printa("all %s %@d\\n", @all);'
        ' printa("in %s %@d\\n", @in); printa("out %s %@d\\n", @out);'
        ' printa("caller %a %@d\\n", @where); printa("each %s %a %@d\\n", @each); }',
        "-c", TRAFFIC,
    ).good()  # fmt: skip
    sent = int(done.guest)
    assert sent > 0
    (entry,) = map(int, re.findall(r"entry (\d+)", done.out))
    # A packet may leave after the two counters are read and before the trace ends.
    assert sent <= entry <= sent + 5
    everything = {name: int(n) for name, n in re.findall(r"all (\S+) (\d+)", done.out)}
    assert everything["dummy_xmit"] > 5 * entry
    assert re.findall(r"(?:in|out) dummy_xmit (\d+)", done.out) == [str(entry)] * 2
    callers = re.findall(r"caller vmlinux`(\S+) \d+", done.out)
    assert len(callers) == 1 and callers[0].startswith("dev_hard_start_xmit")
    # The same at every instruction, by the call frame information of the module's debug file.
    each = re.findall(r"each (\d+) (\S+) \d+", done.out)
    assert len(each) > 20 and {where for _, where in each} == {"vmlinux`" + callers[0]}
    assert "kernel text is as before" in done.err


@pytest.mark.parametrize("isa", ["arm64", pytest.param("riscv64", marks=pytest.mark.slow)])
def test_nearly_all_of_a_module_is_in_reach(isa: str) -> None:
    """Trampolines reach the module as well as the kernel."""
    done = kinst(f"--vm={isa}", "-l", "-v", "--module", "dummy", "-n", "kinst:dummy:*:").good()
    rows = listed(done.out)
    assert len(rows) > 150
    refused = [row.way for row in rows if row.way.startswith("refused")]
    assert len(refused) < len(rows) / 20 and "away" not in " ".join(refused), refused
