"""Allocations that fail while ext4 is mounted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.vm.inject.module_files import summary_of

pytestmark = [pytest.mark.vm, pytest.mark.full]  # mke2fs

COMMAND = """\
status=1
cp /bin/ext4.img /tmp/disk
if mount -o loop -t ext4 /tmp/disk /mnt; then
    mkdir /mnt/a && echo text >/mnt/a/b && cat /mnt/a/b && mv /mnt/a/b /mnt/a/c &&
        ln -s c /mnt/a/d && rm -r /mnt/a && status=0
    umount /mnt || status=2
fi
rm /tmp/disk
exit $status
"""
WORDS = (
    "inject", "*kmalloc* return NULL", "kmem_cache_alloc* return NULL", "--in", "ext4_*,jbd2_*",
    "--module", "loop", "-c", COMMAND, "--first",
)  # fmt: skip


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ext4") / "ext4.img"
    subprocess.run(["/sbin/mke2fs", "-q", "-t", "ext4", str(path), "6m"], check=True)
    return path


def test_the_first_failures_of_a_mount(image: Path, tmp_path: Path) -> None:
    """The mount, which makes the first calls, fails; what mount(8) says tells the error."""
    summary = summary_of(tmp_path, *WORDS, "--copy", str(image), "--only", "1-3", status=0)
    assert summary["counts"] == {"failed": 3}
    for one in summary["tries"]:
        assert any(frame.startswith("ext4_") for frame in one["stack"]), one
        assert "failed: " in one["output"][0] and one["returned"].endswith(": ENOMEM"), one
        assert "allocate memory" in one["output"][0], one
