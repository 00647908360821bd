"""Which callers' values are used, and where none is: C made for it, and objdump's view of where
calls return to."""

from __future__ import annotations

import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.locals import Local
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame
from kinst.image.dwarf.entry_values import MOST_CALLS, MOST_TAIL_CALLS, UNKNOWN
from kinst.isa import load
from kinst.session.expand import call_convention
from tests.gdb_rig import Pair
from tests.image.dwarf.test_locals import REGISTERS, Known, built

# Parameters of the called functions are dead after the first line: only callers know them.
BEGIN = """
#ifdef __clang__
#define ALONE __attribute__((noinline))
#else
#define ALONE __attribute__((noipa))
#endif
#include <stdio.h>
static volatile long sum;
ALONE static void sink(long n) { sum += n; __asm__ volatile("" ::: "memory"); }
"""
LOST = "{ sink(number + 2 * small); sink(1); sink(sum & 3); return sum; }"
CALLEE = f"ALONE static long callee(long number, int small) {LOST}\n"


def known(folder: Path, text: str, *flags: str, compiler: str = "gcc") -> Known:
    source = folder / "callers.c"
    source.write_text(BEGIN + text)
    return Known(built(folder, compiler, "-O2", "-g", *flags, source=source))


def at_end(program: Known, function: str, variable: str) -> Local:
    """Find a variable at its function's last instruction that is not the return."""
    (row,) = program.elf.symbols.indexes(function)
    low, size = int(program.elf.symbols.address[row]), int(program.elf.symbols.size[row])
    lines = disassembled(program, low, low + size)
    address = next(at for at, text in reversed(lines) if "sum" in text)
    found = program.find(Pair(function, address, address - low, variable))
    assert found is not None
    return found


def disassembled(program: Known, low: int, high: int) -> list[tuple[int, str]]:
    limits = [f"--start-address={low}", f"--stop-address={high}"]
    shown = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", *limits, program.elf.path],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = (re.match(r"\s*([0-9a-f]+):\s+(.*)", line) for line in shown.splitlines())
    return [(int(row[1], 16), row[2]) for row in rows if row]


def passed(program: Known, callee: str, register: str) -> dict[int, int]:
    """Return the constant that each call passes in a register, by its return address."""
    text = program.elf.section(".text")
    assert text is not None
    lines = disassembled(program, text.address, text.end)
    found, value = {}, -1
    for (_, line), (behind, _) in itertools.pairwise(lines):
        if row := re.match(rf"mov +\$(0x[0-9a-f]+),%{register}$", line):
            value = int(row[1], 16)
        elif re.match(rf"xor +%{register},%{register}$", line):
            value = 0
        elif re.match(rf"call.*<{callee}>", line):
            found[behind] = value
    return found


def told(text: str) -> dict[int, int]:
    """Return the constants by return address in a D expression that chooses among them."""
    found: dict[int, int] = {}
    while row := re.fullmatch(r"\(((?:[^?])*) \? (\w+) : (.*)\)", text):
        places = re.findall(r"== (\w+)", row[1])
        found |= {int(at.rstrip("ul"), 16): int(row[2].rstrip("ul"), 0) for at in places}
        text = row[3]
    assert text == UNKNOWN
    return found


@pytest.mark.parametrize("count", [1, MOST_CALLS, MOST_CALLS + 1])
def test_as_many_callers_as_are_looked_at(count: int, tmp_path: Path) -> None:
    calls = "".join(
        f"ALONE static void caller{k}(void) {{ sum += callee({k % 2}, {k % 3}); sink(2); }}\n"
        for k in range(count)
    )
    calls += f"int main(void) {{ {' '.join(f'caller{k}();' for k in range(count))} return 0; }}\n"
    program = known(tmp_path, CALLEE + calls)
    for name, register in (("number", "edi"), ("small", "esi")):
        found = at_end(program, "callee", name)
        if count > MOST_CALLS:
            assert found.reason == (
                f"only its value at the function's entry is known, and {count} places call it"
            )
            continue
        (piece,) = found.pieces
        assert piece.kind == "value" and told(piece.text) == passed(program, "callee", register)
        assert len(told(piece.text)) == count


