"""Source text of the traced kernel, for commands that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isabs
from pathlib import Path

from kinst.api import find_source, package_of, read_sources
from kinst.cli.progress import Progress


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Source files of a kernel.

    Attributes:
        lines: text of each file that is available, by file.
        missing: why no text is shown, and what to do; "" if there is text.
    """

    lines: Mapping[str, Sequence[str]]
    missing: str = ""


def source_files(source: str, release: str, files: Sequence[str]) -> SourceFiles:
    """Return the text of source files.

    Debug information of a module that was built on this machine has whole paths of its files. These
    files need no --source.

    Args:
        source: value of --source; "" without --source.
        release: release of the kernel.
        files: names of source files in the debug information.
    """
    place = find_source(source, release)
    found = read_sources(Path("/"), filter(isabs, files), Progress("kinst"))
    if place is None and found:
        return SourceFiles(found)
    if place is None:
        package = package_of(release)
        install = f", or apt install {package}" if package else ""
        return SourceFiles({}, f"no source text is shown: --source DIR{install}")
    found |= read_sources(place, files, Progress("kinst"))
    if files and not found:
        missing = f"{place} has no {files[0]} nor any other of its files"
        return SourceFiles({}, f"no source text is shown: {missing}")
    return SourceFiles(found)
