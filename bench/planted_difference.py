"""Check whether `kinst diff` finds the one branch in which two kernels differ.

    python bench/planted_difference.py BUILD-FOLDER

BUILD-FOLDER is a configured kernel for amd64, with the options that kinst needs
(docs/your-files.md). The kernel is built unchanged, and built with an additional branch in
vfs_read(). The branch is removed from the source at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

KINST = Path(sys.executable).with_name("kinst")
FILE = "fs/read_write.c"
BOOT = "arch/x86/boot/bzImage"
BEFORE = "\tif (file->f_op->read)\n\t\tret = file->f_op->read(file, buf, count, pos);\n"
CONDITION, ACTION = "if (count > PAGE_SIZE)", "count = PAGE_SIZE;"
PLANTED = f"\t{CONDITION}\n\t\t{ACTION}\n"
# Count each instruction of the function; stack(1) is its address, shown with its source line.
PROGRAM = 'kinst::vfs_read: /execname == "dd"/ { @[stack(1)] = count(); }'
COMMAND = "dd if=/dev/zero of=/dev/null bs=64k count=3 2>/dev/null"


def keep(build: Path, folder: Path) -> Path:
    """Copy the files that --build needs, and the source, to a folder, and return the folder."""
    for name in ("vmlinux", BOOT, FILE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", build / name, folder / name], check=True)
    return folder


def make(build: Path) -> None:
    subprocess.run(["make", "-s", "-j2", "bzImage"], cwd=build, check=True)


def trace(build: Path, result: Path) -> Path:
    words = ["--json", "-q", "-o", result, "--build", build, "-n", PROGRAM, "-c", COMMAND]
    subprocess.run(list(map(str, (KINST, *words))), check=True)
    return result


def diff(*words: str | Path) -> tuple[str, int]:
    done = subprocess.run([KINST, "diff", *words], capture_output=True, text=True, check=False)
    return done.stdout, done.returncode


def main() -> None:
    build = Path(sys.argv[1])
    source = build / FILE
    text = source.read_text()
    assert text.count(BEFORE) == 1, f"{FILE} is another version's"
    line = text.partition(BEFORE)[0].count("\n") + 1  # line of the condition
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(build)  # an earlier run may have left a kernel with the branch
        plain = keep(build, folder / "plain")
        try:
            source.write_text(text.replace(BEFORE, PLANTED + BEFORE))
            make(build)
            planted = keep(build, folder / "planted")
        finally:
            source.write_text(text)
        a, b = trace(plain, folder / "a.json"), trace(planted, folder / "b.json")
        hits = [sum(row["value"] for row in json.loads(one.open().readline())["rows"])
                for one in (a, b)]  # fmt: skip
        print(f"{hits[0]} instructions ran in A, {hits[1]} in B")
        found, status = diff("--source-a", plain, "--source-b", planted, a, b)
        print(found)
        assert status == 1
        only_b = [row for row in found.splitlines() if "only B" in row]
        assert only_b and all(f"{FILE}:+" in row for row in only_b), "more than what was planted"
        assert any(f"{FILE}:+{line}  {CONDITION}" in row for row in only_b), "not what was planted"
        for one in (a, b):
            assert diff(one, one) == ("", 0)
        print("a result and itself: nothing, status 0")


if __name__ == "__main__":
    main()
