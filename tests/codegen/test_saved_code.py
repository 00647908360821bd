"""Machine code in the cache: a second process gets what LLVM made, without loading LLVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kinst.codegen import saved_code
from kinst.codegen.saved_code import ObjectCode, SavedCode

CODE = ObjectCode(b"\x90\xc3" * 40, {"f": 0, "g": 2}, {"f": 2, "g": 78})
COMPILE = """
import sys
from dataclasses import replace
from pathlib import Path
from kinst.codegen.compile import compile_functions
from kinst.codegen.ssa import IrFunction
from tests.codegen.codegen_rig import TargetRig, program
code = IrFunction("f", (), 64, "ccc", internal=False)
code.ret(code.asm("movabsq $$" + sys.argv[2] + ", $0", "=r"))
machine = TargetRig(program([]), {1: (0,)}).target_machine()
machine = replace(machine, llvm_options=(), saved_code=Path(sys.argv[1]))
import kinst.codegen.compile as compiling
calls = []
real = compiling._llvm
compiling._llvm = lambda: calls.append(1) or real()
print(compile_functions([code], machine)["f"].hex(), len(calls))
"""


def compiled(folder: Path, number: int) -> tuple[str, int]:
    """Compile a function that returns a number in another process; return its code, and how often
    LLVM was asked for."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder), str(number)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, calls = done.stdout.split()
    return code, int(calls)


def test_the_second_process_does_not_ask_llvm(tmp_path: Path) -> None:
    first, second = compiled(tmp_path, 0x1122334455667788), compiled(tmp_path, 0x1122334455667788)
    assert (first[1], second[1]) == (1, 0)
    assert first[0] == second[0] and "8877665544332211" in first[0]
    other = compiled(tmp_path, 0x0102030405060708)
    assert other[1] == 1 and "0807060504030201" in other[0]


def test_damaged_and_foreign_files_are_not_read(tmp_path: Path) -> None:
    saved = SavedCode(tmp_path, ["assembly", "triple"])
    assert saved.load() is None
    saved.save(CODE)
    assert saved.load() == CODE
    assert SavedCode(tmp_path, ["assembly", "another triple"]).load() is None
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        assert saved.load() is None
        file.write_bytes(data[:at])
        assert saved.load() is None


def test_the_oldest_files_are_deleted(tmp_path: Path) -> None:
    for number in range(saved_code.MOST_FILES + 1):
        (tmp_path / f"{number}.code").touch()
        os.utime(tmp_path / f"{number}.code", (number, number))
    SavedCode(tmp_path, ["new"]).save(CODE)
    left = {one.name for one in tmp_path.iterdir()}
    assert len(left) == saved_code.MOST_FILES
    assert not left & {"0.code", "1.code"} and "2.code" in left


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    SavedCode(tmp_path / "file", ["assembly"]).save(CODE)
    assert SavedCode(tmp_path / "file", ["assembly"]).load() is None
