"""Cases in which kinst --live is refused, run as root in a guest by test_live_refusals.py.

live_refusals.py KINST MODULES CASE...: each case prints a line of JSON, [its name, kinst's status,
the lines that it wrote to standard error, whether the kernel's text is as before].  MODULES is a
folder with kinst.ko, and two faulty modules, version.ko and symbol.ko.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kinst.core.paths import cache_folder
from kinst.machines.live.device import DEVICE
from kinst.machines.live.set_up import cached_module
from kinst.wire.kernel_module import load_module, unload_module
from tests.vm.live.live_replay import Kcore

KINST, MODULES = sys.argv[1], Path(sys.argv[2])
PROGRAM = "kinst::vfs_read:0 { @ = count(); }"
RELEASE = platform.release()
CACHED = cached_module(RELEASE, cache_folder())
NOBODY = 65534
Said = tuple[int, list[str]]


def live(*words: str, user: int | None = None) -> Said:
    command = [KINST, "--live", "-q", *(words or ("-n", PROGRAM)), "-c", "true"]
    done = subprocess.run(command, capture_output=True, text=True, user=user)
    return done.returncode, done.stderr.splitlines()


def keep(name: str) -> None:
    """Install one of the modules as if it had been built here."""
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(MODULES / f"{name}.ko", CACHED)


@contextmanager
def loaded(name: str) -> Iterator[None]:
    load_module(MODULES / f"{name}.ko")
    try:
        yield
    finally:
        unload_module("kinst")


def another_user() -> Said:
    return live(user=NOBODY)


def no_headers() -> Said:
    there = Path("/lib/modules") / RELEASE
    away = there.with_name("away")
    there.rename(away)
    try:
        return live()
    finally:
        away.rename(there)


def another_version() -> Said:
    with loaded("version"):
        return live()


def a_kernel_without_a_symbol() -> Said:
    keep("symbol")
    try:
        return live()
    finally:
        CACHED.unlink()


def opened_by_somebody() -> Said:
    with loaded("kinst"), DEVICE.open("rb"):
        return live()


def another_device() -> Said:
    with loaded("kinst"):
        away = DEVICE.with_name("away")
        DEVICE.rename(away)
        DEVICE.touch()
        try:
            return live()
        finally:
            away.rename(DEVICE)


def a_second_kinst() -> Said:
    keep("kinst")
    first = subprocess.Popen(
        [KINST, "--live", "-q", "-n", PROGRAM, "-n", 'tick-100ms { printf("begun\\n"); }'],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout is not None
    assert "begun" in first.stdout.readline()
    try:
        return live()
    finally:
        first.terminate()
        first.communicate()


def without_dwarf(*words: str) -> Said:
    keep("kinst")
    return live(*words)


def an_inline_function() -> Said:
    return without_dwarf("-n", "kinst::get_current: { @ = count(); }")


def an_inline_entry() -> Said:
    return without_dwarf("-n", "fbt::get_current:entry { @ = count(); }")


def a_local_variable() -> Said:
    return without_dwarf("-n", "kinst::vfs_read:0 { @ = sum(locals->count); }")


def a_source_line() -> Said:
    return without_dwarf("-n", "kinst::vfs_read:@450 { @ = count(); }")


def the_kernel_is_as_it_is() -> Said:
    """Check a guest that was booted with some parameter."""
    keep("kinst")
    return live()


def main() -> None:
    kcore = Kcore()
    before = kcore.text()
    for name in sys.argv[3:]:
        case: Callable[[], Said] = globals()[name]
        begun = time.monotonic()
        try:
            status, lines = case()
        except Exception as error:
            status, lines = -1, [repr(error)]
        with suppress(OSError):
            unload_module("kinst")
        same = kcore.text() == before
        print(json.dumps([name, status, lines, same]), flush=True)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    Path.home().chmod(0o711)  # a user other than root needs access to Python, which may be there
    main()
