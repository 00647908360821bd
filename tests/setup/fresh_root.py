"""A new Debian 12 with only debootstrap's minbase, the packages that the README asks for and a copy
of this checkout; and commands that run in it.

    .venv/bin/python -m tests.setup.fresh_root [--kernels] COMMAND...

Each COMMAND is a line for the shell, run in the checkout; the first that fails ends the run.
--kernels shares the kernels in this machine's cache, which otherwise are fetched as on any new
machine.

It needs root and about 7 GB below $TMPDIR (or /var/tmp). Packages come from the places that this
machine's apt and pip are configured for; nothing else of the machine is used.  A command runs in a
mount and a PID namespace of its own (unshare(1)): its mounts and processes end with it, even if it
is killed.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.kernels.apt import Apt, parse_sources
from tests import ROOT

SUITE = "bookworm"
# Packages that README.md requires before `make trace`.
BEFOREHAND = "apt-get update -q && apt-get install -q -y --no-install-recommends make"
HOST_NAMES = ("resolv.conf", "hosts", "nsswitch.conf")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
# Folder for copies of the machine's files that its settings name: at their own paths packages might
# replace them.
COPIES = "/etc/of-the-machine"

# Mounts and processes of a command end with it.
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
# Arguments: the root, then folders to show in it read-only as SOURCE PLACE, --, the command.
# The shell stays, as the parent of orphans.
IN_NAMESPACE = r"""
set -euo pipefail
root=$1
shift
# What is / inside must be a mount for unshare(1) to work there.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty kvm; do
    [ -e "/dev/$node" ] || continue
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"
done
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
status=0
chroot "$@" || status=$?
exit "$status"
"""


@dataclass
class FreshRoot:
    """A root folder, and how to run commands in it.

    Attributes:
        folder: / inside.
        environment: pip's settings of the machine, as variables.
        shared: folders of the machine -> their paths inside, read-only.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    shared: list[tuple[str, str]] = field(default_factory=list)

    def command(
        self, line: str, where: str, user: str = "root", environment: Mapping[str, str | None] = {}
    ) -> list[str]:
        """Return the arguments that run a line of shell inside, in the folder `where`.

        Args:
            environment: None unsets a variable.  There is no LANG, as in a minbase root.
        """
        variables: dict[str, str | None] = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": _home(user),
            **self.environment,
            **environment,
        }
        shared = [word for pair in self.shared for word in pair]
        return [
            *APART,
            *("bash", "-c", IN_NAMESPACE, "fresh-root", str(self.folder), *shared, "--"),
            *(f"--userspec={user}:{user}", str(self.folder), "env", "-i"),
            *(f"{name}={value}" for name, value in variables.items() if value is not None),
            *("bash", "-c", f"cd {shlex.quote(where)} && {{ {line}\n}}"),
        ]

    def run(
        self, line: str, where: str = "/", user: str = "root", **environment: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of shell inside to its end; its output and messages are in stdout."""
        return subprocess.run(
            self.command(line, where, user, environment),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip

    def good(
        self, line: str, where: str = "/", user: str = "root", **environment: str | None
    ) -> str:
        """Return the output of a line of shell that must succeed."""
        done = self.run(line, where, user, **environment)
        if done.returncode:
            said = done.stdout[-4000:]
            raise KinstError(f"`{line}` ended with status {done.returncode} inside:\n{said}")
        return done.stdout

    def put_checkout(self, place: str, owner: str = "root") -> None:
        """Copy this checkout, without files that git ignores."""
        ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
        inside = self.folder / place.lstrip("/")
        shutil.copytree(ROOT, inside, ignore=shutil.ignore_patterns(".git", *ignored))
        self.good(f"chown -R {owner}: {shlex.quote(place)}")

    def share_kernels(self, user: str = "root") -> None:
        """Show the machine's fetched kernels in the cache of a user."""
        kernels = cache_folder() / "kernels"
        if not kernels.is_dir():
            raise KinstError("this machine has no kernels to share", "make setup-all fetches them")
        cache = f"{_home(user)}/.cache"
        self.good(f"install -d -o {user} -g {user} {cache} {cache}/kinst")
        self.shared.append((str(kernels), f"{cache}/kinst/kernels"))


def _home(user: str) -> str:
    return "/root" if user == "root" else f"/home/{user}"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _take_over_apt(root: FreshRoot, sources: str) -> None:
    """Take over the machine's Debian mirrors, with their keys, proxies and certificates."""
    keys = [source.fields.get("signed-by", "") for source in parse_sources(sources, deb822=True)]
    options = _output("apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', "Acquire")
    kept = [
        line
        for line in options.splitlines()
        if not line.startswith(("Acquire::IndexTargets", "Acquire::Changelogs"))
    ]
    named = [line.split('"')[1] for line in kept]
    for file in map(Path, [*keys, *named]):
        inside = root.folder / str(file).lstrip("/")
        if file.is_absolute() and file.is_file() and not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, inside)
    # The packages need not survive a crash of this machine.
    (root.folder / "etc/dpkg/dpkg.cfg.d/of-no-value").write_text("force-unsafe-io\n")
    (root.folder / "etc/apt/sources.list").unlink(missing_ok=True)
    (root.folder / "etc/apt/sources.list.d/debian.sources").write_text(sources)
    (root.folder / "etc/apt/apt.conf.d/80of-the-machine").write_text("\n".join(kept) + "\n")


def _take_over_pip(root: FreshRoot) -> None:
    """Take over pip's settings, by its variables, and the files and folders that they name."""
    # Lines as global.index-url='...' and :env:.cert='...'.
    for line in _output(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2].upper().replace("-", "_")
        words = [_inside(root, word) for word in str(ast.literal_eval(value)).split()]
        root.environment[f"PIP_{option}"] = " ".join(words)
    for name in (*PROXIES, *map(str.upper, PROXIES), *CERTIFICATES):
        if name in os.environ:
            root.environment[name] = _inside(root, os.environ[name])


def _inside(root: FreshRoot, word: str) -> str:
    """Return a word of the settings as it must be inside: a folder that it names is shared, a file
    is copied."""
    path = Path(word.removeprefix("file://"))
    if path.is_absolute() and path.is_dir():
        # The pages of an index refer to files beside it.
        folder = str(path.parent if path.name == "simple" else path)
        if (folder, folder) not in root.shared:
            root.shared.append((folder, folder))
    elif path.is_absolute() and path.is_file():
        copies = root.folder / COPIES.lstrip("/")
        copies.mkdir(exist_ok=True)
        shutil.copy(path, copies / path.name)
        return f"{COPIES}/{path.name}"
    return word


def _debootstrap(folder: Path, sources: str) -> None:
    """Run debootstrap's minbase into a new folder, from the first of the sources' mirrors."""
    stanzas = parse_sources(sources, deb822=True)
    main = next((source for source in stanzas if SUITE in source.suites), None)
    if main is None:
        raise KinstError(f"apt's sources on this machine have updates of {SUITE} but not itself")
    key = main.fields.get("signed-by", "")
    # debootstrap mounts proc in the new root, too.
    command = [*APART, "--mount-proc", "debootstrap", "--variant=minbase"]
    command += [f"--keyring={key}"] if key.startswith("/") else []
    done = subprocess.run(
        [*command, SUITE, str(folder), main.uris[0]],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise KinstError(f"debootstrap failed: {said[-1]}")


@contextmanager
def fresh_root() -> Iterator[FreshRoot]:
    """Make a new root, and delete it at the end.  Raises KinstError: not root, no mirror, no
    network."""
    if os.getuid() != 0:
        raise KinstError("only root can make a root folder and mounts", "run it as root")
    if not shutil.which("debootstrap"):
        raise KinstError("debootstrap not found", "apt-get install debootstrap")
    work = Path(tempfile.mkdtemp(prefix="kinst-fresh-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        architecture = _output("dpkg", "--print-architecture").strip()
        Apt(work / "apt", SUITE, architecture)
        sources = (work / "apt/kinst.sources").read_text()
        root = FreshRoot(work / "root")
        _debootstrap(root.folder, sources)
        _take_over_apt(root, sources)
        _take_over_pip(root)
        for name in HOST_NAMES:
            if (Path("/etc") / name).exists():
                shutil.copy(Path("/etc") / name, root.folder / "etc" / name)
        root.good(BEFOREHAND, DEBIAN_FRONTEND="noninteractive")
        yield root
    finally:
        # Nothing is mounted there any more: mounts ended with their namespaces.
        subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run commands of a checkout in a new Debian 12.")
    parser.add_argument("--kernels", action="store_true", help="share this machine's kernels")
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run_all(asked.commands, asked.kernels)
    except KinstError as error:
        print(f"fresh root: {error}")
        return 1


def _run_all(commands: Sequence[str], kernels: bool) -> int:
    started = time.monotonic()
    with fresh_root() as root:
        root.put_checkout("/root/kinst")
        if kernels:
            root.share_kernels()
        print(f"fresh root: made in {time.monotonic() - started:.0f} s", flush=True)
        for line in commands:
            print(f"fresh root: {line}", flush=True)
            started = time.monotonic()
            status = subprocess.run(root.command(line, "/root/kinst")).returncode
            took = time.monotonic() - started
            print(f"fresh root: {line}: status {status} after {took:.0f} s", flush=True)
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
