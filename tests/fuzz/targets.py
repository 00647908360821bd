"""Entry points for hostile bytes, each as one function: bytes in, and only errors for users out.

guided.py searches for bytes that cause anything else; test_corpora.py gives each function the
inputs that such searches have found to reach other code.
"""

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
MOST = 100_000  # bytes of stored inputs of a target


def d_text(data: bytes) -> None:
    """Compile a D program, as far as possible without a kernel."""
    compiles(to_text(data))


def stub(data: bytes) -> None:
    """Play a GDB stub that sends these bytes.

    Each line is about one reply: how many requests are answered correctly before it (a byte), how
    (a byte), and the text.
    """
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
        if how == b"b":  # after the right reply
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
    """Ask a debug file for everything."""
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
    """Return the stored inputs of a target's searches."""
    kept = CORPORA / f"{name}.txt"
    lines = kept.read_text().split() if kept.exists() else []
    return [zlib.decompress(base64.b64decode(line)) for line in lines]


def keep(name: str, found: Iterable[bytes]) -> None:
    """Replace the stored inputs: a line for each, the shortest first, as many as there is room
    for."""
    packed = sorted((zlib.compress(data, 9) for data in set(found) if data), key=len)
    room = itertools.accumulate(len(data) * 4 // 3 for data in packed)
    lines = [
        base64.b64encode(d).decode() for d, end in zip(packed, room, strict=True) if end < MOST
    ]
    CORPORA.mkdir(exist_ok=True)
    (CORPORA / f"{name}.txt").write_text("\n".join(lines) + "\n")
