"""The kernel's own self tests, from the source package of a Debian kernel."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

from kinst.kernels.source_text import package_of
from tools.unpacked_packages import unpacked

_TESTS = "tools/testing/selftests"
# Self tests in C that need nothing but a compiler and end within a minute.
BUILT = (
    "breakpoints", "futex/functional", "kcmp", "membarrier", "mincore", "openat2", "pidfd", "proc",
    "ptrace", "sigaltstack", "splice", "syscall_user_dispatch", "tmpfs",
)  # fmt: skip


def selftests_of(isa: str, release: str) -> Path:
    """Return the folder of the self tests, with some of them built.

    Raises:
        KinstError: the package cannot be fetched.
    """
    package = package_of(release)
    folder = f"selftests-{package}"
    return unpacked(folder, isa, release, [package], partial(_build, package)) / _TESTS


def _build(package: str, folder: Path) -> None:
    """Unpack the self tests from a package's archive, build some, and delete everything else."""
    archive = folder / "usr" / "src" / f"{package}.tar.xz"
    unpack = ["tar", "-xf", archive, "-C", folder, "--strip-components=1"]
    subprocess.run([*unpack, f"{package}/{_TESTS}"], check=True)
    shutil.rmtree(folder / "usr")
    for name in BUILT:
        make = ["make", "-s", "-k", "-C", folder / _TESTS / name, "CC=gcc"]
        subprocess.run(make, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
