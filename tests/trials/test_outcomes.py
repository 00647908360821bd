"""Outcomes of tries, from what a guest says and from its kernel's log."""

from __future__ import annotations

import pytest

from kinst.systems.linux.guest.boot import SIGNS
from kinst.trials.guest_output import GuestTry
from kinst.trials.outcomes import (
    OUTCOMES,
    Returned,
    Try,
    classify,
    complaints,
    error_of,
    kept,
    leaked,
)

NAMES = {5: "EIO", 12: "ENOMEM"}
# As Linux 6.1 prints them (arch/x86/mm/fault.c, mm/slub.c, kernel/panic.c, kernel/watchdog.c).
NULL = """\
faulty: loading out-of-tree module taints kernel.
BUG: kernel NULL pointer dereference, address: 0000000000000010
#PF: supervisor write access in kernel mode
#PF: error_code(0x0002) - not-present page
PGD 0 P4D 0
Oops: 0002 [#1] PREEMPT SMP NOPTI
CPU: 0 PID: 91 Comm: sh Tainted: G           OE      6.1.0-56-cloud-amd64 #1  Debian 6.1.176-1
RIP: 0010:bad_unchecked+0x1b/0x40 [faulty]""".splitlines()
TWICE = """\
------------[ cut here ]------------
kernel BUG at mm/slub.c:435!
invalid opcode: 0000 [#1] PREEMPT SMP NOPTI
CPU: 0 PID: 93 Comm: sh Tainted: G           OE      6.1.0-56-cloud-amd64 #1  Debian 6.1.176-1
RIP: 0010:__slab_free+0x11a/0x3a0""".splitlines()
WARN = """\
------------[ cut here ]------------
WARNING: CPU: 0 PID: 66 at fs/inode.c:314 drop_nlink+0x30/0x50
Modules linked in: ext4""".splitlines()
STUCK = "watchdog: BUG: soft lockup - CPU#0 stuck for 11s! [sh:66]"
PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


def over(
    status: int = 0, second: int = 0, log: list[str] | None = None, **more: dict[str, int]
) -> GuestTry:
    return GuestTry(7, status, second, log=log or [], over=True, **more)


def outcome(one: GuestTry, **more: object) -> str:
    return classify(one, SIGNS, 0, **{"reached": True, "names": NAMES, **more}).outcome  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log", "found", "title"),
    [
        (NULL, "oops", NULL[1]),
        (TWICE, "oops", TWICE[2]),
        (WARN, "warn", WARN[1]),
        ([*WARN, *NULL], "oops", NULL[1]),
        ([*NULL, STUCK], "hang", STUCK),
        ([*NULL, PANIC], "panic", PANIC),
        (["BUG kmalloc-64 (Not tainted): Object already free"], "oops",
         "BUG kmalloc-64 (Not tainted): Object already free"),
    ],
)  # fmt: skip
def test_what_the_kernel_reports(log: list[str], found: str, title: str) -> None:
    made = classify(over(137, 0, log), SIGNS, 0, reached=True)
    assert (made.outcome, made.title) == (found, title)
    # The log is shown from the first problem on.
    assert complaints(made.log[:1], SIGNS)
    assert made.is_fault


def test_what_the_kernel_reports_is_worse_than_a_status() -> None:
    assert outcome(over(1, 1, NULL)) == "oops"
    assert outcome(over(1, 0, WARN), returned=Returned("f", 5), wanted=12) == "warn"


@pytest.mark.parametrize(
    ("status", "second", "found"),
    [(0, 0, "survived"), (1, 0, "failed"), (1, 1, "broken"), (0, 1, "broken")],
)
def test_statuses(status: int, second: int, found: str) -> None:
    assert outcome(over(status, second)) == found


def test_a_command_that_always_fails() -> None:
    """A command whose usual status is 3 survives with 3, and has failed with 0."""
    assert classify(over(3, 3), SIGNS, 3, reached=True).outcome == "survived"
    assert classify(over(0, 3), SIGNS, 3, reached=True).outcome == "failed"


def test_a_call_that_was_not_made() -> None:
    assert outcome(over(), reached=False) == "unreached"
    assert outcome(over(1, 0, NULL), reached=False) == "oops"


