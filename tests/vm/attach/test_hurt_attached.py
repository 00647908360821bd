"""Errors and signals at random calls and random moments, in traces of a guest that kinst did not
start.

kinst, its guardian or the next start of kinst restores the kernel's text, the guest runs on, and
none of its memory is lost.

    KINST_MOMENTS=500 KINST_SEED=1    how many moments, and the seed that draws them
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.tables import KernelTables
from kinst.wire.other_process import OtherProcess
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.attach.attach_picture import Photographer
from tests.vm.attach.hurt import BOTH, ERRORS, SIGNALS, Hurt, Outcome, Run, Runs

pytestmark = [pytest.mark.vm, pytest.mark.slow]
MOMENTS = int(os.environ.get("KINST_MOMENTS", "500"))
SEED = int(os.environ.get("KINST_SEED", "1"))
PROBES = "kinst::vfs_read:, kinst::vfs_write:, kinst::ksys_read:"
PROGRAMS = (
    f"{PROBES} {{ @[probefunc] = count(); }}",
    f"{PROBES} {{ @[execname, probename] = count(); }}",
    "fbt::vfs_*:entry { @[probefunc] = count(); } fbt::vfs_*:return { @r = count(); }",
    'kinst::vfs_read:0 { printf("%s", execname); }',
)
WAYS = ("auto", "auto", "jump", "trap", "stop")
LASTS = "tick-200ms { exit(0); }"
LOAD = "(while true; do reads 2000 >/dev/null; sleep 0.1; done) & echo $!"
MOST_LOST = 8 * 1024  # kB of the guest's, in all
PIECE = 4 * 1024  # kB that stay allocated if the guardian is killed while it frees them


class Rig:
    """A guest under load, and the runs that are hurt."""

    def __init__(self, vm: AttachGuest, folder: Path) -> None:
        self.vm = vm
        self.folder = folder
        self.photographer = Photographer(vm, "amd64", 512)
        self.load = vm.run(LOAD).splitlines()[-1]
        self.runs = Runs()
        self.text = self.photographer.text()
        self.start = vm.run("grep ' _text$' /proc/kallsyms").split()[0]
        self.err = ""

    def words(self, program: str, way: str) -> list[str]:
        place = ["--attach", str(self.vm.pid), "--kernel", str(self.vm.debug), "-q"]
        return [*place, "-x", f"plant={way}", "-n", program, "-n", LASTS]

    def run(
        self, program: str, way: str, hurt: Hurt | None = None, number: str = "", after: float = 0.0
    ) -> Outcome:
        out, err = self.folder / "out", self.folder / "err"
        run = Run(self.words(program, way), str(out), str(err), hurt, number, after)
        outcome = self.runs.run(run)
        self.err = err.read_text(errors="replace")
        return outcome

    def differences(self) -> int:
        """Return the bytes of the kernel's text that differ from before.

        Static keys that the kernel itself has flipped are left out: it flips one when it finds its
        clock unstable on a busy host.
        """
        now = self.photographer.text()
        if now == self.text:
            return 0
        places = [k for k, (a, b) in enumerate(zip(self.text, now, strict=True)) if a != b]
        if not self.keys.issuperset(places):
            print(f"text at {list(map(hex, places))}, of _text on", flush=True)
            return len(places)
        print(f"static keys: {self.vm.run('dmesg | tail -n 4')}", flush=True)
        self.text = now
        return 0

    @cached_property
    def keys(self) -> frozenset[int]:
        """Return the offsets of text bytes that belong to static keys."""
        elf = open_elf(Path(self.vm.debug))
        labels, begin = KernelTables(elf).jump_labels, elf.address("_text")
        assert begin is not None
        starts, sizes = labels.start.tolist(), labels.size.tolist()
        return frozenset(
            at + k - begin for at, size in zip(starts, sizes, strict=True) for k in range(size)
        )

    def is_restored_by(self, both: bool) -> str:
        """Return what has restored the text: these processes, the next start of kinst, or "" for
        neither.

        Args:
            both: none of these processes is left, and the guest may be stopped.
        """
        if not self.differences() and not both:
            return "itself"
        self.run(PROGRAMS[0], "auto")
        return "" if self.differences() else "the next start"

    def where(self) -> str:
        """Return where the CPUs of a stopped guest are, by gdb."""
        (linked,) = re.findall(
            r"^([0-9a-f]+) T _text$",
            subprocess.check_output(["nm", self.vm.debug], text=True),
            re.M,
        )
        slide = int(self.start, 16) - int(linked, 16)
        commands = [f"symbol-file -o {slide:#x} {self.vm.debug}", f"target remote {self.vm.stub}"]
        commands += ["thread apply all info registers rip rsp eflags", "thread apply all bt 12"]
        words = [word for one in commands for word in ("-ex", one)]
        done = subprocess.run(
            ["gdb", "-q", "-nx", "-batch", *words], capture_output=True, text=True, timeout=120
        )
        return done.stdout + done.stderr

    def close(self) -> None:
        self.runs.close()


@pytest.fixture
def rig(prepared: Prepared, reads: Path, tmp_path: Path) -> Iterator[Rig]:
    with attach_guest("pc", prepared, reads, tmp_path) as vm:
        made = Rig(vm, tmp_path)
        yield made
        made.close()


def drawn(draw: random.Random, calls: dict[str, dict[str, int]]) -> Hurt:
    """Return a random call of such a run; each name is equally likely."""
    names = [(who, name) for who in calls for name, count in calls[who].items() if count]
    who, name = draw.choice(names)
    number = draw.randint(1, calls[who][name])
    what = draw.choice((*ERRORS, *ERRORS, *SIGNALS, "SIGKILL", BOTH))
    return Hurt(who, name, number, what, draw.random() < 0.4)


def test_the_text_is_put_back(rig: Rig) -> None:
    draw = random.Random(SEED)
    # One run fills caches, and one shows which calls a run makes.
    known: dict[tuple[str, str], tuple[dict[str, dict[str, int]], float]] = {}
    wrong: list[str] = []
    how: Counter[str] = Counter()
    free = 0
    for turn in range(MOMENTS):
        program, way = draw.choice(PROGRAMS), draw.choice(WAYS)
        if way == "stop":
            program = PROGRAMS[3]  # the others would halt the guest
        if (program, way) not in known:
            if not known:
                rig.run(program, way)
            whole = rig.run(program, way)
            assert whole.status == 0, rig.err
            assert not rig.differences()
            known[program, way] = {k: dict(v) for k, v in whole.calls.items()}, whole.seconds
            free = free or rig.vm.free()
        calls, longest = known[program, way]
        if turn % 2:
            hurt = drawn(draw, calls)
            about = str(hurt)
            outcome = rig.run(program, way, hurt)
            kind = f"{hurt.who}: {hurt.what}" if outcome.happened else "not come to"
        else:
            number, after = draw.choice(SIGNALS), draw.uniform(0.0, longest)
            about = f"{number} after {after:.3f} of {longest:.3f} s"
            outcome = rig.run(program, way, None, number, after)
            kind = f"moment: {number}"
        said, restorer = rig.err, rig.is_restored_by(kind.endswith(BOTH))
        how[f"{kind}, text by {restorer}"] += 1
        troubles = [f"{outcome.hangs} hangs"] if outcome.hangs else []
        troubles += [] if restorer else [f"{rig.differences()} bytes of text are others"]
        troubles += ["a traceback"] if "Traceback" in said else []
        try:
            answer = rig.vm.run("reads 10", 60.0)
            troubles += [] if "reads 10 " in answer else [f"the guest says {answer!r}"]
        except TimeoutError:
            troubles.append("the guest stands")
        if troubles:
            wrong.append(f"{turn}: {about}; {way}, {program}: {troubles}; {said!r}")
            print(wrong[-1], flush=True)
            if "the guest stands" in troubles:
                print((rig.folder / "log").read_text(errors="replace")[-8000:], flush=True)
                print(rig.where(), flush=True)
                break
        if turn % 10 == 9:
            print(f"{turn + 1} runs, {len(wrong)} wrong, {rig.vm.free()} kB free", flush=True)
    for kind, count in sorted(how.items()):
        print(f"{count:5} {kind}")
    assert not wrong, f"seed {SEED}, {len(wrong)} of {MOMENTS}:\n" + "\n".join(wrong)
    whole = rig.run(PROGRAMS[0], "auto")  # frees what killed pairs left
    assert whole.status == 0 and not rig.differences()
    kills = sum(count for kind, count in how.items() if kind.startswith("guardian: SIGKILL"))
    assert rig.vm.free() > free - MOST_LOST - PIECE * kills, (free, rig.vm.free(), kills)


@pytest.mark.parametrize("what", ["SIGKILL", BOTH])
def test_killed_while_a_thread_of_the_guest_lends(rig: Rig, what: str) -> None:
    """Kill the guardian, or kinst with it, at each journal entry that is made while memory is
    freed.

    A system call of the guest's thread fails, and nothing else.
    """
    whole = rig.run(PROGRAMS[0], "auto")
    assert whole.status == 0, rig.err
    entries = whole.calls["guardian"]["Journal._note"]
    for number in range(entries, entries - 6, -1):
        for after in (False, True):
            outcome = rig.run(
                PROGRAMS[0], "auto", Hurt("guardian", "Journal._note", number, what, after)
            )
            assert outcome.happened
            assert rig.is_restored_by(what == BOTH)
            assert "reads 10 " in rig.vm.run("reads 10", 60.0), (number, after)
    assert rig.run(PROGRAMS[0], "auto").status == 0, rig.err
    assert "panic" not in (rig.folder / "log").read_text(errors="replace")


@pytest.mark.parametrize("what", ["SIGKILL", BOTH, "ENOMEM"])
def test_hurt_while_qemu_makes_calls(rig: Rig, what: str) -> None:
    """QEMU's thread returns by itself, and the next kinst recognises memory left in QEMU."""
    whole = rig.run(PROGRAMS[0], "auto")
    assert whole.status == 0, rig.err
    for name in ("prepare", "call", "make_memory", "close_file", "let_go"):
        name = f"InjectedCalls.{name}"
        for number in range(1, whole.calls["guardian"][name] + 1):
            for after in (False, True):
                hurt = Hurt("guardian", name, number, what, after)
                assert rig.run(PROGRAMS[0], "auto", hurt).happened
                assert rig.is_restored_by(what == BOTH), hurt
                assert "reads 10 " in rig.vm.run("reads 10", 60.0), hurt
    whole = rig.run(PROGRAMS[0], "auto")
    assert whole.status == 0, rig.err
    assert not [
        link for link in OtherProcess(rig.vm.pid).descriptors().values() if "kinst " in link
    ]


