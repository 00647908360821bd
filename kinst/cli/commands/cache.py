"""kinst cache: what is kept on the disk, by kind, and how to delete it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinst.api import Option
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import option_rows, own_options
from kinst.core.paths import cache_folder
from kinst.errors import KinstError


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Files of the cache that are listed and deleted together.

    Attributes:
        name: name of the kind on the command line.
        what: description of the files.
        again: how the files come back after they were deleted.
        patterns: globs of the files and folders, relative to the cache folder.
    """

    name: str
    what: str
    again: str
    patterns: tuple[str, ...]


KINDS = (
    CacheKind("kernels", "kernels, their debug files and busybox", "fetched when one is traced",
         ("kernels", "busybox", "running", "fetching", "modules")),
    CacheKind("indexes", "indexes of debug information, compiled clauses",
              "made again, in a minute or less",
         ("*.index", "*.npy", "completion", "programs", "clauses")),
    CacheKind("guests", "guests as they were after their boot", "booted and kept again, in seconds",
         ("guests",)),
    CacheKind("tools", "compiled code, whether KVM works, what set-up and tests have", "make setup",
         ("compiled", "kvm-*.json", "tests", "tools-*")),
    CacheKind("sources", "source text that was unpacked", "unpacked again", ("sources",)),
)  # fmt: skip
# Folder that records what to restore in machines that --attach has changed. It is never deleted.
JOURNAL = "planted"
OPTIONS = (Option("--yes", "", "do not ask"),)
HELP = f"""\
usage: kinst cache [clear [--yes] KIND...]

Show what kinst keeps in its cache folder (~/.cache/kinst, or below $XDG_CACHE_HOME), with the sizes
on the disk; clear deletes all of a kind, after asking.

{chr(10).join(f"  {one.name:<9} {one.what}: {one.again}" for one in KINDS)}

{option_rows(OPTIONS)}
Running traces keep the files that they have open.  The journal of --attach ({JOURNAL}) stays: it
says what is to be undone in machines that kinst has changed.
"""


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Files and folders of one kind, and the bytes that they take on the disk."""

    kind: CacheKind
    paths: tuple[Path, ...]
    size: int


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst cache` and return 0."""
    rest, own = own_options(words, OPTIONS, alone=True)
    unknown = next((word for word in rest if word.startswith("-")), "")
    if unknown:
        raise UsageError(f"unknown option {unknown}", "kinst cache --help")
    folder = cache_folder()
    cached = [_files(kind, folder) for kind in KINDS]
    if not rest:
        write(sys.stdout, _table(cached, folder))
        return 0
    action, *names = rest
    if action != "clear":
        raise UsageError(f"unknown action {action}", "kinst cache clear KIND...")
    by_name = {one.kind.name: one for one in cached}
    strange = next((name for name in names if name not in by_name), "")
    if strange or not names:
        message = f"{strange}: no such kind" if strange else "clear which kind?"
        raise UsageError(message, ", ".join(by_name))
    _clear([by_name[name] for name in dict.fromkeys(names)], ask="--yes" not in own)
    return 0


def _files(kind: CacheKind, folder: Path) -> CachedFiles:
    paths = tuple(sorted(path for place in kind.patterns for path in folder.glob(place)))
    return CachedFiles(kind, paths, sum(map(_size, paths)))


def _size(path: Path) -> int:
    """Return the bytes that a file or folder takes on the disk, without the holes of files; 0 if
    another process has deleted it."""
    try:
        own = path.lstat().st_blocks * 512
        inside = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    except OSError:
        return 0
    return own + sum(map(_size, inside))


def _table(cached: Sequence[CachedFiles], folder: Path) -> str:
    rows = [(one.kind.name, size_text(one.size), one.kind.what) for one in cached]
    rows.append(("all", size_text(sum(one.size for one in cached)), str(folder)))
    names, sizes = (max(len(row[k]) for row in rows) for k in (0, 1))
    return "".join(f"{name:<{names}}  {size:>{sizes}}  {what}\n" for name, size, what in rows)


def size_text(size: int) -> str:
    """Return a number of bytes as text with a decimal unit: "670 MB"."""
    amount, prefixes = float(size), iter(("B", "kB", "MB", "GB"))
    prefix = next(prefixes)
    while amount >= 1000 and prefix != "GB":
        amount, prefix = amount / 1000, next(prefixes)
    return f"{amount:.3g} {prefix}" if amount < 1000 else f"{amount:.0f} {prefix}"


def _clear(wanted: Sequence[CachedFiles], *, ask: bool) -> None:
    there = [one for one in wanted if one.paths]
    if not there:
        say("kinst: nothing to delete: the cache has none of these")
        return
    if ask and not _agreed(there):
        say("kinst: nothing is deleted")
        return
    failures = [failure for one in there for path in one.paths for failure in _delete(path)]
    if failures:
        raise KinstError(f"failed to delete {failures[0]}", f"{len(failures)} in all")


def _agreed(wanted: Sequence[CachedFiles]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask: standard input is not a terminal", "--yes deletes without asking"
        )
    what = " and ".join(f"{one.kind.name} ({size_text(one.size)})" for one in wanted)
    sys.stderr.write(f"Delete {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete(path: Path) -> Iterator[str]:
    """Delete a file or a folder, and yield "PATH: REASON" for each file that could not be
    deleted."""
    failed: list[str] = []

    def note(function: object, name: str, error: object) -> None:
        reason = error[1] if isinstance(error, tuple) else error
        if not isinstance(reason, FileNotFoundError):
            failed.append(f"{name}: {getattr(reason, 'strerror', reason)}")

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=note)
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
    yield from failed
