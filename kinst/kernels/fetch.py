"""Fetching of Debian's kernels with their debug files, and of a static busybox, into the user's
cache.

apt fetches the packages, so mirrors, proxies and keys are those of the machine; but apt uses lists,
a cache and a status file of kinst's own. So the system's apt need not be up to date and is not
changed, no root is needed, and kinst can also fetch for another architecture or release
(apt.conf(5), apt-get(8)). In the cache folder:

    kernels/amd64/6.1.0-NN-cloud-amd64/    boot/, lib/modules/, bin/busybox, ..., manifest.json
    busybox/amd64/                         bin/busybox alone, for a kernel of the user's own
    fetching/amd64/                        work in progress; a later run continues it
    fetching/amd64.lock                    locked by the process that fetches
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.kernel_package import KernelPackage
from kinst.core.paths import cache_folder
from kinst.isa import names
from kinst.kernels import releases
from kinst.kernels.apt import Apt, Confirm, NotThereError, Package, PassingError, unpack
from kinst.kernels.releases import Release, Wanted

# Reports progress: called with the name of a piece of work, and the fraction of it that is done (0
# to 1, None if not known).
Progress = Callable[[str, float | None], None]

_BUSYBOX = "busybox-static"
_BUSYBOX_DISK_SPACE = 120_000_000  # bytes of disk for busybox, the package lists and apt's caches
_DISK_SPACE = 2_600_000_000  # bytes of disk for an unusual kernel: a debug package may have 1.1 GB
# Parts of Linux 7's packages linux-PART-RELEASE; its linux-image-RELEASE is empty.
_PARTS = ("base", "binary", "modules")
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files of one fetched kernel. All of them exist.

    Attributes:
        kernel: the bootable image.
        debug: vmlinux with symbols and DWARF.
        busybox: a static busybox for the kernel's ISA.
        config: the kernel's .config.
        modules: folder lib/modules/RELEASE.
        release: the release as uname -r prints it in the guest.
    """

    kernel: Path
    debug: Path
    busybox: Path
    config: Path
    modules: Path
    release: str


def prepared(isa: str, asked: str = "") -> Prepared | None:
    """Return the newest kernel in the cache that fits a request and is complete; None if there is
    none. This uses no network.

    Args:
        isa: name of the ISA.
        asked: which kernel, as a user writes it (releases.py): a version (6.12), a version and a
            flavour (6.1-generic), or a whole release; "" for kinst's usual kernel.

    Raises:
        KinstError: the ISA is unknown.
    """
    wanted = _wanted(isa, asked)
    there = (releases.parse(folder.name) for folder in _kernels_of(isa).glob("*"))
    fitting = [release for release in there if release and wanted.fits(release)]
    while (newest := releases.newest(fitting)) is not None:
        if _is_whole(_kernels_of(isa) / newest.name):
            return _paths(_kernels_of(isa) / newest.name)
        fitting.remove(newest)
    return None


def prepare(
    isa: str,
    progress: Progress,
    asked: str = "",
    *,
    refresh: bool = False,
    confirm: Confirm | None = None,
) -> Prepared:
    """Return the kernel to boot for an ISA, and fetch it if it is not in the cache.

    The usual kernels are, on amd64, 310 MB to download and 670 MB in the cache; on arm64, 284 and
    360 MB; on riscv64, 1,139 and 430 MB.

    Args:
        isa: name of the ISA.
        progress: called often with the name of a piece of work, and the fraction of it that is done
            (0 to 1, None if not known); not called if there is nothing to do.
        asked: which kernel, as a user writes it (releases.py): a version (6.12), a version and a
            flavour (6.1-generic), or a whole release; "" for kinst's usual kernel.
        refresh: whether to look for a newer kernel than the cache has.
        confirm: asks the user before anything is downloaded; None to download without asking.

    Raises:
        KinstError: unknown ISA, no apt, no mirror, no network, no such kernel, disk full, a broken
            package, or the user said no.
    """
    cached = prepared(isa, asked)
    if cached and not refresh:
        return cached
    wanted = _wanted(isa, asked)
    with _working(f"{isa}-{wanted.text}" if asked else isa, progress) as work:
        # Another kinst may have fetched it while this one waited for the lock.
        cached = prepared(isa, asked)
        if cached and not refresh:
            return cached
        release = _fetch(isa, wanted, work, progress, confirm)
    return _paths(_kernels_of(isa) / release)