def chain(length: int, last: str) -> str:
    """Return functions that end in calls of the next, and a given last one."""
    ends = [f"ALONE static long end{length}(long number) {{ sink(number + 9); {last} }}\n"]
    ends += [
        f"ALONE static long end{k}(long number) {{ sink({k}); return end{k + 1}(number + 1); }}\n"
        for k in range(length - 1, 0, -1)
    ]
    return "".join(ends)


MAIN = "int main(int argc, char **argv) { sum += callee(77, 5); sink(2); return 0; }\n"
TAIL = CALLEE.replace("return sum;", "sum++; return end1(7);")


@pytest.mark.parametrize("length", [1, 2, MOST_TAIL_CALLS, MOST_TAIL_CALLS + 1])
def test_as_many_tail_calls_as_are_looked_at(length: int, tmp_path: Path) -> None:
    program = known(tmp_path, chain(length, "return 3;") + TAIL + MAIN)
    found = at_end(program, "callee", "number")
    if length > MOST_TAIL_CALLS:
        assert found.reason.endswith(", and it may call itself at its end")
        return
    (piece,) = found.pieces
    assert told(piece.text) == passed(program, "callee", "edi") and len(told(piece.text)) == 1


LATER = "long callee(long number, int small);\n"
OPEN = CALLEE.replace("static ", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # It calls itself through one other function and through several.
        (LATER + chain(1, "return callee(sum, 1);") + TAIL.replace("static ", "") + MAIN,
         ", and it may call itself at its end"),
        (LATER + chain(3, "return callee(sum, 1);") + TAIL.replace("static ", "") + MAIN,
         ", and it may call itself at its end"),
        # gcc does not describe tail calls through memory, and so does not claim to describe all.
        ("long (*volatile other)(long);\n" + CALLEE.replace("return sum;", "return other(sum);")
         + MAIN, ", and its tail calls are not"),
        # The function of its tail call has no debug information.
        ("#include <stdlib.h>\n" + CALLEE.replace("return sum;", "sum++; return labs(7 - small);")
         .replace("sink(number + 2 * small)", "sink(number)") + MAIN,
         ", and it ends in a call to a function without debug information"),
        # No call of it can be identified.
        ("long callee(long, int);\nlong (*volatile it)(long, int) = callee;\n" + OPEN
         + "int main(void) { return (int)it(1, 2); }\n", ""),
    ],
    ids=["by one other", "by three others", "by a pointer", "by the C library", "uncalled"],
)  # fmt: skip
def test_where_callers_are_not_believed(text: str, said: str, tmp_path: Path) -> None:
    found = at_end(known(tmp_path, text, "-fno-builtin"), "callee", "number")
    assert found.pieces == ()
    assert found.reason == f"only its value at the function's entry is known{said}"


def test_what_a_caller_was_given_itself(tmp_path: Path) -> None:
    """A caller that passes on its own parameter describes it as its value at its own entry, which
    only the caller's caller could tell."""
    text = CALLEE + "ALONE static void passes(long n) { sum += callee(n, 5); sink(2); }\n"
    text += "int main(void) { passes(7); return 0; }\n"
    program = known(tmp_path, text)
    shown = subprocess.run(
        ["readelf", "--debug-dump=info", program.elf.path], capture_output=True, text=True
    ).stdout
    assert "DW_OP_GNU_entry_value" in shown or "DW_OP_entry_value" in shown
    found = at_end(program, "callee", "number")
    said = "only its value at the function's entry is known"
    assert found.pieces == () and found.reason == f"{said} ({said})"
    (piece,) = at_end(program, "callee", "small").pieces
    assert told(piece.text) == passed(program, "callee", "esi")


