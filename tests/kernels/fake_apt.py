"""A stand-in for apt-get that serves a folder of packages, as far as kinst uses apt: `update`,
`pkgnames`, `--print-uris download` and `download`. It keeps the arguments of each call."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

APT_GET = """\
#!/bin/sh
echo "$0 $*" >>"$FAKE_APT/calls"
verb= names=
for word; do
    case "$word" in
    -*) ;;
    update | download) verb=$word ;;
    *) names="$names $word" ;;
    esac
done
[ -e "$FAKE_APT/broken" ] && { cat "$FAKE_APT/broken" >&2; exit 100; }
if [ "$verb" = update ]; then
    touch "$FAKE_APT/no-lists"
    sources=${*##*SourceList=} sources=${sources%% *}
    for suite in $(cat "$FAKE_APT/written" 2>&-); do
        grep -Eq "^Suites:.* $suite( |$)" "$sources" || continue
        echo "E: Failed to fetch http://192.0.2.1/debian/dists/$suite/main/Packages.xz" >&2
        exit 100
    done
    rm "$FAKE_APT/no-lists"
    exit 0
fi
for name in $names; do
    file=$(echo "$FAKE_APT/packages/$name"_*.deb)
    case "$*" in
    *--print-uris*)
        echo "'file:$file' $(basename "$file") $(stat -c %s "$file") SHA256:0" ;;
    *)
        if [ -e "$FAKE_APT/gone-$name" ]; then
            echo "E: Failed to fetch file:$file  404  Not Found [IP: 192.0.2.1 80]" >&2
            exit 100
        fi
        if [ -s "$FAKE_APT/breaks" ]; then
            sed -i 1d "$FAKE_APT/breaks"
            echo "E: Failed to fetch file:$file  Connection timed out [IP: 192.0.2.1 80]" >&2
            exit 100
        fi
        cp "$file" . ;;
    esac
done
"""

APT_CACHE = """\
#!/bin/sh
echo "$0 $*" >>"$FAKE_APT/calls"
[ -e "$FAKE_APT/no-lists" ] || ls "$FAKE_APT/packages" | sed 's/_.*//'
"""

APT_CONFIG = """\
#!/bin/sh
echo "LIST='$FAKE_APT/etc/sources.list'"
echo "PARTS='$FAKE_APT/etc/sources.list.d/'"
"""


@dataclass(frozen=True)
class Machine:
    """The stand-in: a folder of packages, and the calls made to it."""

    folder: Path

    def add(self, name: str, files: dict[str, bytes], version: str = "1") -> Path:
        """Make a real .deb with these files and their md5sums."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        for path, data in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
            (work / path).chmod(0o666)
        sums = subprocess.run(
            ["md5sum", *files], cwd=work, capture_output=True, text=True, check=True
        ).stdout
        (work / "DEBIAN").mkdir()
        (work / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n"
            "Maintainer: nobody <nobody@example.org>\nDescription: for a test\n"
        )
        (work / "DEBIAN/md5sums").write_text(sums)
        file = self.folder / f"packages/{name}_{version}_amd64.deb"
        build = ["dpkg-deb", "-Znone", "--root-owner-group", "--build", str(work), str(file)]
        subprocess.run(build, capture_output=True, check=True)
        return file

    def add_kernel(self, number: int, debug: bool = True, name: str = "") -> str:
        """Add a kernel whose files contain a number.

        Args:
            number: in each file.
            debug: add its debug package, too.
            name: of the release; "" for a cloud kernel of 6.1.
        """
        release = name or f"6.1.0-{number}-cloud-amd64"
        kernel = {
            f"boot/vmlinuz-{release}": b"kernel %d" % number,
            f"boot/config-{release}": b"CONFIG_SMP=y\n",
            f"boot/System.map-{release}": b"not needed",
            f"lib/modules/{release}/kernel/fs/x.ko": b"module",
        }
        self.add(f"linux-image-{release}", kernel)
        if debug:
            vmlinux = {
                f"usr/lib/debug/boot/vmlinux-{release}": b"debug %d " % number + bytes(3 << 20),
                f"usr/lib/debug/lib/modules/{release}/x.ko": b"not needed",
            }
            self.add(f"linux-image-{release}-dbg", vmlinux)
        return release

    def loses(self, name: str) -> None:
        """From now on the lists have this package and it cannot be downloaded."""
        (self.folder / f"gone-{name}").touch()

    def is_written(self, *suites: str) -> None:
        """From now on the mirror's lists of these suites differ from their checksums."""
        (self.folder / "written").write_text(" ".join(suites))

    def breaks_off(self, times: int) -> None:
        """Let the next downloads fail."""
        (self.folder / "breaks").write_text("once\n" * times)

    def calls(self, verb: str) -> list[str]:
        log = self.folder / "calls"
        return [c for c in log.read_text().splitlines() if verb in c] if log.exists() else []


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str) -> Machine:
    """Put the stand-in before the real apt-get, with these lines of sources.list, a busybox, and an
    empty cache."""
    folder = tmp_path / "machine"
    for part in ("bin", "packages", "etc/sources.list.d"):
        (folder / part).mkdir(parents=True)
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("apt-config", APT_CONFIG)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "etc/sources.list").write_text(sources)
    monkeypatch.setenv("FAKE_APT", str(folder))
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine = Machine(folder)
    machine.add("busybox-static", {"bin/busybox": b"a static busybox"})
    return machine
