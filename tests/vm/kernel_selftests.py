"""The kernel's own self tests, from the package of the source of one of Debian's kernels; fetched
on first use by the same apt as the kernel itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kinst.core.paths import cache_folder
from kinst.kernels.fetch import alone, apt_with
from kinst.kernels.source_text import package_of

_TESTS = "tools/testing/selftests"
# Of those that are programs in C: what a C compiler alone can build, and ends in a minute.
BUILT = (
    "breakpoints", "futex/functional", "kcmp", "membarrier", "mincore", "openat2", "pidfd", "proc",
    "ptrace", "sigaltstack", "splice", "syscall_user_dispatch", "tmpfs",
)  # fmt: skip


def selftests_of(isa: str, release: str) -> Path:
    """The folder of the self tests, with some of them built.  Raises KinstError where there are
    none to be had."""
    package = package_of(release)
    place = cache_folder() / "tests" / f"selftests-{package}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_suffix(".lock"), lambda text, part: None):
        if not place.is_dir():
            part = place.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            apt = apt_with(isa, release, part / "apt", lambda text, part: None)
            (fetched,) = apt.download([package], part / "apt", lambda text, part: None)
            subprocess.run(["dpkg-deb", "-x", fetched.file, part], check=True)
            archive = part / "usr" / "src" / f"{package}.tar.xz"
            unpack = ["tar", "-xf", archive, "-C", part, "--strip-components=1"]
            subprocess.run([*unpack, f"{package}/{_TESTS}"], check=True)
            shutil.rmtree(part / "apt")
            shutil.rmtree(part / "usr")
            for name in BUILT:
                make = ["make", "-s", "-k", "-C", part / _TESTS / name, "CC=gcc"]
                subprocess.run(make, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(place)
    return place / _TESTS
