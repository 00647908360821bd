"""Paths of the files that completion reads, and stamps that show whether a file is outdated.

Tested by tests/cli/test_completion.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

from kinst.core.paths import cache_folder
from kinst.version import __version__

_PACKAGE = Path(__file__).parents[2]
# Folders of the modules with the tables from which the words are made.
_TABLES = (
    "cli", "cli/commands", "cli/completion", "dlang/vocabulary", "providers", "session",
    "machines/attach", "machines/gdb", "machines/live", "machines/vm",
)  # fmt: skip


def words_file() -> Path:
    """Return the path of the file with the words of kinst and D."""
    return cache_folder() / "completion/words.json"


def words_stamp() -> list[object]:
    """Return a stamp for the words: it changes when kinst's tables of words have changed."""
    return [__version__, str(_PACKAGE), max(_times())]


def _times() -> Iterator[int]:
    for folder in _TABLES:
        with os.scandir(_PACKAGE / folder) as entries:
            yield from (one.stat().st_mtime_ns for one in entries if one.name.endswith(".py"))


def names_file(isa: str, release: str, file: str) -> Path:
    """Return the path of the index of a kernel's names.

    Args:
        isa: name of the instruction set; "" for amd64.
        release: release of the Debian kernel (--kernel); "" for the kernel that kinst takes without
            --kernel.
        file: path of the kernel's file if the user gave one; "" for a Debian kernel.
    """
    name = f"{isa or 'amd64'}-{release or 'usual'}"
    if file:
        path = os.path.realpath(file)
        name = f"file-{os.path.basename(path)}-{crc32(path.encode()):08x}"
    return cache_folder() / "completion" / f"{name}.names"


def names_stamp(debug: Path, isa: str, inlined: bool) -> list[int]:
    """Return a stamp for an index: it changes when the kernel's file is replaced or another kernel
    is fetched.

    Args:
        debug: the kernel's file.
        isa: name of the instruction set.
        inlined: whether the index has inline functions. If it does not, the stamp also changes when
            kinst indexes the debug information of any file.
    """
    cache, state = cache_folder(), debug.stat()
    try:
        fetched = (cache / "kernels" / isa).stat().st_mtime_ns
    except OSError:
        fetched = 0
    indexed = 0 if inlined else len(list(cache.glob("dwarf-*.index")))
    return [state.st_size, state.st_mtime_ns, fetched, indexed]


def names_of(options: Mapping[str, str]) -> tuple[Path, tuple[str, str, str]]:
    """Return the path of the index for the kernel that a command line chooses, and the arguments of
    names_file() that give this path: (isa, release, file).

    Args:
        options: values of the command line's options by name ("--kernel").
    """
    kernel, debug, build = (options.get(name, "") for name in ("--kernel", "--debug", "--build"))
    attached = "--gdb" in options or "--attach" in options
    release = kernel if kernel and not os.path.exists(kernel) else ""
    if os.path.isdir(debug):
        debug = ""
    file = os.path.join(build, "vmlinux") if build else debug or (kernel if attached else "")
    isa = options.get("--vm", "") or "amd64"
    return names_file(isa, release, file), (isa, release, file)
