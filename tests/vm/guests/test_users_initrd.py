"""-c in a guest with a user's initrd, whose init switches to another root: the command runs there,
once that is up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import counts, kinst

pytestmark = pytest.mark.vm

SWITCHING = """#!/bin/sh
/bin/busybox --install -s /bin
mount -t tmpfs new /new
mkdir /new/bin /new/proc
cp /bin/busybox /new/bin
cp -a /bin/sh /bin/init-of-new /new/bin
echo new >/new/whose
exec switch_root /new /bin/init-of-new
"""
NEW = """#!/bin/sh
/bin/busybox --install -s /bin
sleep 1
mount -t proc proc /proc
while :; do sleep 1; done
"""


@pytest.fixture
def initrd(prepared: Prepared, tmp_path: Path) -> Path:
    """Return a packed initrd whose length is no multiple of 4."""
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "new").mkdir()
    (tree / "bin/busybox").write_bytes(prepared.busybox.read_bytes())
    (tree / "bin/sh").symlink_to("busybox")
    (tree / "init").write_text(SWITCHING)
    (tree / "bin/init-of-new").write_text(NEW)
    for name in ("init", "bin/busybox", "bin/init-of-new"):
        (tree / name).chmod(0o755)
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    archived = subprocess.run(
        [str(prepared.busybox), "cpio", "-o", "-H", "newc"],
        input=names.encode(), cwd=tree, capture_output=True, check=True,
    ).stdout  # fmt: skip
    packed = subprocess.run(["gzip", "-1"], input=archived, capture_output=True, check=True).stdout
    file = tmp_path / "initrd"
    file.write_bytes(packed + bytes(-len(packed) % 4 + 1))
    return file


def test_the_command_runs_in_the_root_that_was_switched_to(initrd: Path) -> None:
    done = kinst(
        "--initrd", str(initrd), "-qn", 'kinst::ksys_read:0 /execname == "wc"/ { @ = count(); }',
        "-c", "cat /whose; wc -c </whose; echo $0; echo error >&2; exit 7",
        append="root=new",
    )  # fmt: skip
    assert done.status == 7, done
    assert done.guest == "new\n4\n/bin/sh\nerror\n"
    assert counts(done.out)[()] == 2  # the four bytes, and the end
    assert not done.err
