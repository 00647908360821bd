"""A search of guided.py's, in a process of its own, which libFuzzer ends: TARGET ARGUMENTS."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# numba compiles what is in scan; Atheris would change it before.
with atheris.instrument_imports(include=["kinst"], exclude=["kinst.image.dwarf.scan"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, arguments = sys.argv[1], sys.argv[2:]
    first = min(Path(arguments[-1]).iterdir())
    TARGETS[name](first.read_bytes())  # numba compiles now, which is no input's time
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
