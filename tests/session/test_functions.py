"""Source files that a pattern matches."""

from __future__ import annotations

import pytest

from kinst.session.functions import matcher


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("fs/*.c", "fs/open.c", True),
        ("fs/*.c", "fs/ext4/inode.c", False),
        ("fs/*.c", "fs/internal.h", False),
        ("fs/*.c", "/home/me/linux/fs/open.c", True),
        ("read_write.c", "fs/read_write.c", True),
        ("write.c", "fs/read_write.c", False),
        ("fs/ext4", "fs/ext4/inode.c", True),
        ("fs/ext4/", "fs/ext4/inode.c", True),
        ("fs/ext4", "fs/ext4.c", False),
        ("fs/ext4", "include/trace/events/ext4.h", False),
        ("fs/", "fs/proc/base.c", True),
        ("fs/", "/src/linux/fs/proc/base.c", True),
        ("fs/ext*/", "fs/ext4/inode.c", True),
        ("fs/ext*/x*.c", "fs/ext4/xattr.c", True),
        ("/src/fs/open.c", "/src/fs/open.c", True),
        ("/src/fs/open.c", "fs/open.c", False),
        ("inode.[ch]", "fs/inode.c", True),
        ("fs/inode.[ch]", "fs/ext4/inode.c", False),
    ],
)
def test_paths(pattern: str, path: str, meant: bool) -> None:
    assert matcher(pattern)(path) is meant
