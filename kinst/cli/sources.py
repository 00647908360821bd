"""Source text of the traced kernel, for commands that show it."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.api import find_source, package_of, read_sources
from kinst.cli.guard import say
from kinst.cli.progress import Progress


def source_lines(given: str, release: str, files: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the lines of those source files that are available, by file. If none is available,
    print the reason and return {}.

    Args:
        given: value of --source; "" without --source.
        release: release of the kernel.
        files: names of source files in the debug information.
    """
    place = find_source(given, release)
    if place is None:
        package = package_of(release)
        install = f", or apt install {package}" if package else ""
        say(f"kinst: no source text is shown: --source DIR{install}")
        return {}
    found = read_sources(place, files, Progress("kinst"))
    if files and not found:
        say(f"kinst: no source text is shown: {place} has no {files[0]} nor any other of its files")
    return found