AT_THE_END = """
ALONE __attribute__((noreturn)) static void callee(char *number, int small)
{ sink(*number + 2 * small); sink(1); sink(sum & 3); for (;;) sum++; }
ALONE static void caller(void)
{
    char room[40];
    for (unsigned k = 0; k < sizeof room; k++) room[k] = (char)(k + sum);
    callee(room + 8, 5);
}
int main(void) { caller(); return 0; }
"""


def test_a_call_that_ends_its_function(tmp_path: Path) -> None:
    """It returns to a place outside of the caller, whose frame is known at the call.  DWARF 2 has a
    location list for the frame base, which ends there; later versions use the unwinder's."""
    found = []
    for version in (2, 3, 4, 5):
        program = known(tmp_path, AT_THE_END, f"-gdwarf-{version}")
        (number,) = at_end(program, "callee", "number").pieces
        (small,) = at_end(program, "callee", "small").pieces
        (caller,) = program.elf.symbols.indexes("caller")
        symbols = program.elf.symbols
        end = int(symbols.address[caller]) + int(symbols.size[caller])
        assert told(small.text) == {end: 5}
        found.append(number.text)
    assert len(set(found)) == 1


def test_files_of_modules(tmp_path: Path) -> None:
    """Callers are not looked up by address: the files have no addresses before they are loaded."""
    program, asked = known(tmp_path, CALLEE + MAIN), list[int]()

    def returns(code: bytes, address: int, target: int) -> list[int]:
        asked.append(target)
        return []

    convention = replace(call_convention(load("amd64")), returns=returns)
    for base in (DebugInfo(program.elf.path), None):
        found = DebugInfo(program.elf.path, "made", base).locals(REGISTERS, convention)
        assert found is not None
        program.locals = found
        reason = "only its value at the function's entry is known"
        assert at_end(program, "callee", "number").reason == reason
        assert set(asked) == ({program.elf.address("callee")} if base is None else set())


def test_a_frame_that_the_unwinder_does_not_know(tmp_path: Path) -> None:
    """A variable in the frame cannot be read; one in a register can."""
    text = "ALONE int asks(int own) { int there = own + 1; sink(there); return there; }\n"
    program = known(tmp_path, text + "int main(void) { return asks(2); }\n", "-O0")
    (row,) = program.elf.symbols.indexes("asks")
    low = int(program.elf.symbols.address[row])
    frame = InspectedFrame(low, True, None, int)
    for name in ("own", "there"):
        found = program.locals.find("asks", frame, name)
        assert found is not None and found.pieces == ()
        assert found.reason == (
            "it is in the stack frame, and the unwinder does not know the frame here"
        )


def test_what_is_elsewhere(tmp_path: Path) -> None:
    """A variable that a function only declares is not a local one; another one may be."""
    text = "int elsewhere = 9; int other = 8;\n"
    text += "ALONE int asks(int own) { extern int elsewhere; sink(own); return elsewhere + own; }\n"
    program = known(tmp_path, text + "int main(void) { return asks(2); }\n", "-O0")
    (row,) = program.elf.symbols.indexes("asks")
    low, size = int(program.elf.symbols.address[row]), int(program.elf.symbols.size[row])
    for address in range(low, low + size):
        found = program.find(Pair("asks", address, address - low, "elsewhere"))
        assert found is not None and found.pieces == () and str(found.type) == "int"
        assert found.reason == "it is declared here and defined elsewhere: `name reads it"
        assert program.find(Pair("asks", address, address - low, "other")) is None
    assert program.locals.names("asks", low) == ["own", "elsewhere"]
    assert program.locals.names_in("asks") == ["own", "elsewhere"]


@pytest.mark.full
def test_an_indirect_call_at_the_end(tmp_path: Path) -> None:
    """clang describes it, and that its target is not known."""
    text = OPEN.replace("return sum;", "return other(sum);").replace("ALONE static", "ALONE")
    text = "long (*volatile other)(long);\n" + text
    found = at_end(known(tmp_path, text + MAIN, compiler="clang"), "callee", "number")
    assert found.pieces == ()
    assert found.reason.endswith("entry is known, and it ends in an indirect call")
