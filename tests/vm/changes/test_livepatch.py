"""The guest livepatches functions in which kinst plants: before, while and after it traces
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.attach.attach_picture import Photographer, symbols
from tests.vm.command import Running, counts, kinst, listed
from tools.kernel_headers import module_for

pytestmark = [pytest.mark.vm, pytest.mark.slow]
SOURCES = ROOT / "tests/programs/livepatch"
PATCHED, READS = "cmdline_proc_show", 10
COUNT = f"kinst::{PATCHED}: {{ @[probename] = count(); }}"
BEGUN = 'tick-100ms { printf("begun\\n"); }'
NEW = "patched by a livepatch"
STATE = "/sys/kernel/livepatch/patched"
SETTLED = f"while grep -q 1 {STATE}/transition 2>/dev/null; do sleep 0.2; done"


@pytest.fixture(scope="module")
def vm(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachGuest]:
    folder = tmp_path_factory.mktemp("livepatch")
    release = prepared.modules.name
    (module,) = module_for("amd64", release, SOURCES, folder / "module")
    with attach_guest("pc", prepared, [module], folder) as found:
        found.run("mount -t sysfs sys /sys; dmesg -n 1; dmesg -c")
        yield found


@pytest.fixture(scope="module")
def text(vm: AttachGuest) -> Callable[[], bytes]:
    """Return the kernel's text, before anything is planted."""
    return Photographer(vm, "amd64", 512).text


def shown(vm: AttachGuest) -> str:
    """Return the output of the function, called so many times."""
    return vm.run(f"for n in $(seq {READS}); do cat /proc/cmdline; done").splitlines()[-1]


def differences(now: bytes, before: bytes) -> set[int]:
    return {at for at, (a, b) in enumerate(zip(now, before, strict=True)) if a != b}


def called(vm: AttachGuest) -> set[int]:
    """Return the offsets of ftrace's own calls, which keep the function that was called last."""
    at = symbols(vm.debug, {"_text", "ftrace_call", "ftrace_regs_call"})
    begin = at.pop("_text")
    return {address - begin + k for address in at.values() for k in range(5)}


def troubles(vm: AttachGuest) -> str:
    return vm.run("dmesg -c | grep -E 'BUG|WARNING|Oops|ftrace faulted|Call Trace'")


def planting(vm: AttachGuest, *more: str) -> Running:
    place = ["--attach", str(vm.pid), "--kernel", str(vm.debug), "-q", *more]
    run = Running(*place, "-n", COUNT, "-n", BEGUN, boots=False)
    run.until(lambda r: "begun" in r.out)
    return run


def over(run: Running) -> tuple[dict[tuple[str, ...], int], str]:
    run.stop()
    done = run.result().good()
    return counts(done.out.replace("begun\n", "")), done.err


def test_call_sites_are_left_to_it(vm: AttachGuest, text: Callable[[], bytes]) -> None:
    """The livepatch works while the rest of the function is planted.

    This test is first, because the other one makes ftrace disable this function for good.
    """
    plain, original = shown(vm), text()
    assert NEW not in plain
    run = planting(vm, "-x", "plant=no-callsite")
    assert shown(vm) == plain
    vm.run(f"insmod /bin/patched.ko && {SETTLED}")
    assert shown(vm) == NEW
    vm.run(f"echo 0 > {STATE}/enabled; {SETTLED}; sleep 1; rmmod patched")
    assert shown(vm) == plain
    found, said = over(run)
    assert found and set(found.values()) == {2 * READS}
    assert "ftrace" not in said and not troubles(vm)
    assert shown(vm) == plain and differences(text(), original) <= called(vm)


def test_before_and_while_planted(vm: AttachGuest, text: Callable[[], bytes]) -> None:
    plain, original = shown(vm), text()
    own = called(vm)
    assert NEW not in plain
    # Livepatch first: it has the call site, kinst plants the rest, and no CPU comes there.
    vm.run(f"insmod /bin/patched.ko; {SETTLED}")
    assert shown(vm) == NEW
    with_livepatch = text()
    place = ["--attach", str(vm.pid), "--kernel", str(vm.debug)]
    rows = listed(kinst(*place, "-lvn", f"kinst::{PATCHED}:", boots=False).good().out)
    assert "ftrace uses it now" in rows[0].way, rows[0]
    assert all(row.way != "refused" for row in rows[1:])
    run = planting(vm)
    assert shown(vm) == NEW
    # Removed while the rest is planted: the kernel's own function runs again, and is counted.
    vm.run(f"echo 0 > {STATE}/enabled; {SETTLED}; sleep 1; rmmod patched")
    assert shown(vm) == plain
    found, said = over(run)
    assert set(found.values()) == {READS} and len(found) == len(rows) - 1, found
    assert "ftrace" not in said
    assert text() == original != with_livepatch
    # Applied while all of it is planted: the kernel accepts it but ftrace disables the function,
    # and kinst says so.
    run = planting(vm)
    assert vm.run(f"insmod /bin/patched.ko && {SETTLED} && echo taken") == "taken"
    assert shown(vm) == plain
    found, said = over(run)
    assert set(found.values()) == {READS} and len(found) == len(rows), found
    assert "the 1 functions that kinst has planted" in said and "livepatches" in said, said
    assert shown(vm) == plain
    vm.run(f"echo 0 > {STATE}/enabled; {SETTLED}; sleep 1; rmmod patched")
    assert differences(text(), original) <= own and not troubles(vm)
    # Afterwards the function can be traced as usual.
    run = planting(vm)
    assert shown(vm) == plain
    found, _ = over(run)
    assert set(found.values()) == {READS} and len(found) == len(rows), found
    assert differences(text(), original) <= own
    assert not troubles(vm)
