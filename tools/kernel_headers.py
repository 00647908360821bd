"""Headers of a Debian kernel, and building of kernel modules with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools.unpacked_packages import is_unpacked, unpacked


def _packages(release: str) -> list[str]:
    """Return the packages that the headers of a kernel release need: the headers of the flavour,
    the headers that all flavours of its ABI share, and the build programs.

    Args:
        release: the kernel's release, such as 6.1.0-56-cloud-amd64 or 6.12.117+deb13-cloud-amd64.
    """
    version, _, rest = release.partition("-")
    if rest[0].isdigit():  # until Debian 12: the ABI is a number after the version
        abi = f"{version}-{rest.partition('-')[0]}"
        return [
            f"linux-headers-{release}", f"linux-headers-{abi}-common",
            f"linux-kbuild-{version.rpartition('.')[0]}",
        ]  # fmt: skip
    return [f"linux-headers-{release}", f"linux-headers-{version}-common",
            f"linux-kbuild-{version}"]  # fmt: skip


def _folder(release: str) -> str:
    return f"headers-{release}"


def are_there(release: str) -> bool:
    """Return whether the headers of a kernel release have been fetched."""
    return is_unpacked(_folder(release))


def headers_of(isa: str, release: str) -> Path:
    """Return a folder in which the headers have the paths that they have below / when installed;
    fetch them if necessary. Raises KinstError if they cannot be fetched."""
    return unpacked(_folder(release), isa, release, _packages(release))


def module_for(
    isa: str, release: str, sources: Path, folder: Path, build: Path | None = None
) -> list[Path]:
    """Build kernel modules from a folder of sources with a Kbuild file, and return the modules'
    files.

    The headers refer to each other by their installed paths, so the build runs where they have
    these paths. $KINST_BUILD_ROOT names a folder with a system whose compiler and C library run the
    kernel's own build programs, if this system is too old for them.

    Args:
        isa: name of the instruction set.
        release: release of the kernel.
        sources: folder of the module's sources.
        folder: folder to build in.
        build: folder where the kernel was built, if that was on this host; no headers are fetched
            then.

    Raises:
        KinstError: there are no headers.
    """
    shutil.copytree(sources, folder, dirs_exist_ok=True)
    if build is not None:
        _run(["make", "-C", str(build), f"M={folder}", "modules"])
        return sorted(folder.glob("*.ko"))
    headers = headers_of(isa, release)
    root = Path(os.environ.get("KINST_BUILD_ROOT", "/")).resolve()
    inside = root / folder.resolve().relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    script = (
        f"mount -t overlay kinst -o lowerdir={headers}/usr:{root / 'usr'} {root / 'usr'} &&"
        f" mount --bind {folder} {inside} &&"
        f" chroot {root} make -C /usr/src/linux-headers-{release} M={folder} CC=gcc modules"
    )
    unshare = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-r", "-m"]
    _run([*unshare, "sh", "-c", script])
    return sorted(folder.glob("*.ko"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
