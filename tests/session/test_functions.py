"""Source files that a pattern matches."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import cast

import pytest

from kinst.core.errors import AmbiguousError, KinstError
from kinst.core.kernel import Kernel
from kinst.core.probe import Function
from kinst.image.debug_info import DebugInfo
from kinst.image.loaded_images import LoadedImages, moved_by
from kinst.isa import load, name_of_machine
from kinst.session.file_image import FileImage
from kinst.session.functions import find_functions, matcher, named_functions
from kinst.session.kernel import RunningKernel


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


def test_an_inline_function_is_found_in_others(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text(
        "volatile int v;\n"
        "static inline __attribute__((always_inline)) void bump(void) { v++; }\n"
        "void once(void) { bump(); }\n"
        "void twice(void) { bump(); v = 1; bump(); }\n"
        "int main(void) { return 0; }\n"
    )
    program = tmp_path / "a"
    subprocess.run(["gcc", "-g", "-O1", "-o", program, source], check=True, timeout=60)
    debug = DebugInfo(program, cache=tmp_path)
    image = FileImage(debug.elf)
    kernel = RunningKernel(image, image, load(name_of_machine(debug.elf.machine)))
    images = LoadedImages(moved_by(debug, 0))
    for find in (
        lambda name: named_functions(kernel, images, [name]),
        lambda name: find_functions([name], kernel, images),
    ):
        assert [one.name for one in find("twice")] == ["twice"]
        with pytest.raises(KinstError) as caught:
            find("bump")
        assert caught.value.message == "bump has no code of its own, but 3 inlined copies"
        assert caught.value.hint == "name a function with a copy: twice or once"
        with pytest.raises(KinstError, match=r'no function named "twyce" \(did you mean twice'):
            find("twyce")
    with pytest.raises(KinstError, match='no function named "bump"'):
        named_functions(kernel, None, ["bump"])
