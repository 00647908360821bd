"""A guest that has the files of this host, in which kinst runs and traces the guest itself
(test_live.py, bench/live_cost.py).

Emulation makes it slow to build kinst's kernel module and to index the kernel's symbols. So the
module is built on the host, and the cache that kinst has in such a guest is saved for the next
guest.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from kinst.core.paths import cache_folder
from kinst.machines.live.set_up import SOURCES, cached_module
from tools.kernel_headers import headers_of, module_for

# A CPU with the instructions that numpy's packages need. The kernel does not keep a second set of
# page tables (page-table isolation) for CPUs of this maker; in an emulated guest, page-table
# isolation makes each system call a hundred times slower.
PROCESSOR = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"
# Put the kernel's headers where a package would.
_HEADERS = """
ln -s {headers}/usr/src/linux-headers-* /usr/src/
ln -s {headers}/usr/lib/linux-kbuild-* /usr/lib/
mkdir -p /lib/modules
ln -sfn {headers}/lib/modules/$(uname -r) /lib/modules/$(uname -r)
"""
_BUILD = """
mkdir -p /lib/modules/$(uname -r)
ln -sfn {build} /lib/modules/$(uname -r)/build
"""
# Drop the variable that tells numpy that it has another processor (the host's).
_SET_UP = """
unset OPENBLAS_CORETYPE
mount -t securityfs none /sys/kernel/security
export XDG_CACHE_HOME={cache}
mkdir -p {cache}
"""


def set_up(release: str, build: Path | None = None) -> tuple[str, Path]:
    """Return shell lines that prepare a guest for kinst to run in it and trace it, and a folder of
    the host that the guest must be able to write to.

    Args:
        release: release of the guest's kernel.
        build: folder where the kernel was built, if it is not a Debian kernel.

    Raises:
        KinstError: there are no headers of the kernel.
    """
    cache = cache_folder() / "tests" / "live-guests"
    module = cached_module(release, cache / "kinst")
    if not module.is_file():
        module.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kinst-live-module-") as folder:
            (made,) = module_for("amd64", release, SOURCES, Path(folder), build)
            shutil.copyfile(made, module)
    if build is not None:
        lines = _BUILD.format(build=build)
    else:
        lines = _HEADERS.format(headers=headers_of("amd64", release))
    return lines + _SET_UP.format(cache=cache), cache
