"""A search of guided.py's in a separate process, which libFuzzer ends: TARGET ARGUMENTS."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# numba compiles the code in `scan`, which Atheris would change before.
with atheris.instrument_imports(include=["kinst"], exclude=["kinst.image.dwarf.scan"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, arguments = sys.argv[1], sys.argv[2:]
    first = min(Path(arguments[-1]).iterdir())
    TARGETS[name](first.read_bytes())  # numba compiles now, outside of any input's time
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