@dataclass(frozen=True, slots=True)
class Offered:
    """A kernel release that a user can ask for.

    Attributes:
        release: the release.
        suite: the Debian release that has the kernel; "" if only the cache has it.
        is_cached: whether the kernel is in the cache.
    """

    release: Release
    suite: str
    is_cached: bool


def offered(isa: str, progress: Progress) -> list[Offered]:
    """Return the kernels that a user can ask for, sorted by series and flavour. Of the kernels in
    Debian's releases, only the newest of each series and flavour is returned; of those in the
    cache, all are. Raises KinstError as prepare() does."""
    usual = _usual(isa)
    cached = {folder.name for folder in _kernels_of(isa).glob("*") if _is_whole(folder)}
    offers: dict[str, Offered] = {}
    with _working(f"{isa}-list", progress, "read") as work:
        for suite in releases.SUITES:
            apt = Apt(work / suite, suite, usual.architecture)
            apt.update(progress)
            for release in _kernels(apt, usual.architecture):
                best = offers.get(release.short)
                if best is None or release.version > best.release.version:
                    offers[release.short] = Offered(release, suite, release.name in cached)
    listed = {offer.release.name for offer in offers.values()}
    others = filter(None, (releases.parse(name) for name in cached - listed))
    rows = [*offers.values(), *(Offered(release, "", True) for release in others)]
    return sorted(rows, key=lambda offer: (offer.release.series, offer.release.flavour))


def busybox(isa: str, progress: Progress) -> Path:
    """Return the path of a static busybox for an ISA, and fetch it if it is not in the cache (1 MB,
    and 9 MB of package lists).

    If a kernel is in the cache, the busybox of that kernel is used.

    Raises:
        KinstError: as prepare() does.
    """
    usual = _usual(isa)
    if found := _busybox_of(isa):
        return found
    with _working(f"{isa}-busybox", progress) as work:
        if found := _busybox_of(isa):
            return found
        _check_disk_space(work, _BUSYBOX_DISK_SPACE)
        (suite,) = _wanted(isa, "").suites
        apt = Apt(work / "apt", suite, usual.architecture)
        trouble = apt.update(progress)
        if _BUSYBOX not in apt.names(_BUSYBOX):
            raise KinstError(
                f"no {_BUSYBOX} for {usual.architecture} of Debian {suite} found by apt",
                trouble or "--initrd boots a file system of your own",
            )
        (package,) = apt.download([_BUSYBOX], work / "packages", progress)
        tree = work / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        _unpack(package, "", tree, progress)
        if not (tree / "bin/busybox").exists():
            raise KinstError(f"Debian's {package.name} {package.version} has no busybox in it")
        cached = cache_folder() / "busybox" / isa
        cached.parent.mkdir(parents=True, exist_ok=True)
        os.sync()
        os.rename(tree, cached)
    return cached / "bin/busybox"


def _busybox_of(isa: str) -> Path | None:
    """Return the path of a busybox for an ISA in the cache. It may have been fetched with a kernel,
    or alone. None if the cache has none."""
    ready = prepared(isa)
    alone = cache_folder() / "busybox" / isa / "bin/busybox"
    return ready.busybox if ready else alone if alone.exists() else None


@contextmanager
def _working(name: str, progress: Progress, done: str = "fetched") -> Iterator[Path]:
    """Context manager that locks a working folder, and gives the folder's path. If the work
    succeeds, the folder is deleted at the end; if not, it stays as it is for the next run. Raises
    KinstError if the folder cannot be written.

    Args:
        name: name of the folder.
        done: what to report when the work is done.
    """
    work = cache_folder() / "fetching" / name
    try:
        work.mkdir(parents=True, exist_ok=True)
        with alone(work.with_name(f"{name}.lock"), progress):
            # The process that held the lock before may have deleted it.
            work.mkdir(exist_ok=True)
            yield work
            shutil.rmtree(work)
        progress(done, 1.0)
    except OSError as error:
        raise KinstError(
            f"cannot write {error.filename or work}: {error.strerror}",
            "XDG_CACHE_HOME chooses another folder",
        ) from error


def apt_with(isa: str, release: str, work: Path, progress: Progress) -> Apt:
    """Return an apt of kinst's own whose package lists have this kernel release. Raises KinstError
    if no list has the release any more."""
    apt, _ = _find(_usual(isa), _wanted(isa, release), work, progress)
    return apt


