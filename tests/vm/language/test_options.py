"""Options that only a traced kernel shows, in one boot.

cpu=N, bufpolicy=ring under a flood, and structures of the kernel as keys; and strings by their
characters in the traced kernel.
"""

from __future__ import annotations

import re

import pytest

from tests.vm.command import kinst

pytestmark = pytest.mark.vm

PROGRAM = """
BEGIN { @own[cpu] = count(); }
fbt::vfs_read:entry
/execname[0] == 'd' && *(execname + 1) == 'd' && execname + 2 == ""/
{
	n++;
	m[args[0]->f_path]++;
	@paths[args[0]->f_path] = count();
	@cpus[cpu] = count();
	printf("read %d %d %d\\n", cpu, n, m[args[0]->f_path]);
}
kinst::vfs_read:0 /execname == "dd" && cpu == 0/ { @elsewhere = count(); }
END
{
	printa("own %d %@d\\n", @own);
	printa("cpu %d %@d\\n", @cpus);
	printa(@elsewhere);
	printf("hits %d\\n", n);
	printa(@paths);
}
"""
# The same reads on both CPUs; only those of CPU 1 may be counted.
READS = "for mask in 1 2; do taskset $mask dd if=/dev/zero of=/dev/null bs=1 count=3000; done"
RECORDS = 1024


def test_one_cpu_and_the_last_records() -> None:
    done = kinst(
        "-q", "-x", "cpu=1", "-x", "bufpolicy=ring", "-x", f"bufsize={RECORDS}", "-n", PROGRAM,
        "-c", f"({READS}) 2>/dev/null",
    ).good()  # fmt: skip
    assert done.err == "", done.err  # a ring loses only old records
    rows = [tuple(map(int, m)) for m in re.findall(r"^read (\d+) (\d+) (\d+)$", done.out, re.M)]
    (hits,) = (int(n) for n in re.findall(r"^hits (\d+)$", done.out, re.M))
    assert 3000 <= hits < 3100
    # The last ones, without a gap: records of some tens of bytes fill the ring.
    assert 8 <= len(rows) <= RECORDS // 24
    assert [n for _, n, _ in rows] == list(range(hits - len(rows) + 1, hits + 1))
    assert {cpu for cpu, _, _ in rows} == {1}
    assert re.findall(r"^cpu (\d+) (\d+)$", done.out, re.M) == [("1", str(hits))]
    assert re.findall(r"^own (\d+) (\d+)$", done.out, re.M) == [("0", "1")]
    # 16 bytes of a struct path in a dump, then its count: /dev/zero's occurs 3,000 times.
    counts = [int(n) for n in re.findall(r"^ {8,}(\d+)$", done.out, re.M)]
    assert max(counts) >= 3000 and sum(counts) == hits
    assert rows[-1][2] == max(counts)
