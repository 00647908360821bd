"""Running apt with lists, cache and status of kinst's own, and unpacking .deb files.

apt fetches from the mirrors that this machine's own sources name (sources.list(5), both formats).
Only entries for Debian itself are used, changed to the wanted Debian release.

Tested by tests/kernels/test_fetch.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError

_CHUNK = 1 << 20
_FAILED = re.compile(r"Failed to fetch \S+/dists/([^/\s]+)/")  # names a suite
_GONE = "404 Not Found"  # in apt's message about a file that the mirror does not have
_POLL = 0.1  # seconds between two checks of a running download
# A Debian release, by code name or by age, and its suite; suites of other vendors do not match.
_RELEASES = "buster|bullseye|bookworm|trixie|forky|duke|sid|(?:old)*stable|testing|unstable"
_SUITE = re.compile(rf"({_RELEASES})((?:[-/]updates|-security)?)/?")
_WITHOUT_UPDATES = ("sid", "unstable")  # these have no security suite either
# Fields that say what to fetch: kinst sets these itself, and leaves all other fields (keys, trust,
# dates) as they are.
_OWN_FIELDS = {"types", "uris", "suites", "components", "architectures", "languages", "enabled"}
_OPTION_FIELDS = {"arch": "architectures", "lang": "languages", "target": "targets"}


# Asks the user whether to download: called with a text that names the packages, and their bytes.
Confirm = Callable[[str, int], bool]


class NotThereError(KinstError):
    """Error: the mirror does not have a file that its package lists name."""


class PassingError(KinstError):
    """Error after which another try may succeed: a download broke off, or a package was damaged
    (kinst has deleted the package).
    """


@dataclass(frozen=True, slots=True)
class AptSource:
    """One entry of apt's sources.

    Attributes:
        uris: addresses of the mirrors.
        suites: names of the suites.
        components: names of the components.
        fields: all other fields, as written.
    """

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Package:
    """A downloaded .deb file."""

    name: str
    version: str
    file: Path


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A file that was unpacked from a package.

    Attributes:
        size: size in bytes.
        md5: MD5 sum in hexadecimal, equal to the package's own checksum of the file.
    """

    size: int
    md5: str


def parse_sources(text: str, deb822: bool) -> list[AptSource]:
    """Return the entries of one of apt's sources files that are enabled and for binary packages.

    Args:
        text: the file's text.
        deb822: True for the format of .sources files; False for the format of .list files, which
            have one entry in each line.
    """
    return _parse_stanzas(text) if deb822 else _parse_lines(text)