def _usual(isa: str) -> KernelPackage:
    """Return the Debian kernel package that kinst usually boots on an ISA (kinst.isa.NAME.debian).
    Raises KinstError for an ISA without that module."""
    if isa in names() and find_spec(f"kinst.isa.{isa}.debian"):
        package: KernelPackage = import_module(f"kinst.isa.{isa}.debian").KERNEL
        return package
    known = [name for name in names() if find_spec(f"kinst.isa.{name}.debian")]
    raise KinstError(f"kinst knows no kernel package for {isa}", f"it does for {', '.join(known)}")


def _wanted(isa: str, asked: str) -> Wanted:
    """Parse the text by which a user asks for a kernel. Raises KinstError for an unknown ISA.

    Args:
        isa: name of the ISA.
        asked: which kernel, as a user writes it (releases.py): a version (6.12), a version and a
            flavour (6.1-generic), or a whole release; "" for kinst's usual kernel.
    """
    usual = _usual(isa)
    if asked:
        return releases.asked(asked, usual.flavour)
    return Wanted("", usual.series, usual.flavour)


def _kernels_of(isa: str) -> Path:
    return cache_folder() / "kernels" / isa


def _paths(folder: Path) -> Prepared:
    release = folder.name
    return Prepared(
        kernel=folder / f"boot/vmlinuz-{release}",
        debug=folder / f"usr/lib/debug/boot/vmlinux-{release}",
        busybox=folder / "bin/busybox",
        config=folder / f"boot/config-{release}",
        modules=folder / f"lib/modules/{release}",
        release=release,
    )


def _is_whole(folder: Path) -> bool:
    """Return whether a kernel's folder in the cache is complete: its most important files exist,
    with the sizes that the manifest says."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text())["files"]
        paths = _paths(folder)
        checked = (paths.kernel, paths.debug, paths.busybox, paths.config)
        return paths.modules.is_dir() and all(
            file.stat().st_size == sizes[str(file.relative_to(folder))]["size"] for file in checked
        )
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Context manager that holds a lock file, and waits if another kinst holds it. The operating
    system releases the lock even if this process is killed."""
    with lock.open("w") as file:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                progress(f"another kinst is fetching; waiting for it ({waited:.0f} s)", None)
                time.sleep(0.2)
        yield


