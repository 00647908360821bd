"""Source text of a kernel: from a folder, or from the archive in Debian's linux-source package, of
which only the wanted files are unpacked, and kept."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.core.whole_files import write_whole

PACKAGED = Path("/usr/src")  # where linux-source-X.Y is installed


def find_source(given: str, release: str, packaged: Path = PACKAGED) -> Path | None:
    """Return the folder or archive of sources: the given one, or the installed package's for a
    kernel's release; None if that is not installed.

    Raises:
        KinstError: the given one does not exist.
    """
    if given:
        if not Path(given).exists():
            raise KinstError(f"--source {given}: no such folder or archive")
        return Path(given)
    name = package_of(release)
    for candidate in (packaged / name, packaged / f"{name}.tar.xz"):
        if name and candidate.exists():
            return candidate
    return None


def package_of(release: str) -> str:
    """Return the package with the source of a release such as 6.1.0-25-cloud-amd64, "" for
    others."""
    version = re.match(r"\d+\.\d+", release)
    return f"linux-source-{version[0]}" if version else ""


def read_sources(
    place: Path, files: Iterable[str], progress: Callable[[str, float | None], None]
) -> dict[str, Sequence[str]]:
    """Return the lines of each file that exists, by the name that debug information has for it.

    Raises:
        KinstError: the archive cannot be read.
    """
    names = list(dict.fromkeys(files))
    folder, unpacked = (place, {}) if place.is_dir() else _unpacked(place, names, progress)
    sources: dict[str, Sequence[str]] = {}
    for name in names:
        if name in unpacked:
            data = unpacked[name]
        elif (path := _within(folder, name)) is not None:
            data = path.read_bytes()
        else:
            continue
        sources[name] = data.decode("utf-8", "replace").splitlines()
    return sources


def paths_within(place: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the paths, in a folder of sources, of the files that exist, by the names that debug
    information has for them."""
    found = {name: _within(place, name) for name in files} if place.is_dir() else {}
    return {name: str(path.relative_to(place)) for name, path in found.items() if path is not None}


def _within(folder: Path, name: str) -> Path | None:
    """Return a file by its name, or by the last parts of it: builds run in other folders."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    tails = (folder.joinpath(*parts[k:]) for k in range(len(parts)))
    return next((path for path in tails if path.is_file() and path.stat().st_size), None)


def _unpacked(
    archive: Path, files: Sequence[str], progress: Callable[[str, float | None], None]
) -> tuple[Path, dict[str, bytes]]:
    """Return a folder with the files that the archive has, and the contents of those that could not
    be written there (on a full or read-only disk).

    A file that the archive lacks is kept as an empty one, so that it is not looked up again.
    """
    stat = archive.stat()
    stem = archive.name.partition(".tar")[0]
    folder = cache_folder() / "sources" / f"{stem}-{stat.st_size}-{stat.st_mtime_ns}"
    inside = (PurePosixPath(name) for name in files)
    plain = [str(p) for p in inside if not p.is_absolute() and ".." not in p.parts]
    missing = {name for name in plain if not (folder / name).exists()}
    unkept: dict[str, bytes] = {}
    if not missing:
        return folder, unkept
    work = f"unpacking {len(missing)} files of {archive.name}"
    progress(work, None)
    try:
        with tarfile.open(archive, "r|*") as unpacked:
            for member in unpacked:
                name = member.name.partition("/")[2]
                stream = unpacked.extractfile(member) if name in missing else None
                if stream is not None:
                    data = stream.read()
                    if not write_whole(folder / name, [data]):
                        unkept[name] = data
                    missing.discard(name)
                if not missing:
                    break
    except (OSError, tarfile.TarError, EOFError) as error:
        raise KinstError(f"{archive}: cannot be unpacked: {error}") from error
    for name in missing:
        write_whole(folder / name, [])
    progress(work, 1.0)
    return folder, unkept
