"""Variables in a running kernel with two CPUs: one boot, many checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import guest_script, kinst, warnings

pytestmark = pytest.mark.vm

PROGRAM = r"""
#pragma D option quiet
#pragma D option dynvarsize=64k
#pragma D option strsize=64
inline int MINE[string name] = name == "threads";
this string who;
int places[4];

fbt::vfs_read:entry
/MINE[execname]/
{
	self->start = timestamp;
	self->name = execname;
	self->nth[cpu, "of cpu"]++;
	entered[tid]++;
	this->key = timestamp ^ (tid << 40);
	full[this->key, entered[tid]] = 1;
	places[cpu & 3]++;
	@entries[tid] = count();
	@most[tid] = max(entered[tid]);
	@own[tid] = max(self->nth[cpu, "of cpu"]);
	@tried = count();
	@kept = sum(full[this->key, entered[tid]]);
	if (cpu == 0) @low = count(); else @high = count();
}
fbt::vfs_read:return
/self->start/
{
	this->who = self->name;
	@took = quantize(timestamp - self->start);
	@positive = min(timestamp - self->start);
	self->start = 0;
	self->name = 0;
}
fbt::vfs_read:return /self->start == 0 && this->who != ""/ { @names[this->who] = count(); }
fbt::vfs_read:return /self->name != ""/ { @left = count(); }
END
{
	printa("entries %d %@d\n", @entries);
	printa("most %d %@d\n", @most);
	printa("own %d %@d\n", @own);
	printa("names %s %@d\n", @names);
	printa("tried %@d\n", @tried); printa("kept %@d\n", @kept);
	printa("low %@d\n", @low); printa("high %@d\n", @high);
	printf("places %d %d\n", places[0], places[1]);
	printa("left %@d\n", @left);
	printa(@took);
}
"""


def test_variables(guest_program: Callable[[str], Path], tmp_path: Path) -> None:
    """Threads bound to both CPUs read; the guest says how often each of them did."""
    script = tmp_path / "variables.d"
    script.write_text(PROGRAM)
    work = guest_script(tmp_path, "work.sh", "dmesg -r; echo ==; threads 8 12345; dmesg -r")
    done = kinst("-s", str(script), "-c", "work.sh", copy=[guest_program("threads"), work]).good()
    before, after = done.guest.split("==\n", 1)
    assert "Traceback" not in done.err and warnings(before) == warnings(after), done
    theirs = {
        int(tid): (int(cpu), int(reads))
        for tid, cpu, reads in re.findall(
            r"^thread \d+ (\d+) \d+ \d+ (\d) (\d+)$", done.guest, re.M
        )
    }
    assert len(theirs) == 8

    def table(name: str) -> dict[int, int]:
        rows = re.findall(rf"^{name} (\d+) (\d+)$", done.out, re.M)
        return {int(key): int(value) for key, value in rows}

    def number(name: str) -> int:
        (value,) = re.findall(rf"^{name} (\d+)$", done.out, re.M)
        return int(value)

    entries = table("entries")
    # Each thread's reads; the main thread's own, if it made any, are there besides.
    assert {tid: entries[tid] for tid in theirs} == {t: n for t, (_, n) in theirs.items()}
    assert table("most") == entries
    own = table("own")
    assert {tid: own[tid] for tid in theirs} == {t: n for t, (_, n) in theirs.items()}
    total = sum(entries.values())
    assert re.findall(r"^names (\w+) (\d+)$", done.out, re.M) == [("threads", str(total))]
    histogram = re.findall(r"^ +\d+ \|@* +(\d+)\s*$", done.out, re.M)
    assert sum(map(int, histogram)) == total, done.out
    assert not re.findall(r"^left", done.out, re.M)
    on_low = sum(n for cpu, n in theirs.values() if cpu == 0)
    on_high = sum(n for cpu, n in theirs.values() if cpu == 1)
    assert number("low") >= on_low and number("high") >= on_high
    assert number("low") + number("high") == number("tried") == total
    assert re.findall(r"^places (\d+) (\d+)$", done.out, re.M) == [
        (str(number("low")), str(number("high")))
    ]
    drops = re.findall(r"^dtrace: (\d+) dynamic variable drops?$", done.err, re.M)
    assert drops, done.err
    assert number("kept") + sum(map(int, drops)) == total
