"""Where completion saves what it reads, and what that was made of.

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
# The tables that the words are taken from.
_TABLES = (
    "cli", "cli/commands", "cli/completion", "dlang/vocabulary", "providers", "session",
    "machines/attach", "machines/gdb", "machines/live", "machines/vm",
)  # fmt: skip


def words_file() -> Path:
    """Return the path of the words."""
    return cache_folder() / "completion/words.json"


def words_stamp() -> list[object]:
    """Return what changes when the words may."""
    return [__version__, str(_PACKAGE), max(_times())]


def _times() -> Iterator[int]:
    for folder in _TABLES:
        with os.scandir(_PACKAGE / folder) as entries:
            yield from (one.stat().st_mtime_ns for one in entries if one.name.endswith(".py"))


def names_file(isa: str, release: str, file: str) -> Path:
    """Return the path of the index of a kernel of Debian's, by what the user asked for ("" for the
    usual one), or of a file."""
    name = f"{isa or 'amd64'}-{release or 'usual'}"
    if file:
        path = os.path.realpath(file)
        name = f"file-{os.path.basename(path)}-{crc32(path.encode()):08x}"
    return cache_folder() / "completion" / f"{name}.names"


def names_stamp(debug: Path, isa: str, inlined: bool) -> list[int]:
    """Return what changes when the file is replaced or another kernel is fetched.

    inlined: the index has inline functions; if not, it also changes when debug information is
    indexed."""
    cache, state = cache_folder(), debug.stat()
    try:
        fetched = (cache / "kernels" / isa).stat().st_mtime_ns
    except OSError:
        fetched = 0
    indexed = 0 if inlined else len(list(cache.glob("dwarf-*.index")))
    return [state.st_size, state.st_mtime_ns, fetched, indexed]


def names_of(given: Mapping[str, str]) -> tuple[Path, tuple[str, str, str]]:
    """Return the path of the index of a kernel, and what it is made of: an ISA, a release of its
    kernels ("" for the usual one), and a file.

    given: option to value."""
    kernel, debug, build = (given.get(name, "") for name in ("--kernel", "--debug", "--build"))
    attached = "--gdb" in given or "--attach" in given
    release = kernel if kernel and not os.path.exists(kernel) else ""
    if os.path.isdir(debug):
        debug = ""
    file = os.path.join(build, "vmlinux") if build else debug or (kernel if attached else "")
    isa = given.get("--vm", "") or "amd64"
    return names_file(isa, release, file), (isa, release, file)
