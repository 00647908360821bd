"""Searches for bytes that kinst cannot handle, guided by the lines of its code that they reach:

    .venv/bin/python -m pip install '.[fuzzing]'
    .venv/bin/python -m tests.fuzz.guided d_text|stub|debug_file [RUNS]

A search begins with the programs and files of the other tests, and with the stored inputs
(corpora/); at the end it stores inputs that reach code that no other input reaches.  Failing
inputs are left in the working folder as crash-*, with the traceback printed, and the exit status
is not 0. Atheris (libFuzzer) does the search; it sees Python's lines, not numba's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.dlang.d_mutations import seeds as programs
from tests.fuzz.targets import TARGETS, corpus, keep
from tests.fuzz.test_stubs import PIECES
from tests.image.dwarf.test_damage import BUILDS
from tests.image.dwarf_made import compiled

LONGEST = {"d_text": 600, "stub": 400, "debug_file": 40_000}  # bytes
SECONDS = 20  # of one input


def seeds(name: str, folder: Path) -> list[bytes]:
    """Return the inputs that a search begins with, besides the stored ones."""
    if name == "d_text":
        return [text.encode() for text in programs()]
    if name == "stub":
        return [bytes((k % 20,)) + b"." + piece for k, piece in enumerate(PIECES)]
    return [
        compiled(folder, *flags, name=f"seed{k}").read_bytes() for k, flags in enumerate(BUILDS)
    ]


def search(name: str, runs: int) -> int:
    """Search; return the exit status: 0 if nothing fails."""
    with tempfile.TemporaryDirectory() as work:
        found = Path(work, "found")
        found.mkdir()
        kept = corpus(name)
        for number, data in enumerate([*kept, *seeds(name, Path(work))]):
            (found / f"seed-{number}").write_bytes(data)
        limits = [f"-max_len={LONGEST[name]}", f"-timeout={SECONDS}", "-rss_limit_mb=4096"]
        command = [sys.executable, "-m", "tests.fuzz.guided_inside", name, *limits]
        status = subprocess.run([*command, f"-atheris_runs={runs}", str(found)]).returncode
        new = [path for path in found.iterdir() if not path.name.startswith("seed-")]
        keep(name, [*kept, *(path.read_bytes() for path in new)])
    return status


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in TARGETS:
        return search(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
    print(f"usage: guided.py {'|'.join(TARGETS)} [RUNS]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
