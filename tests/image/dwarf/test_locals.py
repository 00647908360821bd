"""Locations of local variables: at every instruction that a program runs, kinst's value is gdb's;
gcc and clang, several levels, DWARF 4 and 5."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.locals import Local, LocalPiece
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame, open_cfi
from kinst.image.dwarf.expressions import Base, ExpressionContext, NotHereError, pieces_of
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.elf import open_elf
from kinst.isa import load
from kinst.session.expand import call_convention
from tests import ROOT
from tests.gdb_rig import Pair, gdb_with, reached, report

SOURCE = ROOT / "tests/c/locals.c"
FUNCTIONS = ("plain", "pieces", "memory", "inlined", "entry", "walk", "real")
# Reasons for variables in vector registers, which probes lack, for values that only a caller knows,
# and for pointers to variables that are not in memory.
REFUSED = (
    "it is in a register that probes do not have",
    "only its value at the function's entry is known",
    "it points to a variable that is optimised out",
)
REGISTERS = load("amd64").dwarf_registers


def built(
    folder: Path, compiler: str, *flags: str, source: Path = SOURCE, eh_frame: bool = False
) -> Path:
    """Build the program.

    Args:
        eh_frame: call frames are in .eh_frame, not in .debug_frame.
    """
    program = folder / "locals"
    command = [compiler, *flags, "-static", "-no-pie", "-fcf-protection=none", "-o", str(program),
               str(source), f"-f{'' if eh_frame else 'no-'}asynchronous-unwind-tables"]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)
    return program


class Known:
    """kinst's answers for a linked program."""

    def __init__(self, program: Path) -> None:
        self.elf = open_elf(program)
        self._cfi = open_cfi(self.elf)
        found = DebugInfo(program).locals(REGISTERS, call_convention(load("amd64")))
        assert found is not None
        self.locals: DwarfLocals = found

    def find(self, pair: Pair, inlined: str = "") -> Local | None:
        rule = self._cfi.rule(pair.address) if self._cfi else None
        cfa = None if rule is None else f"(regs[{REGISTERS[rule.register]}] + {rule.offset})"
        frame = InspectedFrame(pair.address, pair.offset == 0, cfa, int)
        return self.locals.find(pair.function, frame, pair.name, inlined)


def said(program: Path, functions: Sequence[str] = FUNCTIONS) -> list[Pair]:
    """Return both answers for every variable at every instruction of the functions that is
    reached."""
    known = Known(program)
    with gdb_with("-ex", "break main", "-ex", "run", str(program)) as gdb:
        pairs = []
        for function in functions:
            (at,) = known.elf.symbols.indexes(function)
            low, size = int(known.elf.symbols.address[at]), int(known.elf.symbols.size[at])
            for address, names in gdb("code", low, size):
                pairs += [Pair(function, address, address - low, name) for name in names]
        for pair in pairs:
            pair.ask(known.find)
        return reached(gdb, pairs, "finished", 1)


CASES = [
    *itertools.product(["gcc"], ["-O0", "-O1", "-O2", "-O3"], [4, 5]),
    *(
        pytest.param("clang", level, version, marks=pytest.mark.full)
        for level, version in itertools.product(["-O0", "-O2"], [4, 5])
    ),
]


@pytest.mark.parametrize(("compiler", "level", "version"), CASES)
def test_as_gdb_says(tmp_path: Path, compiler: str, level: str, version: int) -> None:
    pairs = said(built(tmp_path, compiler, level, f"-gdwarf-{version}"))
    print(report(pairs))
    outcomes = [pair.outcome for pair in pairs]
    assert len(pairs) > 300
    assert "different" not in outcomes
    assert outcomes.count("equal") > len(pairs) // 3
    refused = [p for p in pairs if p.outcome == "refused"]
    assert all(p.reason.startswith(REFUSED) for p in refused), report(pairs)
    if level == "-O0":
        assert not refused


def test_as_gdb_says_by_eh_frame(tmp_path: Path) -> None:
    program = built(tmp_path, "gcc", "-O2", "-gdwarf-5", eh_frame=True)
    # On some machines the C library's files have a .debug_frame of their own: not here.
    assert open_elf(program).section(".debug_frame") is None
    outcomes = [pair.outcome for pair in said(program)]
    assert "different" not in outcomes and outcomes.count("equal") > len(outcomes) // 3