def _fetch(
    isa: str, wanted: Wanted, work: Path, progress: Progress, confirm: Confirm | None
) -> str:
    """Download and unpack a kernel that fits a request, check it, and move it into the cache.
    Return the kernel's release.

    Args:
        wanted: which releases fit.
        work: the working folder.
    """
    usual = _usual(isa)
    _check_disk_space(work, max(usual.disk_space, _DISK_SPACE if wanted.text else 0))
    apt, candidates = _find(usual, wanted, work, progress)
    cached = [name for name in candidates if _is_whole(_kernels_of(isa) / name)]
    if candidates[0] in cached:
        return candidates[0]
    # kinst's init is written for the busybox of the usual kernel's Debian; an older busybox lacks
    # what it needs.
    box = busybox(isa, progress) if wanted.text else None
    others = () if box else (_BUSYBOX,)
    release, packages = _download(apt, candidates, others, work, progress, confirm)
    if release in cached:
        return release
    place = _kernels_of(isa) / release
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    files: dict[str, dict[str, object]] = {}
    for package in packages:
        files |= _unpack(package, release, tree, progress)
    if box:
        (tree / "bin").mkdir(exist_ok=True)
        shutil.copy(box, tree / "bin/busybox")
        files["bin/busybox"] = {"size": box.stat().st_size}
    _check_all_there(tree, release)
    manifest = {"packages": {p.name: p.version for p in packages}, "files": files}
    (tree / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    # If the folder exists, its copy of the kernel is broken: a complete copy was returned above.
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.sync()
    os.rename(tree, place)
    return release


def _download(
    apt: Apt,
    kernels: Sequence[str],
    others: Sequence[str],
    work: Path,
    progress: Progress,
    confirm: Confirm | None,
) -> tuple[str, list[Package]]:
    """Download the packages of the first release whose files the mirror has. Return that release
    and all downloaded packages.

    Mirrors lose files of old Debian releases before their lists show it.

    Args:
        kernels: kernel releases that fit, in the order to try them.
        others: names of further packages to download.
        work: the working folder.
    """
    for release in kernels:
        image = f"linux-image-{release}"
        try:
            parts = [f"linux-{part}-{release}" for part in _PARTS]
            parts = sorted(apt.names("linux-").intersection(parts))
            names = [image, *parts, f"{image}-dbg", *others]
            return release, apt.download(names, work / "packages", progress, confirm)
        except NotThereError as error:
            gone = error
    raise gone


def _check_disk_space(work: Path, size: int) -> None:
    """Raise KinstError if the disk has not enough room for files of `size` bytes in all. Files that
    are already in `work` are some of these files."""
    free = shutil.disk_usage(work).free
    need = size - sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    if free < need:
        raise KinstError(
            f"{work} has {free / 1e6:.0f} MB free; {need / 1e6:.0f} MB are needed",
            "XDG_CACHE_HOME chooses another folder",
        )


def _find(
    usual: KernelPackage, wanted: Wanted, work: Path, progress: Progress
) -> tuple[Apt, list[str]]:
    """Search Debian's package lists for kernel releases that fit a request. Return the apt of the
    first Debian release that has some, and the kernel releases, newest first.

    Raises KinstError if no Debian release has one.

    Args:
        usual: the kernel package that kinst usually boots on the ISA.
        wanted: which releases fit.
        work: the working folder.
    """
    trouble = ""
    others: set[str] = set()
    for suite in wanted.suites:
        apt = Apt(work / f"apt-{suite}", suite, usual.architecture)
        trouble = apt.update(progress) or trouble
        kernels = _kernels(apt, usual.architecture)
        if found := sorted(filter(wanted.fits, kernels), key=lambda fitting: fitting.version):
            return apt, [release.name for release in reversed(found)]
        others |= {release.short for release in kernels}
    alternatives = (
        f"there are {', '.join(sorted(others))}; --kernel list shows all" if others else ""
    )
    asked = f"kernel {wanted.text}" if wanted.text else "kernel package"
    raise (PassingError if trouble and not others else KinstError)(
        f"no {asked} for {usual.architecture} of Debian {' or '.join(wanted.suites)} found by apt",
        alternatives or trouble or "--kernel, --debug and --initrd boot your own",
    )


def _kernels(apt: Apt, architecture: str) -> list[Release]:
    """Return all kernel releases that this apt offers. Those without a debug package are left out:
    Debian may publish a kernel some hours before its debug package."""
    start = "linux-image-"
    packages = apt.names(start)
    found = (releases.parse(n.removeprefix(start)) for n in packages if f"{n}-dbg" in packages)
    return [
        release for release in found if release is not None and release.architecture == architecture
    ]


def _cache_paths(release: str) -> dict[str, str]:
    """Return which files of Debian's packages kinst needs for a kernel release: path of the file in
    a package -> path in the cache.

    A path that ends in a slash stands for all files of that folder. If a file of a package matches
    several paths, the first of them counts.
    """
    kernel, modules = f"boot/vmlinuz-{release}", f"lib/modules/{release}/"
    config, debug = f"boot/config-{release}", f"usr/lib/debug/boot/vmlinux-{release}"
    return {
        # Debian 11 and 12.
        kernel: kernel,
        config: config,
        modules: modules,
        debug: debug,
        "bin/busybox": "bin/busybox",
        # Debian 13 has all files below usr.  An image that is not compressed is called vmlinux.
        f"boot/vmlinux-{release}": kernel,
        "usr/bin/busybox": "bin/busybox",
        # Debian 14.
        f"usr/{modules}vmlinuz": kernel,
        f"usr/{modules}vmlinux": kernel,
        f"usr/{modules}config": config,
        f"usr/lib/debug/{modules}vmlinux": debug,
        f"usr/{modules}": modules,
    }


def _unpack(
    package: Package, release: str, tree: Path, progress: Progress
) -> dict[str, dict[str, object]]:
    """Unpack the files that kinst needs (_cache_paths()) from a package. Their paths in the folder
    `tree` are those that they will have in the cache. Return what the manifest says of each file,
    by path: size and checksum."""
    cache_paths = _cache_paths(release)
    # Only one file of a debug package is needed: stop after it.
    only_one = package.name == _BUSYBOX or package.name.endswith("-dbg")
    files: dict[str, dict[str, object]] = {}
    for path, file in unpack(package, cache_paths, tree, progress, stop_at_first=only_one).items():
        start = next(package_path for package_path in cache_paths if path.startswith(package_path))
        name = cache_paths[start] + path.removeprefix(start)
        if name != path:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).rename(tree / name)
        files[name] = {"size": file.size, "md5": file.md5}
    return files


def _check_all_there(tree: Path, release: str) -> None:
    paths = _paths(tree.with_name(release))
    for file in (paths.kernel, paths.debug, paths.busybox, paths.config, paths.modules):
        name = file.relative_to(tree.with_name(release))
        if not (tree / name).exists():
            raise KinstError(
                f"Debian's packages of {release} have no /{name}",
                "--kernel, --debug and --initrd boot your own",
            )
