"""Machine code that LLVM has made before, as files in the cache.

llvmlite takes a twelfth of a second to load, and LLVM a fortieth to compile a short program. If a
program is traced again on an equal guest, its LLVM assembly is the same, addresses included, and
the code comes from a file.

A file has four parts: the SHA-256 of the other three parts, the length of the third part, the
names, offsets and sizes of the functions (JSON), and the code.

A file's name is the SHA-256 of everything that the code depends on: the assembly, the target, the
options, LLVM's library, and the module that calls LLVM.

Tested by tests/codegen/test_saved_code.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.whole_files import PART, whole_file

FOLDER = "clauses"  # of the cache folder
MOST_FILES = 500  # the files that were not used for longest are deleted first
_SUFFIX = ".code"
_DIGEST = hashlib.sha256().digest_size
_CALLER = "llvm_calls.py"


class ObjectError(Exception):
    """Error: LLVM's object file has relocations or data besides code, so the code would not run
    where kinst copies it.
    """


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Machine code of the functions of one ELF object.

    Attributes:
        code: the bytes of the text section.
        offsets: offset of each function in `code`, by name.
        sizes: bytes of each function, by name.
    """

    code: bytes
    offsets: dict[str, int]
    sizes: dict[str, int]


@cache
def _compiler() -> bytes | None:
    """Return bytes that differ for different versions of LLVM's library and of the module that
    calls LLVM (llvm_calls.py). They are the path, size and time of the library's file, and the
    module's source. None if these files are not in their usual places.

    kinst does not import llvmlite or the module for this, since importing takes long.
    """
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    try:
        library = next(Path(spec.origin).parent.glob("binding/libllvmlite.*"))
        status = library.stat()
        caller = Path(__file__).with_name(_CALLER).read_bytes()
    except (OSError, StopIteration):
        return None
    return f"{library} {status.st_size} {status.st_mtime_ns} ".encode() + caller


class SavedCode:
    """A file in the cache for the machine code of one LLVM assembly; it need not exist yet."""

    def __init__(self, folder: Path, parts: Sequence[str]) -> None:
        """Compute the file's name; read and write nothing.

        Args:
            folder: the folder of the cache that has the files of machine code.
            parts: the assembly, and everything else that its machine code depends on.
        """
        compiler = _compiler()
        self._file: Path | None = None
        if compiler is not None:
            key = hashlib.sha256(json.dumps(parts).encode() + compiler).hexdigest()
            self._file = folder / f"{key}{_SUFFIX}"

    def load(self) -> ObjectCode | None:
        """Return the code; None if it is not there, or its file is damaged."""
        if self._file is None:
            return None
        try:
            data = self._file.read_bytes()
            os.utime(self._file)  # mark it as used
        except OSError:
            return None
        body = data[_DIGEST:]
        if len(body) < 4 or hashlib.sha256(body).digest() != data[:_DIGEST]:
            return None
        end = 4 + int.from_bytes(body[:4], "little")
        offsets, sizes = json.loads(body[4:end])
        return ObjectCode(body[end:], offsets, sizes)

    def save(self, code: ObjectCode) -> None:
        """Save the code, unless the folder cannot be written."""
        if self._file is None:
            return
        names = json.dumps([code.offsets, code.sizes]).encode()
        body = len(names).to_bytes(4, "little") + names + code.code
        with suppress(OSError):
            with whole_file(self._file) as file:
                file.write(hashlib.sha256(body).digest() + body)
            self._tidy(self._file.parent)

    @staticmethod
    def _tidy(folder: Path) -> None:
        files = [one for one in folder.iterdir() if one.suffix in (_SUFFIX, PART)]
        if len(files) > MOST_FILES:
            files.sort(key=lambda one: one.stat().st_mtime)
            for old in files[: len(files) - MOST_FILES]:
                old.unlink(missing_ok=True)
