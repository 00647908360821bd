"""Building, loading and unloading of kinst's kernel module.

The module is built once for each kernel release, by kinst or by DKMS, which also signs it.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kinst.core.errors import TargetError
from kinst.core.paths import cache_folder
from kinst.wire.kernel_module import load_module, unload_module

NAME = "kinst"
SOURCES = Path(__file__).parent / "module"
_BUILT = ("", ".c", ".h")  # suffixes of the module's sources
_LOADED = Path("/sys/module") / NAME
_MODULES = Path("/lib/modules")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
_MACHINE = "x86_64"
_LINES = 3  # of the compiler's messages that are shown
_NOT_LISTED = "not found in directory"  # in modprobe's message if modules.dep lacks the module


def load() -> bool:
    """Load the kernel module if it is not loaded; return whether this call has loaded it.

    Raises TargetError if the module cannot be built or loaded.
    """
    _check()
    if _LOADED.exists():
        return False
    release = platform.release()
    by_dkms = _from_dkms(release)
    if by_dkms is not None:
        _load_from_dkms(by_dkms)
        return True
    module = built(release)
    try:
        load_module(module)
    except OSError as error:
        if error.errno == errno.EEXIST:
            return False
        raise TargetError(*_not_loaded(error)) from error
    return True


def _from_dkms(release: str) -> Path | None:
    return next((_MODULES / release / "updates/dkms").glob(f"{NAME}.ko*"), None)


def _load_from_dkms(module: Path) -> None:
    """Load the kernel module that DKMS has built: by its name or, if depmod(8) was not run, by its
    file, which may be compressed.

    Raises TargetError.
    """
    said = ""
    for command in (["modprobe", NAME], ["insmod", str(module)]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise TargetError(f"{command[0]} cannot be run: {error.strerror}") from error
        if not done.returncode:
            return
        said = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
        if _NOT_LISTED not in said:
            break
    raise TargetError(
        f"the kernel does not take the module that DKMS has built: {said.splitlines()[0]}",
        f"dmesg says why; without it (dkms remove {NAME} --all), kinst builds its own",
    )


def unload() -> None:
    """Unload the kernel module, except while another kinst uses it or sites could not be
    restored.
    """
    with suppress(OSError):
        unload_module(NAME)


def check() -> None:
    """Raise TargetError if the kernel module cannot be loaded, as far as a quick look can tell."""
    _check()
    release = platform.release()
    there = _LOADED.exists() or _from_dkms(release) is not None
    if not there and not cached_module(release, cache_folder()).is_file():
        _headers(release)


def _check() -> None:
    if platform.machine() != _MACHINE:
        raise TargetError(
            f"--live is for {_MACHINE}, and this machine is {platform.machine()}",
            "--vm traces a kernel for another machine",
        )
    if os.geteuid():
        raise TargetError("--live needs root, with CAP_SYS_MODULE", "sudo kinst --live ...")
    locked = _lockdown()
    if locked:
        raise TargetError(
            f"the kernel is locked down ({locked}): it takes no module that its owner has not"
            " signed, and shows none of its memory",
            "--vm traces a kernel like it",
        )


def _lockdown() -> str:
    """Return the kernel's lockdown mode, "" if the kernel is not locked down."""
    try:
        words = _LOCKDOWN.read_text().split()
    except OSError:
        return ""
    chosen = next((word.strip("[]") for word in words if word.startswith("[")), "none")
    return "" if chosen == "none" else chosen


def cached_module(release: str, cache: Path) -> Path:
    """Return the path in the cache at which kinst keeps its kernel module for a release.

    The path contains a checksum of the module's sources, so a module that was built from other
    sources is not found there. The file need not exist.

    Args:
        release: the kernel's release.
        cache: the cache folder.
    """
    mark = sha256(b"\0".join(_read(name) for name in _sources())).hexdigest()[:12]
    return cache / "modules" / f"{release}-{mark}" / f"{NAME}.ko"


def _sources() -> list[str]:
    return sorted(file.name for file in SOURCES.iterdir() if file.suffix in _BUILT)


def _read(name: str) -> bytes:
    return (SOURCES / name).read_bytes()


def _headers(release: str) -> Path:
    """Return the folder of a kernel's headers.  Raises TargetError if they are not installed."""
    headers = _MODULES / release / "build"
    if not (headers / "Makefile").is_file():
        raise TargetError(
            f"the headers of kernel {release} are not installed, for kinst's module",
            f"apt-get install linux-headers-{release}, or the like",
        )
    return headers


def built(release: str) -> Path:
    """Return the path of the kernel module for a release; build the module if it is not in the
    cache.

    Raises TargetError if it cannot be built.
    """
    cached = cached_module(release, cache_folder())
    if cached.is_file():
        return cached
    headers = _headers(release)
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            raise TargetError(f"there is no {tool} to build kinst's module with",
                              "apt-get install gcc make")  # fmt: skip
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kinst-module-") as folder:
        for name in _sources():
            (Path(folder) / name).write_bytes(_read(name))
        command = ["make", "-C", str(headers), f"M={folder}", "modules"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            # The headers use the compiler that the kernel was built with, for example gcc-10.
            again = [*command, "CC=gcc"]
            second = subprocess.run(again, capture_output=True, text=True, errors="replace")
            done = done if second.returncode else second
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise TargetError(
                f"kinst's module does not build for kernel {release}: "
                + "; ".join(said[:_LINES] or [f"make ended with {done.returncode}"]),
            )
        part = cached.with_suffix(f".{os.getpid()}")
        shutil.copyfile(Path(folder) / f"{NAME}.ko", part)
        part.replace(cached)
    return cached


def _not_loaded(error: OSError) -> tuple[str, str]:
    start = "the kernel does not take kinst's module"
    if error.errno == errno.EPERM:
        return f"{start}: operation not permitted", "a container, or a kernel that is locked down"
    if error.errno == errno.EKEYREJECTED:
        return (
            f"{start}: it takes signed modules only",
            "DKMS signs with this machine's key: docs/live.md",
        )
    if error.errno == errno.EOPNOTSUPP:
        return f"{start}: this kernel lacks what it needs", "dmesg says what"
    return f"{start}: {error.strerror}", "dmesg says why"