def test_scopes(tmp_path: Path) -> None:
    """Shadowed names, inlined functions' own variables, statics: by name and by function."""
    known = Known(built(tmp_path, "gcc", "-O2", "-gdwarf-5"))
    symbols = known.elf.symbols
    (at,) = symbols.indexes("inlined")
    low, size = int(symbols.address[at]), int(symbols.size[at])
    seen = set()
    for address in range(low, low + size):
        for name, inlined in (("number", ""), ("number", "twice"), ("outer", ""), ("calls", "")):
            found = known.find(Pair("inlined", address, address - low, name), inlined)
            if found is not None:
                seen.add((name, found.function))
        assert known.find(Pair("inlined", address, address - low, "wide")) is None
    assert seen == {("number", "twice"), ("outer", "inlined"), ("calls", "twice")}
    assert known.locals.names("inlined", low)[-1] in ("outer", "once", "again")
    assert str(known.locals.type_in("plain", "second")) == "unsigned char"
    assert str(known.locals.type_in("pieces", "odd")) == "struct bits"
    assert str(known.locals.type_in("inlined", "result")) == "int"
    assert known.locals.type_in("plain", "nothing") is None


def context(at_entry: bool = False) -> ExpressionContext:
    def nothing() -> str:
        raise NotHereError("no frame")

    return ExpressionContext(
        REGISTERS, lambda: "FB", nothing, at_entry, lambda at: Base(4, True), int, int
    )


RBX, RDI = "regs[R_RBX]", "regs[R_RDI]"


@pytest.mark.parametrize(
    ("code", "pieces"),
    [
        ("53", [("value", RBX, 0)]),  # reg3
        ("7378", [("memory", f"({RBX} - 8)", 0)]),  # breg3 -8
        ("9110", [("memory", "(FB + 16)", 0)]),  # fbreg 16
        ("0300100000000000009f", [("value", "0x1000ull", 0)]),  # addr, stack_value
        ("539304559304", [("value", RBX, 4), ("value", RDI, 4)]),  # two pieces
        ("9304539304", [("", "", 4), ("value", RBX, 4)]),  # the first one is lost
        ("9e02feff", [("value", "0xfffeull", 0)]),  # implicit_value
        ("9e0801000000000000ff", [("value", "0xff00000000000001ull", 0)]),  # of 8 bytes
        ("55f0", [("value", RDI, 0)]),  # GNU_uninit: a register of which gcc saw no write
        ("09ff9f", [("value", "0xffffffffffffffffull", 0)]),  # const1s -1
        ("700006231094019f", None),  # deref of what is behind a breg; then a size
        ("7300129c22", None),  # needs the CFA
    ],
)
def test_expressions(code: str, pieces: list[tuple[str, str, int]] | None) -> None:
    """DWARF 5, section 2.6 and its examples in appendix D."""
    if pieces is None:
        with_frame = code.startswith("73")
        if with_frame:
            with pytest.raises(NotHereError, match="no frame"):
                pieces_of(bytes.fromhex(code), context())
        else:
            (piece,) = pieces_of(bytes.fromhex(code), context())
            assert piece.kind == "value" and "uint8_t" in piece.text and "+ 16" in piece.text
        return
    assert pieces_of(bytes.fromhex(code), context()) == tuple(LocalPiece(*p) for p in pieces)


def test_entry_values() -> None:
    code = bytes.fromhex("a301559f")
    assert pieces_of(code, context(at_entry=True)) == (LocalPiece("value", RDI),)
    with pytest.raises(NotHereError, match="only its value at the function's entry"):
        pieces_of(code, context())


def test_constants_that_are_too_long() -> None:
    with pytest.raises(NotHereError, match="it is a constant of more than 8 bytes"):
        pieces_of(bytes([0x9E, 9, *range(9)]), context())


@pytest.mark.parametrize("code", ["", "ff", "03", "22", "93", "a0", "9c", "2f0080", "12", "9e7f"])
def test_damage_is_refused(code: str) -> None:
    with pytest.raises((NotHereError, KinstError)):
        pieces_of(bytes.fromhex(code), context())
