"""Source text of a kernel, from a folder or from the archive in Debian's linux-source package. From
an archive, only the files that are needed are unpacked, into the cache."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.core.whole_files import write_whole

PACKAGED = Path("/usr/src")  # where linux-source-X.Y is installed


def find_source(chosen: str, release: str, packaged: Path = PACKAGED) -> Path | None:
    """Return the folder or archive with a kernel's source text: what the user gave with --source
    or, without it, the installed linux-source package. Return None if there is neither.

    Args:
        chosen: the value of --source, or "".
        release: the kernel's release.
        packaged: folder in which linux-source packages are installed.

    Raises:
        KinstError: the path that the user gave does not exist.
    """
    if chosen:
        if not Path(chosen).exists():
            raise KinstError(f"--source {chosen}: no such folder or archive")
        return Path(chosen)
    name = package_of(release)
    for candidate in (packaged / name, packaged / f"{name}.tar.xz"):
        if name and candidate.exists():
            return candidate
    return None


def package_of(release: str) -> str:
    """Return the name of Debian's package with the source text of a release such as
    6.1.0-25-cloud-amd64, or "" if the release has no version in it."""
    version = re.match(r"\d+\.\d+", release)
    return f"linux-source-{version[0]}" if version else ""


def read_sources(
    source: Path, files: Iterable[str], progress: Callable[[str, float | None], None]
) -> dict[str, Sequence[str]]:
    """Read source files of a kernel, and return the lines of each file by its name. Files that do
    not exist are left out.

    Args:
        source: the folder or archive with the source text.
        files: names of files, as debug information has them.
        progress: called while an archive is unpacked.

    Raises:
        KinstError: the archive cannot be read.
    """
    names = list(dict.fromkeys(files))
    folder, unpacked = (source, {}) if source.is_dir() else _unpacked(source, names, progress)
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


def paths_within(source: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the path of each source file in the folder `source`, relative to the folder, by the
    name in `files`. Files that do not exist are left out. Return {} if `source` is an archive.

    Args:
        source: the folder or archive with the source text.
        files: names of files, as debug information has them.
    """
    found = {name: _within(source, name) for name in files} if source.is_dir() else {}
    return {name: str(path.relative_to(source)) for name, path in found.items() if path is not None}


def _within(folder: Path, name: str) -> Path | None:
    """Return the path of a source file in a folder; None if it is not there. The name in debug
    information may begin with folders of the machine that built the kernel. So kinst also tries the
    name without its first folders."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    tails = (folder.joinpath(*parts[k:]) for k in range(len(parts)))
    return next((path for path in tails if path.is_file() and path.stat().st_size), None)


def _unpacked(
    archive: Path, files: Sequence[str], progress: Callable[[str, float | None], None]
) -> tuple[Path, dict[str, bytes]]:
    """Unpack files of an archive of sources into a folder of the cache. Return that folder, and the
    contents of those files that could not be written there, by name: the disk is full or read-only.

    A file that the archive lacks is written as an empty file, so that it is not searched again.
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
