"""Losses and effects of a D program on a running kernel, all in one.

Speculations without room, keys without room, chill(), ftruncate(), and translations and structures
of threads.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import kinst

pytestmark = pytest.mark.vm

READS = 2000
CHILLED_NS = 300_000
SPECSIZE = 1024

PROGRAM = f"""
struct mine {{ int calls; string name; char word[8]; unsigned low : 3, high : 5; }};
self struct mine m;
psinfo_t kept;

fbt::vfs_read:entry
/execname == "reads"/
{{
	@hits = count();
	self->m.calls++;
	self->m.name = execname;
	self->m.word = "abcdefghij";
	self->m.high = self->m.calls;
	self->who = xlate < psinfo_t > (curthread);
	this->lwp = xlate < lwpsinfo_t * > (curthread);
	@right = sum(self->who.pr_pid == pid && self->who.pr_ppid == ppid &&
		self->who.pr_fname == execname && this->lwp->pr_lwpid == tid);
	kept = xlate < psinfo_t > (curthread);
	calls = self->m.calls;
}}
fbt::vfs_read:entry
/execname == "reads" && !s/
{{
	s = speculation();
}}
fbt::vfs_read:entry
/execname == "reads"/
{{
	@unavailable = sum(speculation() == 0);
	@many[calls] = count();
}}
fbt::vfs_read:entry
/execname == "reads"/
{{
	speculate(s);
	printf("said %d\\n", self->m.calls);
}}
fbt::vfs_read:entry
/execname == "reads" && self->m.calls <= 20/
{{
	self->t = timestamp;
	chill({CHILLED_NS});
}}
fbt::vfs_read:return
/self->t/
{{
	@fewest = min(timestamp - self->t);
	@chilled = count();
	self->t = 0;
	@members = sum(self->m.word == "abcdefg" && self->m.name == "reads" && !self->m.low &&
		self->m.high == (self->m.calls & 31));
}}
fbt::vfs_read:entry
/execname == "reads" && self->m.calls == 30/
{{
	chill(600000000);
}}
END {{ printf("this is emptied\\n"); }}
END {{ ftruncate(); }}
END {{ commit(s); }}
END
{{
	printf("calls %d %s\\n", calls, kept.pr_fname);
	printa("hits %@d\\n", @hits); printa("right %@d\\n", @right);
	printa("unavailable %@d\\n", @unavailable); printa("fewest %@d\\n", @fewest);
	printa("chilled %@d\\n", @chilled); printa("members %@d\\n", @members);
	printa("many %@d\\n", @many);
}}
"""


def test_losses_and_effects(reads: Path, tmp_path: Path) -> None:
    script = tmp_path / "effects.d"
    script.write_text(PROGRAM)
    done = kinst(
        "-q", "-w", "-x", "nspec=1", "-x", f"specsize={SPECSIZE}", "-x", "aggsize=16k",
        # On one CPU, because a speculation has its room, and its order, on each CPU.
        "-s", str(script), "-c", f"taskset 1 reads {READS}", copy=[reads],
    ).good()  # fmt: skip

    def number(name: str) -> int:
        return int(re.findall(rf"^{name} (\d+)$", done.out, re.M)[0])

    def lost(what: str) -> int:
        return sum(map(int, re.findall(rf"^dtrace: (\d+) {what}", done.err, re.M)))

    hits = number("hits")
    assert hits >= READS
    assert "emptied" not in done.out
    # The only speculation was taken by the first call.
    assert number("unavailable") == hits == lost("failed speculations?")
    said = [int(n) for n in re.findall(r"^said (\d+)$", done.out, re.M)]
    assert said == list(range(1, len(said) + 1)) and len(said) < SPECSIZE / 24
    assert len(said) + lost("speculative drops?") == hits
    many = [int(n) for n in re.findall(r"^many (\d+)$", done.out, re.M)]
    assert set(many) == {1} and lost("aggregation drops?") > 0
    assert len(many) + lost("aggregation drops?") == hits
    assert number("right") == hits and f"calls {hits} reads\n" in done.out
    assert number("chilled") == number("members") == 20
    assert number("fewest") >= CHILLED_NS
    assert (
        len(re.findall(r"^dtrace: error .*: illegal operation in action #1$", done.err, re.M)) == 1
    )
