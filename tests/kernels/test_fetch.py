"""Fetching the kernel: real .deb files, made here, from an apt-get made here (fake_apt.py)."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kinst.cli.options import parse
from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.kernels.apt import narrow, parse_sources
from kinst.kernels.fetch import Prepared, busybox, offered, prepare, prepared
from kinst.session.request_machine import find_files
from tests.kernels.fake_apt import Machine, installed

ONE_LINE = """\
# deb http://commented.test/debian bookworm main
deb http://a.test/debian bookworm main contrib # and a remark
deb [arch=amd64 signed-by=/k.gpg check-valid-until=no] http://b.test/sec bookworm-security main
deb-src http://a.test/debian bookworm main
deb http://vendor.test/linux bookworm stable
deb http://vendor.test/sdk sdk-bookworm main
deb http://a.test/debian bookworm-backports main
"""

STANZAS = """\
Types: deb deb-src
# a remark inside
URIs: http://a.test/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main non-free
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://off.test/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://sources.test/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://b.test/sec
Suites: stable-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBFit
 -----END PGP PUBLIC KEY BLOCK-----
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return installed(tmp_path, monkeypatch, ONE_LINE)


def quiet(what: str, part: float | None) -> None:
    assert what
    assert part is None or 0 <= part <= 1


def files_below(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


# Sources.


def test_one_line_sources() -> None:
    sources = parse_sources(ONE_LINE, deb822=False)
    assert [s.uris[0] for s in sources] == [
        "http://a.test/debian",
        "http://b.test/sec",
        "http://vendor.test/linux",
        "http://vendor.test/sdk",
        "http://a.test/debian",
    ]
    assert sources[0].components == ("main", "contrib")
    assert sources[1].fields == {"signed-by": "/k.gpg", "check-valid-until": "no"}


def test_stanza_sources() -> None:
    first, second = parse_sources(STANZAS, deb822=True)
    assert first.suites == ("bookworm", "bookworm-updates", "bookworm-backports")
    assert first.fields == {"signed-by": "/usr/share/keyrings/debian.gpg"}
    assert second.uris == ("http://b.test/sec",)
    assert second.fields["signed-by"].splitlines()[-2:] == [
        " mQINBFit",
        " -----END PGP PUBLIC KEY BLOCK-----",
    ]


def test_narrowed_to_debian_and_its_release() -> None:
    text = narrow(parse_sources(ONE_LINE, deb822=False), "bookworm")
    assert "vendor" not in text and "backports" not in text and "contrib" not in text
    again = parse_sources(text, deb822=True)
    assert [(s.uris, s.suites) for s in again] == [
        (("http://a.test/debian",), ("bookworm",)),
        (("http://b.test/sec",), ("bookworm-security",)),
    ]
    assert again[1].fields == {"signed-by": "/k.gpg", "check-valid-until": "no"}


def test_other_release_of_the_same_mirrors() -> None:
    text = narrow(parse_sources(STANZAS, deb822=True), "trixie")
    again = parse_sources(text, deb822=True)
    assert [s.suites for s in again] == [("trixie", "trixie-updates"), ("trixie-security",)]
    assert again[1].fields == parse_sources(STANZAS, deb822=True)[1].fields


def test_backports_come_with_their_release() -> None:
    """The release has the busybox; a suite that is not released has no updates of its own."""
    stanzas = parse_sources(STANZAS, deb822=True)
    again = parse_sources(narrow(stanzas, "trixie-backports"), deb822=True)
    assert [s.suites for s in again] == [
        ("trixie", "trixie-updates", "trixie-backports"), ("trixie-security",),
    ]  # fmt: skip
    again = parse_sources(narrow(stanzas, "sid"), deb822=True)
    assert [s.suites for s in again] == [("sid",)]


def test_no_debian_in_sources() -> None:
    vendors = [s for s in parse_sources(ONE_LINE, deb822=False) if "vendor" in s.uris[0]]
    assert narrow(vendors, "bookworm") == ""


# Preparing.


def test_newest_kernel_with_a_debug_package(machine: Machine) -> None:
    machine.add_kernel(9)
    newest = machine.add_kernel(10)
    machine.add_kernel(11, debug=False)
    machine.add("linux-image-6.1.0-99-rt-amd64", {"boot/x": b"another flavour"})
    found = prepare("amd64", quiet)
    assert found.release == newest == "6.1.0-10-cloud-amd64"
    assert found.kernel.read_bytes() == b"kernel 10"
    assert found.debug.read_bytes()[:9] == b"debug 10 "
    assert found.busybox.read_bytes() == b"a static busybox"
    assert found.config.read_text() == "CONFIG_SMP=y\n"
    assert (found.modules / "kernel/fs/x.ko").read_bytes() == b"module"


def test_only_what_is_needed_is_kept(machine: Machine) -> None:
    release = machine.add_kernel(7)
    prepare("amd64", quiet)
    folder = cache_folder() / "kernels/amd64" / release
    assert files_below(folder) == {
        "bin/busybox",
        f"boot/config-{release}",
        f"boot/vmlinuz-{release}",
        f"lib/modules/{release}/kernel/fs/x.ko",
        f"usr/lib/debug/boot/vmlinux-{release}",
        "manifest.json",
    }
    # Writable by its owner only, even if the package says otherwise.
    assert (folder / "bin/busybox").stat().st_mode & 0o7777 == 0o644
    assert files_below(cache_folder()) - {
        f"kernels/amd64/{release}/{name}" for name in files_below(folder)
    } == {"fetching/amd64.lock"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["packages"]["busybox-static"] == "1"
    assert manifest["files"]["bin/busybox"]["size"] == len(b"a static busybox")


def test_second_time_asks_nobody(machine: Machine) -> None:
    machine.add_kernel(7)
    first = prepare("amd64", quiet)
    before = machine.calls("apt")

    def never(what: str, part: float | None) -> None:
        raise AssertionError(what)

    assert prepare("amd64", never) == first == prepared("amd64")
    assert machine.calls("apt") == before


def test_refresh_finds_the_newer_one(machine: Machine) -> None:
    machine.add_kernel(7)
    assert prepare("amd64", quiet).release.startswith("6.1.0-7-")
    assert prepare("amd64", quiet, refresh=True).release.startswith("6.1.0-7-")
    assert len(machine.calls(" download")) == 2  # print-uris and the download, both from before
    machine.add_kernel(12)
    assert prepare("amd64", quiet).release.startswith("6.1.0-7-")
    assert prepare("amd64", quiet, refresh=True).release.startswith("6.1.0-12-")
    assert prepare("amd64", quiet).release.startswith("6.1.0-12-")


def test_apt_is_kept_away_from_the_system(machine: Machine) -> None:
    machine.add_kernel(7)
    prepare("amd64", quiet)
    calls = machine.calls("/apt-")
    assert len(calls) >= 4
    for call in calls:
        own = str(cache_folder() / "fetching/amd64/apt-bookworm")
        for option in (
            "Dir::State::status=/dev/null",
            "Dir::Etc::SourceParts=/dev/null",
            f"Dir::Etc::SourceList={own}/kinst.sources",
            f"Dir::State::Lists={own}/",
            f"Dir::Cache={own}/",
            "APT::Architecture=amd64",
        ):
            assert f"-o{option}" in call


def damage_size(found: Prepared) -> None:
    with found.debug.open("ab") as file:
        file.write(b"x")


def damage_missing(found: Prepared) -> None:
    found.busybox.unlink()


def damage_manifest(found: Prepared) -> None:
    (found.kernel.parents[1] / "manifest.json").write_text("{}")


@pytest.mark.parametrize("damage", [damage_size, damage_missing, damage_manifest])
def test_damaged_copy_is_replaced(machine: Machine, damage: Callable[[Prepared], None]) -> None:
    machine.add_kernel(7)
    found = prepare("amd64", quiet)
    good = found.debug.read_bytes()
    damage(found)
    assert prepared("amd64") is None
    assert prepare("amd64", quiet) == found
    assert found.debug.read_bytes() == good
    assert found.busybox.read_bytes() == b"a static busybox"


def test_two_at_once_fetch_once(machine: Machine) -> None:
    machine.add_kernel(7)
    answers: list[Prepared] = []
    threads = [
        threading.Thread(target=lambda: answers.append(prepare("amd64", quiet))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 3 and len(set(answers)) == 1
    assert len(machine.calls(" update")) == 1


def test_interrupted_then_again(machine: Machine) -> None:
    machine.add_kernel(7)

    def interrupt(what: str, part: float | None) -> None:
        if what.startswith("unpacking vmlinux"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("amd64", interrupt)
    assert prepared("amd64") is None
    assert prepare("amd64", quiet).kernel.read_bytes() == b"kernel 7"


def test_a_release_that_is_split_into_packages(machine: Machine) -> None:
    """Debian 14 packs Linux 7 so: the image's package is empty."""
    release = "7.3.4+deb13-cloud-amd64"
    modules = f"usr/lib/modules/{release}"
    machine.add(f"linux-image-{release}", {"usr/share/x": b"nothing"})
    base = {f"{modules}/config": b"CONFIG_SMP=y\n", f"{modules}/modules.order": b"order"}
    machine.add(f"linux-base-{release}", base)
    machine.add(f"linux-binary-{release}", {f"{modules}/vmlinuz": b"kernel 7"})
    machine.add(f"linux-modules-{release}", {f"{modules}/kernel/fs/x.ko.xz": b"module"})
    debug = {f"usr/lib/debug/lib/modules/{release}/vmlinux": b"debug"}
    machine.add(f"linux-image-{release}-dbg", debug)
    found = prepare("amd64", quiet, "7.3")
    assert found.kernel.read_bytes() == b"kernel 7"
    assert found.debug.read_bytes() == b"debug"
    assert found.config.read_text() == "CONFIG_SMP=y\n"
    assert (found.modules / "kernel/fs/x.ko.xz").read_bytes() == b"module"
    assert (found.modules / "modules.order").read_bytes() == b"order"


# Other kernels, asked for by version.


def test_a_kernel_by_version(machine: Machine) -> None:
    usual = machine.add_kernel(9)
    assert prepare("amd64", quiet).release == usual
    older = machine.add_kernel(30, name="5.10.0-30-cloud-amd64")
    machine.add_kernel(31, name="5.10.0-31-amd64")
    found = prepare("amd64", quiet, "5.10")
    assert (found.release, found.kernel.read_bytes()) == (older, b"kernel 30")
    assert found.busybox.read_bytes() == b"a static busybox"
    assert prepare("amd64", quiet, "5.10-generic").release == "5.10.0-31-amd64"
    before = machine.calls("apt")
    for text in ("5.10", "5.10.0", "debian:5.10-cloud", older):
        assert prepare("amd64", quiet, text) == found == prepared("amd64", text)
    assert machine.calls("apt") == before
    # The usual kernel is unchanged.
    assert prepared("amd64") == prepare("amd64", quiet)
    sources = {call.split("SourceList=")[1].split()[0] for call in machine.calls(" update")}
    suites = {name.rpartition("apt-")[2].partition("/")[0] for name in sources}
    assert suites == {"bookworm", "bullseye"}


def test_a_version_that_debian_does_not_have(machine: Machine) -> None:
    machine.add_kernel(30, name="5.10.0-30-cloud-amd64")
    with pytest.raises(KinstError, match=r"no kernel 5\.10-rt for amd64 .*there are 5\.10-cloud"):
        prepare("amd64", quiet, "5.10-rt")


def test_a_package_that_the_mirror_has_lost(machine: Machine) -> None:
    """The release before it is taken; without one the error is apt's."""
    names = [f"5.10.0-{number}-cloud-amd64" for number in (8, 9, 10)]
    for number, name in enumerate(names):
        machine.add_kernel(number, name=name)
    machine.loses(f"linux-image-{names[2]}-dbg")
    machine.loses(f"linux-image-{names[1]}")
    assert prepare("amd64", quiet, "5.10").release == names[0]
    with pytest.raises(KinstError, match="404 Not Found"):
        prepare("amd64", quiet, names[1])


def test_what_can_be_asked_for(machine: Machine) -> None:
    machine.add_kernel(8)
    machine.add_kernel(9)
    fetched = machine.add_kernel(30, name="5.10.0-30-cloud-amd64")
    prepare("amd64", quiet, "5.10")
    machine.add_kernel(31, name="5.10.0-31-cloud-amd64")
    machine.add_kernel(1, name="6.12.3+deb13-rt-amd64")
    rows = [(one.release.short, one.release.name, one.is_cached) for one in offered("amd64", quiet)]
    assert sorted(rows) == [
        ("5.10-cloud", fetched, True),
        ("5.10-cloud", "5.10.0-31-cloud-amd64", False),
        ("6.1-cloud", "6.1.0-9-cloud-amd64", False),
        ("6.12-rt", "6.12.3+deb13-rt-amd64", False),
    ]


# Busybox alone, for a kernel of the user's own.


def test_busybox_alone(machine: Machine) -> None:
    machine.add_kernel(7)
    told: list[tuple[str, float | None]] = []
    found = busybox("amd64", lambda what, part: told.append((what, part)))
    assert found.read_bytes() == b"a static busybox"
    assert os.access(found, os.X_OK) is False  # the package's own mode (0666 here)
    downloads = machine.calls(" download")
    assert downloads and all("linux-image" not in call for call in downloads)
    assert files_below(cache_folder()) == {
        "busybox/amd64/bin/busybox", "fetching/amd64-busybox.lock",
    }  # fmt: skip
    assert told[-1][1] == 1.0
    assert prepared("amd64") is None


def test_busybox_is_fetched_once(machine: Machine) -> None:
    found = busybox("amd64", quiet)
    calls = len(machine.calls(""))
    assert busybox("amd64", quiet) == found
    assert len(machine.calls("")) == calls


def test_busybox_of_a_fetched_kernel_is_taken(machine: Machine) -> None:
    machine.add_kernel(7)
    ready = prepare("amd64", quiet)
    assert busybox("amd64", quiet) == ready.busybox


def test_busybox_of_a_release_that_lies_below_usr(machine: Machine) -> None:
    machine.add("busybox-static", {"usr/bin/busybox": b"box"})
    assert busybox("riscv64", quiet).read_bytes() == b"box"


def test_busybox_that_nobody_has(machine: Machine) -> None:
    for file in machine.folder.glob("packages/*"):
        file.unlink()
    with pytest.raises(KinstError, match="no busybox-static for amd64 of Debian bookworm"):
        busybox("amd64", quiet)
    (machine.folder / "broken").write_text("E: Could not resolve 'a.test'\n")
    with pytest.raises(KinstError, match=r"Could not resolve 'a\.test'"):
        busybox("amd64", quiet)


def test_a_download_is_asked_about_once_and_may_be_refused(machine: Machine) -> None:
    """Neither complete files in the cache nor package lists are asked about."""
    machine.add_kernel(7)
    asked: list[tuple[str, int]] = []

    def answer(agreed: bool) -> Callable[[str, int], bool]:
        return lambda what, size: bool(asked.append((what, size))) or agreed

    with pytest.raises(KinstError, match="the answer was no") as told:
        prepare("amd64", quiet, confirm=answer(False))
    assert "--yes" in str(told.value.hint)
    assert not machine.calls(" download ") or prepared("amd64") is None
    prepare("amd64", quiet, confirm=answer(True))
    prepare("amd64", quiet, confirm=answer(False))
    (what, size), again = asked
    assert what.startswith("linux-image-6.1.0-") and what.endswith(" more")
    assert again == (what, size) and size == sum(
        file.stat().st_size
        for file in machine.folder.glob("packages/*.deb")
        if file.name.startswith(("busybox", what.split()[0]))
    )


def test_own_kernel_needs_no_other(machine: Machine, tmp_path: Path) -> None:
    """--kernel bzImage --debug vmlinux fetches a busybox and nothing else."""
    for name in ("bzImage", "vmlinux"):
        (tmp_path / name).write_bytes(b"own")
    words = ["--kernel", str(tmp_path / "bzImage"), "--debug", str(tmp_path / "vmlinux")]
    files = find_files(parse(words).request, quiet)
    assert (files.kernel, files.debug) == (tmp_path / "bzImage", tmp_path / "vmlinux")
    assert files.busybox is not None and files.busybox.read_bytes() == b"a static busybox"
    assert not [call for call in machine.calls(" download") if "linux-image" in call]


def test_two_at_once_fetch_busybox_once(machine: Machine) -> None:
    answers: list[Path] = []
    threads = [
        threading.Thread(target=lambda: answers.append(busybox("amd64", quiet))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 3 and len(set(answers)) == 1
    assert len(machine.calls(" update")) == 1


# Errors.


def test_a_release_that_lies_below_usr_with_a_plain_image(machine: Machine) -> None:
    """Debian 13 packs riscv64 so: boot/vmlinux, usr/lib/modules, usr/bin/busybox."""
    for number in ("6.12.9+deb13", "6.12.10+deb13", "6.12.10+deb13+1"):
        release = f"{number}-riscv64"
        files = {
            f"boot/vmlinux-{release}": f"kernel {number}".encode(),
            f"boot/config-{release}": b"CONFIG_SMP=y\n",
            f"usr/lib/modules/{release}/kernel/fs/x.ko.xz": b"module",
        }
        machine.add(f"linux-image-{release}", files)
        debug = {f"usr/lib/debug/boot/vmlinux-{release}": b"debug"}
        machine.add(f"linux-image-{release}-dbg", debug)
    machine.add("busybox-static", {"usr/bin/busybox": b"box"})
    found = prepare("riscv64", quiet)
    assert found.release == "6.12.10+deb13+1-riscv64"
    assert found.kernel.read_bytes() == b"kernel 6.12.10+deb13+1"
    assert found.debug.read_bytes() == b"debug"
    assert found.busybox.read_bytes() == b"box"
    assert (found.modules / "kernel/fs/x.ko.xz").read_bytes() == b"module"
    assert prepared("riscv64") == found


def error_of(*, isa: str = "amd64") -> str:
    with pytest.raises(KinstError) as raised:
        prepare(isa, quiet)
    assert "\n" not in str(raised.value)
    assert prepared("amd64") is None
    return str(raised.value)


def test_changed_content_is_refused(machine: Machine) -> None:
    release = machine.add_kernel(7)
    file = next(machine.folder.glob(f"packages/linux-image-{release}_*.deb"))
    data = file.read_bytes()
    assert data.count(b"kernel 7") == 1  # the package is not compressed
    file.write_bytes(data.replace(b"kernel 7", b"kernel 8"))
    assert f"boot/vmlinuz-{release}" in error_of()


def test_cut_package_is_refused_and_fetched_anew(machine: Machine) -> None:
    release = machine.add_kernel(7)
    file = next(machine.folder.glob(f"packages/linux-image-{release}-dbg_*.deb"))
    whole = file.read_bytes()
    file.write_bytes(whole[: 1 << 20])
    assert "cannot be unpacked" in error_of()
    file.write_bytes(whole)
    assert prepare("amd64", quiet).debug.read_bytes()[:8] == b"debug 7 "


def test_package_without_the_file(machine: Machine) -> None:
    release = machine.add_kernel(7)
    machine.add(f"linux-image-{release}-dbg", {"usr/lib/debug/other": b""})
    assert f"/usr/lib/debug/boot/vmlinux-{release}" in error_of()


def test_no_network(machine: Machine) -> None:
    (machine.folder / "broken").write_text(
        "W: Something mild\nE: Could not resolve 'a.test'\nE: More\n"
    )
    assert "Could not resolve 'a.test'" in error_of()


def test_no_kernel_in_the_lists(machine: Machine) -> None:
    assert "no kernel package for amd64" in error_of()


def test_a_mirror_that_is_being_written_is_left_out(machine: Machine) -> None:
    """apt keeps no list of any mirror then."""
    release = machine.add_kernel(7)
    machine.is_written("bookworm-security", "bookworm-updates")
    sources = ONE_LINE + "deb http://a.test/debian bookworm-updates main\n"
    (machine.folder / "etc/sources.list").write_text(sources)
    assert prepare("amd64", quiet).kernel.name == f"vmlinuz-{release}"
    assert len(machine.calls("update")) == 3


@pytest.mark.parametrize("suite", ["bookworm", "bookworm-security"])
def test_the_only_mirror_is_being_written(machine: Machine, suite: str) -> None:
    machine.add_kernel(7)
    (machine.folder / "etc/sources.list").write_text(f"deb http://a.test/debian {suite} main\n")
    machine.is_written(suite)
    assert f"dists/{suite}/main/Packages.xz" in error_of()


def test_no_mirror(machine: Machine) -> None:
    (machine.folder / "etc/sources.list").write_text("deb http://vendor.test/ other main\n")
    assert "no Debian mirror" in error_of()


def test_no_apt(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.folder))
    assert "apt-get is missing" in error_of()


def test_disk_too_small(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add_kernel(7)
    usage = shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "100 MB free" in error_of()


def test_cache_that_cannot_be_made(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    file = machine.folder / "a-file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert str(file) in error_of()


def test_unknown_isa() -> None:
    with pytest.raises(KinstError, match=r"vax.*amd64"):
        prepare("vax", quiet)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.home()
    for value, folder in (
        ("/some/where", Path("/some/where/kinst")),
        ("", home / ".cache/kinst"),
        ("relative", home / ".cache/kinst"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == folder
    # Without HOME the system's own entry is used, and this user may have none.
    monkeypatch.delenv("HOME")
    assert cache_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/kinst"
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(KinstError, match=r"user 54321 has no home folder \(HOME or XDG_CACHE_HOME"):
        cache_folder()


def test_what_make_setup_fetched(prepared: Prepared) -> None:
    """An x86-64 vmlinux with DWARF, the kernel's own name, a static busybox."""
    sections = read_elf(["readelf", "-SW", str(prepared.debug)])
    assert ".debug_info" in sections and ".text" in sections
    assert "X86-64" in read_elf(["readelf", "-hW", str(prepared.debug)])
    assert prepared.release.encode() in prepared.debug.read_bytes()[:0x3000000]
    assert "CONFIG_SERIAL_8250_CONSOLE=y" in prepared.config.read_text()
    assert "INTERP" not in read_elf(["readelf", "-lW", str(prepared.busybox)])
    assert list(prepared.modules.rglob("*.ko"))


def read_elf(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