def _parse_lines(text: str) -> list[AptSource]:
    sources = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?([^#]*)", line)
        words = match[2].split() if match else []
        if not match or len(words) < 2:
            continue
        options = dict(option.partition("=")[::2] for option in (match[1] or "").split())
        fields = {_OPTION_FIELDS.get(k.lower(), k.lower()): v for k, v in options.items()}
        sources.append(AptSource((words[0],), (words[1],), tuple(words[2:]), _others(fields)))
    return sources


def _parse_stanzas(text: str) -> list[AptSource]:
    sources = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():  # continues the line before (an inline key, for example)
                fields[name] = f"{fields.get(name, '')}\n{line}"
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off")
        if enabled and "deb" in fields.get("types", "").split():
            uris, suites, components = (
                tuple(fields.get(name, "").split()) for name in ("uris", "suites", "components")
            )
            sources.append(AptSource(uris, suites, components, _others(fields)))
    return sources


def _others(fields: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in fields.items() if k and k not in _OWN_FIELDS and k != "targets"}


def narrow(sources: Sequence[AptSource], suite: str) -> str:
    """Return the text of a sources file, in deb822 format, for one Debian release. It has the
    entries for Debian's main component, with the release replaced. Return "" if there is no such
    entry.

    Args:
        sources: all entries.
        suite: code name of the Debian release; CODENAME-backports to add the release's backports.
    """
    release, _, backports = suite.partition("-")
    stanzas = []
    for source in sources:
        matches = [_SUITE.fullmatch(name) for name in source.suites]
        # buster and before had security at SUITE/updates; now it is SUITE-security.
        endings = [m[2].replace("/updates", "-security") for m in matches if m]
        if release in _WITHOUT_UPDATES:
            endings = [ending for ending in endings if not ending]
        elif backports and "" in endings:
            endings.append(f"-{backports}")
        suites = [release + ending for ending in endings]
        if not suites or "main" not in source.components:
            continue
        lines = [
            "Types: deb",
            f"URIs: {' '.join(source.uris)}",
            f"Suites: {' '.join(dict.fromkeys(suites))}",
            "Components: main",
            *(f"{name.title()}: {value}" for name, value in source.fields.items()),
        ]
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(dict.fromkeys(stanzas))


def _without(sources: str, suites: Collection[str]) -> str:
    """Remove some suites from the text of a sources file that narrow() has made. Return the new
    text; "" if it would be empty, or the same as before."""
    kept = []
    for stanza in sources.split("\n\n"):
        (named,) = re.findall(r"^Suites: (.*)$", stanza, re.M)
        remaining = [suite for suite in named.split() if suite not in suites]
        if remaining:
            kept.append(stanza.replace(f"Suites: {named}", f"Suites: {' '.join(remaining)}"))
    found = "\n\n".join(kept)
    return found if found != sources else ""


class Apt:
    """Runner of apt-get for one Debian release and one architecture. All of apt's state is in a
    folder of kinst's own."""

    def __init__(self, folder: Path, suite: str, architecture: str) -> None:
        """Write apt's configuration.

        Args:
            folder: folder for lists, cache and state.
            suite: the Debian release, as for narrow().
            architecture: Debian's name of the architecture.

        Raises:
            KinstError: this machine has no apt, or its sources name no Debian mirror.
        """
        for tool in ("apt-get", "apt-cache", "apt-config", "dpkg-deb"):
            if not shutil.which(tool):
                raise KinstError(
                    f"{tool} is missing: kinst fetches Debian's kernel packages with it",
                    "without it, boot your own: --kernel, --debug and --initrd",
                )
        self._suite = suite
        sources = narrow(_machine_sources(), suite)
        if not sources:
            raise KinstError(
                f"apt's sources on this machine name no Debian mirror to fetch {suite} from",
                "without one, boot your own kernel: --kernel, --debug and --initrd",
            )
        for part in ("lists/partial", "cache/archives/partial", "state"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        # apt recognises the format by the file's suffix.
        self._sources = folder / "kinst.sources"
        self._sources.write_text(sources)
        self._options = [
            f"-oAPT::Architecture={architecture}",
            f"-oAPT::Architectures={architecture}",
            f"-oDir::Etc::SourceList={self._sources}",
            "-oDir::Etc::SourceParts=/dev/null",
            "-oDir::Etc::Preferences=/dev/null",
            "-oDir::Etc::PreferencesParts=/dev/null",
            f"-oDir::State={folder}/state",
            f"-oDir::State::Lists={folder}/lists",
            "-oDir::State::status=/dev/null",
            f"-oDir::Cache={folder}/cache",
            f"-oDir::Log={folder}",
            "-oAcquire::Languages=none",
            # Root's apt fetches as another user, which cannot enter root's home.
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Retries=3",
            "-q",
        ]

    def update(self, progress: Callable[[str, float | None], None]) -> str:
        """Fetch the package lists. Return apt's complaint, or "" if it has none.

        A complaint need not be an error: if one of several mirrors fails, the lists of the other
        mirrors may have all wanted packages. If a suite fails, for example while Debian is
        publishing it, apt may keep no list at all. Then kinst fetches the lists again without that
        suite.
        """
        started = time.monotonic()

        def tell() -> None:
            seconds = time.monotonic() - started
            progress(f"reading the package lists of Debian {self._suite} ({seconds:.0f} s)", None)

        # Without a network apt only warns, and ends with status 0: old lists may suffice.
        status, complaint = again, said = self._run(["apt-get", "update"], None, tell)
        while again and not self.names(""):
            narrowed = _without(self._sources.read_text(), _FAILED.findall(said))
            if not narrowed:
                break
            self._sources.write_text(narrowed)
            again, said = self._run(["apt-get", "update"], None, tell)
        return complaint or (f"apt-get update failed with status {status}" if status else "")

    def names(self, prefix: str) -> set[str]:
        """Return the names of all packages that begin with a prefix."""
        command = ["apt-cache", *self._options, "pkgnames", prefix]
        done = subprocess.run(command, capture_output=True, text=True, env=_plain_env())
        return set(done.stdout.split())

    def dependencies(self, name: str) -> set[str]:
        """Return the names of the packages on which a package depends directly."""
        command = ["apt-cache", *self._options, "depends", "--important", name]
        done = subprocess.run(command, capture_output=True, text=True, env=_plain_env())
        return set(re.findall(r"^ +\|?(?:Pre)?Depends: ([^<\s]+)", done.stdout, re.M))

    def download(
        self,
        names: Sequence[str],
        folder: Path,
        progress: Callable[[str, float | None], None],
        confirm: Confirm | None = None,
    ) -> list[Package]:
        """Download packages into a folder, and return them in the order of `names`. Files that are
        complete already are not downloaded again. apt checks the files by the signed lists.

        Args:
            names: names of the packages.
            folder: folder for the files.
            progress: called with the name of a piece of work, and the fraction of it that is done
                (0 to 1, None if not known).
            confirm: asks the user before anything is downloaded; None to download without asking.

        Raises:
            PassingError: the download failed; the message has apt's words.
            NotThereError: the mirror does not have a package that its lists name.
            KinstError: the user said no, or apt knows no such package.
        """
        folder.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", *self._options, "--print-uris", "download", *names]
        listed = subprocess.run(command, capture_output=True, text=True, env=_plain_env())
        # apt prints 'URI' file size checksum in a line for each package (apt-get(8), --print-uris).
        rows = [line.split() for line in listed.stdout.splitlines() if line.startswith("'")]
        sizes = {folder / row[1]: int(row[2]) for row in rows}
        if len(sizes) != len(names):
            raise KinstError(f"apt cannot download {' '.join(names)}", _complaint(listed.stderr))
        total = sum(sizes.values())
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        missing = sum(
            size for file, size in sizes.items() if not file.exists() or file.stat().st_size != size
        )
        if missing and confirm is not None and not confirm(f"{names[0]}{more}", missing):
            raise KinstError(
                f"{names[0]} is not downloaded: the answer was no",
                "--yes downloads without asking; --kernel FILE and --debug FILE boot your own",
            )

        def tell() -> None:
            done = sum(file.stat().st_size for file in sizes if file.exists())
            amount = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
            progress(f"downloading {amount}: {names[0]}{more}", done / total)

        status, complaint = self._run(["apt-get", "download", *names], folder, tell)
        if status or any(not f.exists() or f.stat().st_size != n for f, n in sizes.items()):
            raise (NotThereError if _GONE in complaint else PassingError)(
                f"the download of {names[0]} failed: {complaint or f'apt-get status {status}'}",
                "run the command again when the network is there: the download then goes on",
            )
        packages = [Package(*_name_version(file), file) for file in sizes]
        return sorted(packages, key=lambda package: names.index(package.name))

    def _run(
        self, command: Sequence[str], folder: Path | None, tell: Callable[[], None]
    ) -> tuple[int, str]:
        """Run an apt command until it ends, and return its exit status and its complaint ("" if it
        has none).

        Args:
            command: the command without kinst's options.
            folder: the working directory; None for the present one.
            tell: called every 0.1 s while the command runs.
        """
        full = [command[0], *self._options, *command[1:]]
        with subprocess.Popen(
            full, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=_plain_env(), stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                while True:
                    tell()
                    try:
                        _, errors = process.communicate(timeout=_POLL)
                        break
                    except subprocess.TimeoutExpired:
                        continue
            except BaseException:
                process.kill()
                raise
        tell()
        return process.returncode, _complaint(errors)


def _plain_env() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _complaint(errors: str) -> str:
    """Return apt's first error message; if it has none, apt's first warning; "" if it has neither.
    The message is without the "E:" or "W:" at its start."""
    lines = sorted(line for line in errors.splitlines() if line.startswith(("E:", "W:")))
    return " ".join(lines[0].split()[1:]) if lines else ""


def _name_version(file: Path) -> tuple[str, str]:
    name, version, _ = file.name.split("_")
    return name, unquote(version)


def _machine_sources() -> list[AptSource]:
    """Return all entries of the machine's own apt sources. Files that cannot be read count as
    empty."""
    command = ["apt-config", "shell"]
    command += ["LIST", "Dir::Etc::SourceList/f", "PARTS", "Dir::Etc::SourceParts/d"]
    done = subprocess.run(command, capture_output=True, text=True, env=_plain_env())
    places = dict(word.partition("=")[::2] for word in shlex.split(done.stdout))
    main = Path(places.get("LIST", "/etc/apt/sources.list"))
    parts = Path(places.get("PARTS", "/etc/apt/sources.list.d"))
    sources = []
    for file in [main, *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]:
        try:
            sources += parse_sources(file.read_text(), file.suffix == ".sources")
        except (OSError, UnicodeDecodeError):
            continue
    return sources


def unpack(
    package: Package,
    parts: Collection[str],
    tree: Path,
    progress: Callable[[str, float | None], None],
    *,
    stop_at_first: bool = False,
) -> dict[str, Unpacked]:
    """Unpack files of a package into the folder `tree`, and check them by the package's md5sums
    (deb-md5sums(5)). Return the unpacked files by path. Links are left out.

    Args:
        package: a downloaded package.
        parts: paths to unpack, without the leading slash; a path that ends in a slash means all
            files below it.
        tree: the folder to unpack into.
        progress: called with the name of a piece of work, and the fraction of it that is done (0 to
            1, None if not known).
        stop_at_first: whether to end after one file, without reading the rest of the package.

    Raises:
        PassingError: a file differs from its checksum, or the package cannot be read.
    """
    sums = _md5sums(package)
    folders = tuple(part for part in parts if part.endswith("/"))
    done: dict[str, Unpacked] = {}
    command = ["dpkg-deb", "--fsys-tarfile", str(package.file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=_plain_env()
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|", bufsize=_CHUNK) as archive:
                for member in archive:
                    path = member.name.removeprefix("./")
                    if not member.isfile() or (path not in parts and not path.startswith(folders)):
                        continue
                    content = archive.extractfile(member)
                    assert content is not None
                    done[path] = _copy(content, member, package, tree / path, progress)
                    if done[path].md5 != sums.get(path):
                        package.file.unlink(missing_ok=True)
                        raise PassingError(
                            f"{path} of {package.name} differs from its checksum",
                            "run the command again: it downloads the package anew",
                        )
                    if stop_at_first:
                        process.kill()
                        break
        except (tarfile.TarError, EOFError) as error:
            process.kill()
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            package.file.unlink(missing_ok=True)
            raise PassingError(
                f"{package.file.name} cannot be unpacked: {said[0] if said else error}",
                "run the command again: it downloads the package anew",
            ) from error
        except BaseException:
            process.kill()
            raise
    return done


def _md5sums(package: Package) -> dict[str, str]:
    command = ["dpkg-deb", "--info", str(package.file), "md5sums"]
    done = subprocess.run(command, capture_output=True, text=True, env=_plain_env())
    rows = (line.split(None, 1) for line in done.stdout.splitlines())
    return {path: checksum for checksum, path in rows}


def _copy(
    content: IO[bytes],
    member: tarfile.TarInfo,
    package: Package,
    to: Path,
    progress: Callable[[str, float | None], None],
) -> Unpacked:
    to.parent.mkdir(parents=True, exist_ok=True)
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    with to.open("wb") as file:
        while chunk := content.read(_CHUNK):
            file.write(chunk)
            md5.update(chunk)
            size += len(chunk)
            done = f"{size / 1e6:.0f} of {member.size / 1e6:.0f} MB"
            if member.size > _CHUNK:
                progress(f"unpacking {to.name} {done}", size / member.size)
            else:
                progress(f"unpacking {package.name}", None)
    to.chmod(member.mode & 0o755)
    return Unpacked(size, md5.hexdigest())
