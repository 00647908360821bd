"""Source files that a pattern matches."""

from __future__ import annotations

from typing import cast

import pytest

from kinst.core.errors import AmbiguousError, KinstError
from kinst.core.kernel import Kernel
from kinst.core.probe import Function
from kinst.image.loaded_images import LoadedImages
from kinst.session.functions import find_functions, matcher


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


class _TwoShows:
    """A kernel with two functions of one name."""

    def find(self, module: str, function: str) -> list[Function]:
        raise AmbiguousError('"show" names 2 functions', "", ["diary:show", "vmlinux:show"])


def test_the_hint_for_one_name_of_two_functions_is_a_pattern() -> None:
    with pytest.raises(KinstError) as caught:
        find_functions(["show"], cast(Kernel, _TwoShows()), cast(LoadedImages, None))
    assert caught.value.hint == "choose one: diary:show or vmlinux:show"