@pytest.mark.parametrize(
    ("error", "wanted", "found"),
    [(5, 12, "errno"), (12, 12, "failed"), (0, 12, "failed"), (5, 0, "failed")],
)
def test_errors(error: int, wanted: int, found: str) -> None:
    made = classify(
        over(1), SIGNS, 0, reached=True, returned=Returned("f", error), wanted=wanted, names=NAMES
    )
    assert made.outcome == found
    assert made.returned == (f"f: {NAMES[error]}" if error else "")
    if found == "errno":
        assert made.title == "f returned EIO, not ENOMEM"


@pytest.mark.parametrize("run", ["first", "second", "objects"])
def test_hangs(run: str) -> None:
    blocked = ["sysrq: Show Blocked State", "task:sh state:D"]
    made = classify(GuestTry(7, log=blocked, hung=run), SIGNS, 0, reached=True)
    assert made.outcome == "hang" and made.log == tuple(blocked) and made.title
    assert classify(GuestTry(7, log=NULL, hung=run), SIGNS, 0, reached=True).outcome == "oops"


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        (("panic", f"the guest panicked\n{PANIC}"), "panic"),
        (("panic", "QEMU ended"), "panic"),
        (("hang", "the guest hangs with interrupts off: CPU 0"), "hang"),
        (("hang", NULL[1]), "hang"),
    ],
)
def test_a_guest_that_ended(gone: tuple[str, str], found: str) -> None:
    made = classify(GuestTry(7), SIGNS, 0, reached=True, gone=gone)
    assert made.outcome == found and made.title


@pytest.mark.parametrize(
    ("value", "size", "error"),
    [
        (-12, 4, 12), ((1 << 64) - 12, 4, 12), (0xFFFF_FFF4, 4, 12), (0xFFFF_FFF4, 8, 0),
        (-12, 8, 12), (-4095, 8, 4095), (-4096, 8, 0), (0, 4, 0), (5, 4, 0),
        (0x7_0000_0000 + 0xFFFF_FFFB, 4, 5),
    ],
)  # fmt: skip
def test_errors_in_registers(value: int, size: int, error: int) -> None:
    assert error_of(value, size, 4095) == error


def test_what_a_try_may_have_leaked() -> None:
    """Objects that the second run left as well, or that were gone after it, are none."""
    one = over(1, 0, grown={"a": 1, "b": 1, "c": 2, "d": -1, "e": 3}, later={"b": 1, "c": -2,
               "e": 1})  # fmt: skip
    assert kept(one) == {"a": 1, "e": 2}
    assert kept(GuestTry(7, grown={"a": 1})) == {}


@pytest.mark.parametrize(
    ("grown", "later", "lost"),
    [
        ((1, 1, 1, 1), (0, 0, 0, 0), 1),  # a leak
        ((2, 2, 2, 2), (0, 0, 0, 0), 2),
        ((2, 0, 1, 1), (0, 0, 0, 0), 1),  # a leak, and noise of another task
        ((22, 0, 0, 0), (0, 0, 0, 0), 0),  # once, by many
        ((22, 1, 0, 0), (0, 0, 0, 0), 0),
        ((1, 0, 0, 1), (0, 0, 0, 0), 0),  # not each time
        ((1, 1, 1, 1), (-1, -1, -1, -1), 0),  # freed a little later
        ((3, -1, 2, -2), (-1, 1, -2, 1), 0),  # noise
        ((1, 1, 1, 1), (1, 1, 1, 1), 0),  # what the command leaves each time
        ((2, 2, 2, 2), (1, 1, 1, 1), 2),  # that, and a leak
        ((11, 11, 12, 11), (-10, -10, -11, -10), 0),  # nearly all freed a little later
        ((3, 3, 3, 3), (-1, -1, -1, -1), 2),  # a leak of two, and one freed a little later
    ],
)
def test_leaks_add_up(grown: tuple[int, ...], later: tuple[int, ...], lost: int) -> None:
    repeats = [
        over(1, 0, grown={"a": a}, later={"a": b}) for a, b in zip(grown, later, strict=True)
    ]
    assert leaked(repeats) == ({"a": lost} if lost else {})


def test_json() -> None:
    one = Try(3, "leak", "x", ("kmalloc+0x0", "inlined", "f+0x8"), 1, 0, "f: EIO", {"a": 1}, ("l",),
              ("o",), 1.5, "leak")  # fmt: skip
    assert Try.of_json(one.to_json()) == one
    assert (one.function, one.site) == ("kmalloc", "f+0x8")
    short = Try(4, "panic")
    assert Try.of_json(short.to_json()) == short and len(short.to_json()) == 4
    assert (short.function, short.site) == ("", "")
    assert list(OUTCOMES).index("panic") < list(OUTCOMES).index("leak")
