"""Names of enumerators, from the debug information of a file without BTF, by the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KINST = Path(sys.executable).with_name("kinst")
SOURCES = (
    """
    enum depth { SHALLOW = -2, DEEP = 40, SHARED = 1 };
    enum { NAMELESS = 7, LAST };
    enum depth depth = DEEP;
    int main(void) { return depth == NAMELESS; }
    """,
    """
    enum width { SHARED = 9, LAST = 8 };
    enum width width = SHARED;
    """,
)


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    paths = []
    for number, source in enumerate(SOURCES):
        paths.append(folder / f"{number}.c")
        paths[-1].write_text(source)
    made = str(folder / "made")
    subprocess.run(["gcc", "-g", "-o", made, *map(str, paths)], check=True)
    words = ["-q", "-x", "errtags", "--kernel", made, "--debug", made, "-n", program]
    return subprocess.run([str(KINST), *words], capture_output=True, text=True, timeout=300)


def test_named_and_nameless_ones(tmp_path: Path) -> None:
    names = "SHALLOW, DEEP, NAMELESS, LAST"  # LAST is 8 in both
    done = run(tmp_path, f'BEGIN {{ printf("%d %d %d %d", {names}); exit(0); }}')
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-2", "40", "7", "8"]


def test_one_name_of_two_values(tmp_path: Path) -> None:
    done = run(tmp_path, "BEGIN { trace(SHARED); exit(0); }")
    assert done.returncode == 1
    assert "[D_IDENT_AMBIG] SHARED is ambiguous: 1 in enum depth and 9 in enum width" in done.stderr


def test_compared_with_its_own_enumeration_it_is_not_ambiguous(tmp_path: Path) -> None:
    program = """
    BEGIN
    {
        this->one = (enum width *)alloca(4);
        *(int *)this->one = 9;
        this->other = (enum depth *)this->one;
        printf("%d %d", *this->one == SHARED, *this->other == SHARED);
        exit(0);
    }
    """
    done = run(tmp_path, program)
    assert done.stdout.split() == ["1", "0"], done.stderr
