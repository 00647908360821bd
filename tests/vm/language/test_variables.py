"""Variables in a running kernel with two CPUs: one boot, many checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst, warnings

pytestmark = pytest.mark.vm

PROGRAM = r"""
#pragma D option quiet
#pragma D option dynvarsize=64k
#pragma D option strsize=64
inline int MINE[string name] = name == "threads";
this string who;
int places[4];
int *where;

BEGIN { where = places; }
fbt::vfs_read:entry
/MINE[execname]/
{
	self->start = timestamp;
	self->name = execname;
	self->nth[cpu, "of cpu"]++;
	entered[tid]++;
	this->key = timestamp ^ (tid << 40);
	full[this->key, entered[tid]] = 1;
	places[cpu & 1]++;
	where[2 + (cpu & 1)]++;
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
	printf("places %d %d %d %d\n", places[0], places[1], *(where + 2), places[3]);
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
    # Each thread's reads; the main thread's own reads, if any, are in addition.
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
    # By the array's own name and through a pointer that BEGIN has made on the host.
    counted = (str(number("low")), str(number("high")))
    assert re.findall(r"^places (\d+) (\d+) (\d+) (\d+)$", done.out, re.M) == [counted * 2]
    drops = re.findall(r"^dtrace: (\d+) dynamic variable drops? \(a larger", done.err, re.M)
    assert drops, done.err
    assert number("kept") + sum(map(int, drops)) == total


FREED = r"""
#pragma D option quiet
#pragma D option dynvarsize=64k
#pragma D option strsize=64
#pragma D depends_on module vmlinux
struct both { int process; id_t thread; string name; };
translator struct both < struct task_struct *T > {
	process = T->tgid;
	thread = xlate < lwpsinfo_t > (T).pr_lwpid;
	name = T->comm;
};

fbt::vfs_read:entry
/execname == "rounds"/
{
	sequence[tid]++;
	live[tid, sequence[tid]] = 7;
	@tried = count();
	@kept = sum(live[tid, sequence[tid]] == 7);
}
fbt::vfs_read:return
/execname == "rounds" && live[tid, sequence[tid]]/
{
	live[tid, sequence[tid]] = 0;
	@freed = count();
	@after = max(live[tid, sequence[tid]]);
}
fbt::vfs_read:entry
/execname == "rounds" && curpsinfo->pr_pid == pid && curlwpsinfo->pr_lwpid == tid &&
    curpsinfo->pr_ppid == ppid && curpsinfo->pr_fname == execname && curpsinfo->pr_uid == uid &&
    curlwpsinfo->pr_onpro == cpu && curlwpsinfo->pr_sname == 'O'/
{
	@process = count();
}
fbt::vfs_read:entry
/execname == "rounds" && xlate < struct both > (curthread).process == pid &&
    xlate < struct both * > (curthread)->thread == tid &&
    xlate < struct both > (curthread).name == "rounds" &&
    xlate < psinfo_t > (curthread->real_parent).pr_pid == ppid/
{
	@translated = count();
}
fbt::vfs_read:entry
/execname == "rounds"/
{
	@files[fds[arg2 == 0 ? -1 : 99].fi_name] = count();
}
END
{
	printa("tried %@d\n", @tried); printa("kept %@d\n", @kept);
	printa("freed %@d\n", @freed); printa("after %@d\n", @after);
	printa("process %@d\n", @process); printa("translated %@d\n", @translated);
	printa("files %s %@d\n", @files);
}
"""


def test_freed_elements_and_translators(
    guest_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """An array has room for a few thousand elements, but many more are made and freed.

    Translated structures have the same values as the built-ins.
    """
    script = tmp_path / "freed.d"
    script.write_text(FREED)
    work = guest_script(
        tmp_path, "work.sh", "dmesg -r; echo ==\nrounds 1000 60 & rounds 1000 60; wait; dmesg -r"
    )
    done = kinst("-s", str(script), "-c", "work.sh", copy=[guest_program("rounds"), work]).good()
    before, after = done.guest.split("==\n", 1)
    assert "Traceback" not in done.err and warnings(before) == warnings(after), done

    found = {name: int(n) for name, n in re.findall(r"^(\w+) (\d+)$", done.out, re.M)}
    drops = re.findall(r"^dtrace: (\d+) dynamic variable drops?", done.err, re.M)
    lost = sum(map(int, drops))
    assert found["tried"] >= 120_000
    # Keys are shared if an assignment to sequence[] was lost; the first ones are made first, when
    # there is room for all of them.
    assert found["kept"] + lost == found["tried"], done.err
    assert found["freed"] == found["kept"] and found["after"] == 0
    # 64 KiB have room for fewer than 2,048 elements of 32 bytes and more.
    assert found["kept"] > 2 * 2048, done
    assert found["process"] == found["translated"] == found["tried"]
    assert re.findall(r"^files (\S+) (\d+)$", done.out, re.M) == [("<none>", str(found["tried"]))]
