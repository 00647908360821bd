"""The code of a kernel's vmlinux: functions of .text, and their distinct instruction forms."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import capstone

import kinst
from kinst.core.isa import Isa
from kinst.core.paths import cache_folder
from kinst.kernels.fetch import prepared

VARIABLE = "KINST_TEST_VMLINUX"
STT_FUNC = 2
NUMBER = re.compile(r"0x[0-9a-f]+|\b\d+\b")
REGISTER = re.compile(r"[a-z]+\d*[a-z]*")


def find_vmlinux(isa: str = "amd64") -> Path:
    """Return $KINST_TEST_VMLINUX (amd64), or the vmlinux of the usual kernel of this ISA."""
    named = os.environ.get(VARIABLE) if isa == "amd64" else None
    if named:
        return Path(named)
    found = prepared(isa)
    if found is None:
        raise FileNotFoundError(f"no kernel for {isa} in the cache")
    return found.debug


@dataclass(frozen=True, slots=True)
class Text:
    """.text at its linked address, and its functions as (address, size, name)."""

    address: int
    code: bytes
    functions: tuple[tuple[int, int, str], ...]


@dataclass(slots=True)
class Form:
    """A distinct instruction form.

    Attributes:
        key: mnemonic, operands with numbers replaced and registers by class, length.
        count: how often it occurs.
    """

    key: str
    address: int
    code: bytes
    text: str
    count: int = 0
    others: list[tuple[int, bytes]] = field(default_factory=list)


def read_text(path: Path) -> Text:
    """Read .text and its function symbols, by the ELF specification (no library)."""
    with path.open("rb") as file:
        head = file.read(64)
        offset, size, number, names_at = (
            struct.unpack_from("<Q", head, 40)[0],
            *struct.unpack_from("<HHH", head, 58),
        )
        file.seek(offset)
        table = file.read(size * number)
        headers = [struct.unpack_from("<IIQQQQII", table, i * size) for i in range(number)]

        def content(index: int) -> bytes:
            file.seek(headers[index][4])
            return file.read(headers[index][5])

        names = content(names_at)
        index = {names[h[0] : names.index(b"\0", h[0])]: i for i, h in enumerate(headers)}
        text, symbols = index[b".text"], index[b".symtab"]
        strings = content(headers[symbols][6])
        functions = {}
        for name, info, _, section, value, length in struct.iter_unpack(
            "<IBBHQQ", content(symbols)
        ):
            if section == text and info & 15 == STT_FUNC and length:
                end = strings.index(b"\0", name)
                functions[value] = (value, length, strings[name:end].decode())
        address = headers[text][3]
        return Text(address, content(text), tuple(sorted(functions.values())))


def extents(text: Text) -> Iterator[tuple[int, int]]:
    """Return (start, end) of functions, without overlaps."""
    end = 0
    for address, size, _ in text.functions:
        start, end = max(address, end), max(address + size, end)
        if start < end:
            yield start, end


def assert_padding(text: Text, start: int, end: int) -> None:
    """Check that bytes that decode() leaves out are breakpoints."""
    left = text.code[start - text.address : end - text.address]
    assert not left.strip(b"\xcc"), f"the kernel's text does not decode at {start:#x}"


def spelled_forms(text: Text, isa: Isa) -> dict[tuple[int, str], Form]:
    """Return every (length, text without its numbers) of the functions, which must decode
    wholly."""
    forms: dict[tuple[int, str], Form] = {}
    numberless: dict[str, str] = {}
    for start, end in extents(text):
        at = start
        for found in isa.decode(text.code[start - text.address : end - text.address], start):
            short = numberless.get(found.text)
            if short is None:
                short = numberless[found.text] = NUMBER.sub("N", found.text)
            key = (len(found.code), short)
            form = forms.get(key)
            if form is None:
                form = forms[key] = Form("", found.address, found.code, found.text)
            form.count += 1
            assert_padding(text, at, found.address)
            at = found.end
        assert_padding(text, at, end)
    return forms


def _classes() -> dict[str, str]:
    found: dict[str, str] = {}
    special = ("rax", "rsp", "rbp", "r12", "r13", "rip")
    low = {"a": "rax", "c": "rcx", "d": "rdx", "b": "rbx"}
    for letter, wide in low.items():
        kind = wide if wide in special else "low"
        found |= {f"r{letter}x": f"{kind}:8", f"e{letter}x": f"{kind}:4", f"{letter}x": f"{kind}:2"}
        found |= {f"{letter}l": f"{kind}:1", f"{letter}h": "high:1"}
    for name in ("si", "di", "sp", "bp"):
        kind = f"r{name}" if f"r{name}" in special else "low"
        found |= {f"r{name}": f"{kind}:8", f"e{name}": f"{kind}:4", name: f"{kind}:2"}
        found[f"{name}l"] = "rex:1"
    for number in range(8, 16):
        kind = f"r{number}" if f"r{number}" in special else "ext"
        found |= {
            f"r{number}{s}": f"{kind}:{n}" for s, n in (("", 8), ("d", 4), ("w", 2), ("b", 1))
        }
    found["cl"] = "cl"  # shifts by cl
    return found


CLASS = _classes()


def forms(text: Text, isa: Isa) -> list[Form]:
    """Return distinct forms with registers by class; `others` keeps the spelled forms of each."""
    grouped: dict[str, Form] = {}
    for (size, spelling), spelled in spelled_forms(text, isa).items():
        kinds = REGISTER.sub(lambda m: CLASS.get(m.group(0), m.group(0)), spelling)
        key = f"{kinds} ({size})"
        form = grouped.get(key)
        if form is None:
            form = grouped[key] = Form(key, spelled.address, spelled.code, spelled.text)
        form.count += spelled.count
        form.others.append((spelled.address, spelled.code))
    return list(grouped.values())


def kept_forms(text: Text, isa: Isa) -> list[Form]:
    """Return forms(), cached from one run of the tests to the next.

    Decoding the whole text takes each process ten seconds.  The cache is renewed for another
    kernel, and when any code that decodes has changed.
    """
    key = hashlib.sha256(text.code)
    package = Path(kinst.__file__).parent
    decoded = package / "core/instruction.py"
    sources = [decoded, *sorted((package / "isa" / isa.name).glob("*.py"))]
    sources += sorted((package / "isa").glob("*.py"))
    for source in (*sources, Path(__file__)):
        key.update(source.read_bytes())
    key.update(f"{capstone.__version__} {version('iced-x86')} {text.address}".encode())
    kept = cache_folder() / "tests" / f"forms-{isa.name}-{key.hexdigest()[:16]}"
    if kept.exists():
        found: list[Form] = pickle.loads(kept.read_bytes())
        return found
    found = forms(text, isa)
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob(f"forms-{isa.name}-*"):
        if old != kept:
            old.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(pickle.dumps(found))
    Path(file.name).rename(kept)
    return found
