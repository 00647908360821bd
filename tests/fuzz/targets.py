"""What hostile bytes reach, each as one function: bytes in, and nothing but the errors that kinst
tells users of comes out.  guided.py searches for bytes that do otherwise; test_corpora.py gives
each what such searches have found to lead elsewhere in the code."""

from __future__ import annotations

import base64
import itertools
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from kinst.core.errors import KinstError, TargetError
from kinst.dlang.syntax.source import to_text
from kinst.wire.packets import frame
from tests.dlang.d_mutations import compiles
from tests.fuzz.test_stubs import PlayedStub, converse, played
from tests.image.dwarf.test_damage import use

HERE = Path(__file__).parent
CORPORA = HERE / "corpora"
MOST = 100_000  # bytes of what is kept of a target


def d_text(data: bytes) -> None:
    """A D program, as far as it can be compiled without a kernel."""
    compiles(to_text(data))


def stub(data: bytes) -> None:
    """What a GDB stub says.  Each line of it is of one reply: how many requests are answered as
    they should be before it (a byte), how (a byte), and what is said."""
    lines = iter(data.split(b"\n"))
    waits = 0
    line = b""

    def following() -> None:
        nonlocal waits, line
        line = next(lines, b"")
        waits = line[0] if line else 1 << 30

    def change(_body: bytes, right: bytes) -> bytes:
        nonlocal waits
        if waits:
            waits -= 1
            return frame(right)
        how, said = line[1:2], line[2:]
        following()
        if how == b"r":  # raw bytes
            return said
        if how == b"b":  # behind what is right
            return frame(right + said)
        if how == b"o":  # over its beginning
            return frame(said + right[len(said) :])
        return frame(said)

    following()
    try:
        with played():
            converse(PlayedStub(change))
    except TargetError as error:
        assert "\n" not in error.message


def debug_file(data: bytes) -> None:
    """A debug file: everything that can be asked of it."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="kinst-fuzz-") as file:
        file.write(data)
        file.flush()
        try:
            use(Path(file.name))
        except KinstError as error:
            assert "\n" not in str(error)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "d_text": d_text, "stub": stub, "debug_file": debug_file,
}  # fmt: skip


def corpus(name: str) -> list[bytes]:
    """What is kept of a target's searches."""
    kept = CORPORA / f"{name}.txt"
    lines = kept.read_text().split() if kept.exists() else []
    return [zlib.decompress(base64.b64decode(line)) for line in lines]


def keep(name: str, found: Iterable[bytes]) -> None:
    """In place of what was kept: a line for each, the shortest, as many as there is room for."""
    packed = sorted((zlib.compress(data, 9) for data in set(found) if data), key=len)
    room = itertools.accumulate(len(data) * 4 // 3 for data in packed)
    lines = [
        base64.b64encode(d).decode() for d, end in zip(packed, room, strict=True) if end < MOST
    ]
    CORPORA.mkdir(exist_ok=True)
    (CORPORA / f"{name}.txt").write_text("\n".join(lines) + "\n")