@pytest.mark.parametrize("way", ["auto", "trap"])
@pytest.mark.parametrize("what", ["MemoryError", "TargetError"])
def test_any_write_of_text_fails(rig: Rig, what: str, way: str) -> None:
    """Any write of text fails, also one that removes a patch: kinst does not assume that failed
    writes were made."""
    for program in (PROGRAMS[0], PROGRAMS[3]):
        whole = rig.run(program, way)
        assert whole.status == 0, rig.err
        writes = whole.calls["kinst"]["Rsp.write_memory"]
        assert writes >= 4
        for number in range(1, writes + 1):
            for after in (False, True):
                hurt = Hurt("kinst", "Rsp.write_memory", number, what, after)
                outcome = rig.run(program, way, hurt)
                assert outcome.happened and not outcome.hangs
                assert not rig.differences(), (hurt, rig.err)
                assert "reads 10 " in rig.vm.run("reads 10", 60.0), hurt


@pytest.mark.parametrize("what", ["ENOMEM", "MemoryError"])
def test_a_message_is_not_sent(rig: Rig, what: str) -> None:
    """Neither process waits for the lost message."""
    whole = rig.run(PROGRAMS[3], "auto")
    assert whole.status == 0, rig.err
    for who in ("guardian", "kinst"):
        for number in range(1, whole.calls[who]["Channel.send"] + 1):
            outcome = rig.run(PROGRAMS[3], "auto", Hurt(who, "Channel.send", number, what))
            assert outcome.happened and not outcome.hangs, (who, number)
            assert not rig.differences(), (who, number)
            assert "reads 10 " in rig.vm.run("reads 10", 60.0), (who, number)
    assert rig.run(PROGRAMS[3], "auto").status == 0, rig.err


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("what", ["ENOMEM", "TornError", "SIGTERM", "SIGKILL", BOTH])
def test_hurt_when_the_stub_has_let_go(rig: Rig, what: str, after: bool) -> None:
    """The guardian opens a new connection, because the old one does not answer any more.

    QEMU's stub was asked on that connection to detach from the machine.
    """
    for program, way in ((PROGRAMS[0], "auto"), (PROGRAMS[3], "stop")):
        whole = rig.run(program, way)
        assert whole.status == 0, rig.err
        for number in range(asked := whole.calls["guardian"]["Rsp.ask"], asked - 3, -1):
            outcome = rig.run(program, way, Hurt("guardian", "Rsp.ask", number, what, after))
            assert outcome.happened and not outcome.hangs
            assert rig.is_restored_by(what == BOTH)
            assert "reads 10 " in rig.vm.run("reads 10", 60.0), number


@pytest.mark.parametrize("late", [0.0, 0.01, 0.05])
def test_interrupted_while_it_waits_for_its_guardian(rig: Rig, late: float) -> None:
    """The guardian uses the stub meanwhile, so kinst must not."""
    whole = rig.run(PROGRAMS[0], "auto")
    assert whole.status == 0, rig.err
    waits = whole.calls["kinst"]["Channel.receive"]
    assert waits >= 4, "reach, settle, borrow, finish"
    for number in range(1, waits + 1):
        for what in ("SIGINT", "SIGTERM"):
            outcome = rig.run(
                PROGRAMS[0], "auto", Hurt("kinst", "Channel.receive", number, what, late=late)
            )
            assert outcome.happened and not outcome.hangs
            assert not rig.differences()
            assert "reads 10 " in rig.vm.run("reads 10", 60.0), (number, what)
    assert rig.run(PROGRAMS[0], "auto").status == 0, rig.err
