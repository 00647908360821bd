"""kinst -d -e on C files, without a target.

Output is compared with the tables in tests/c/copies.c, and with a run of the compiled code in an
emulator.  How often one call enters each inline function is derived by hand from the source
(TIMES); every entry is left again.  So the printed sites for entry, and those for return with
their conditions, must each be passed that often.  Optimisers may compile the beginning of a copy
twice (its mark is then there twice); DWARF names only one of them as the entry, so that fewer
entries than calls are seen, and as many returns.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import unicorn
from unicorn import x86_const as x86

from kinst.cli.command import main
from kinst.image.elf_file import PT_LOAD, open_file
from tests.fake_kernel import evaluate
from tests.image.dwarf_made import COPIES, compiled, marks, symbols, table

BUILDS = [
    pytest.param(
        (compiler, f"-O{level}", f"-gdwarf-{version}"),
        marks=pytest.mark.full if compiler == "clang" else (),
        id=f"{compiler} -O{level} -gdwarf-{version}",
    )
    for compiler in ("gcc", "clang")
    for level in (1, 2, 3)
    for version in (4, 5)
]
INLINES = ("early", "loop", "outer", "visible", "rare")
# Entries of one call, by copies.c: function(argument) -> how often each inline function is
# entered.
TIMES: dict[str, Callable[[int], dict[str, int]]] = {
    "simple": lambda x: {"early": 1},
    # data[] is all zeros, so loop() has no rounds but is entered each time.
    "looping": lambda x: {"loop": max(x, 0)},
    "nested": lambda x: {"outer": 1, "early": 1, "loop": 1},
    "twice": lambda x: {"outer": 2, "early": 2},
    "recursive": lambda x: {"visible": 1, "early": max(x - 1, 0)},
    "unlikely": lambda x: {"rare": 1} if x == 12345 else {"visible": 1},
}
ARGUMENTS = {
    "simple": (-5, 0, 5), "looping": (-1, 0, 1, 7), "nested": (-3, 3, 7, 40, 70),
    "twice": (-9, 5, 6, 20), "recursive": (-2, 0, 1, 2, 3, 9), "unlikely": (0, 12345, -12345),
}  # fmt: skip
STACK, END, PAGE = 0x7000_0000, 0x7100_0000, 0x1000
REGISTERS = {
    "RAX": x86.UC_X86_REG_RAX, "RBX": x86.UC_X86_REG_RBX, "RCX": x86.UC_X86_REG_RCX,
    "RDX": x86.UC_X86_REG_RDX, "RSI": x86.UC_X86_REG_RSI, "RDI": x86.UC_X86_REG_RDI,
    "RFL": x86.UC_X86_REG_EFLAGS,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate cache: no later run can use the indexes of this module's files."""
    monkeypatch.setattr(
        "kinst.session.file_image.cache_folder", lambda: tmp_path_factory.getbasetemp() / "indexes"
    )


@dataclass(frozen=True)
class Place:
    """One printed description: its site, and the predicate above its clause."""

    function: str
    offset: int
    condition: str


def shown(capsys: pytest.CaptureFixture[str], path: Path, text: str) -> str:
    status = main(["-d", "-e", "--debug", str(path), "-n", text])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def disassembly(path: Path, *words: str) -> str:
    command = ["objdump", "-d", "--no-show-raw-insn", *words, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def places(out: str) -> list[Place]:
    """Return the kinst probes of a printed program; the program has no predicates of its own."""
    found = []
    for block in re.split(r"\n\{\n(?:\t.*\n)*\}\n+", out):
        condition = re.search(r"^/(.*)/$", block, re.M)
        for function, offset in re.findall(r"kinst::([\w.]+):(\d+)", block):
            found.append(Place(function, int(offset), condition[1] if condition else ""))
    return found


class Machine:
    """A linked copies.c in memory."""

    def __init__(self, path: Path) -> None:
        self.where = symbols(path)
        self._uc = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        mapped = set()
        file = open_file(path)
        for segment in (s for s in file.segments if s.kind == PT_LOAD):
            start, content = segment.address, file.mapped[segment.offset :][: segment.file_size]
            for page in range(start & -PAGE, start + segment.size, PAGE):
                if page not in mapped:
                    mapped.add(page)
                    self._uc.mem_map(page, PAGE)
            self._uc.mem_write(start, content)
        self._uc.mem_map(STACK - (1 << 20), 1 << 20)
        self._uc.mem_map(END, PAGE)

    def passed(self, function: str, argument: int, sites: Sequence[Place]) -> Counter[Place]:
        """Return how often one call passes each site with its condition true."""
        at: dict[int, list[Place]] = {}
        for site in sites:
            at.setdefault(self.where[site.function][0] + site.offset, []).append(site)
        found: Counter[Place] = Counter()

        def step(uc: unicorn.Uc, address: int, size: int, data: object) -> None:
            for site in at.get(address, ()):
                registers = {name: uc.reg_read(number) for name, number in REGISTERS.items()}
                found[site] += not site.condition or evaluate(site.condition, registers)

        hook = self._uc.hook_add(unicorn.UC_HOOK_CODE, step)
        before = self._uc.context_save()
        self._uc.mem_write(STACK - 16, END.to_bytes(8, "little"))
        self._uc.reg_write(x86.UC_X86_REG_RSP, STACK - 16)
        self._uc.reg_write(x86.UC_X86_REG_RDI, argument & (1 << 64) - 1)
        self._uc.emu_start(self.where[function][0], END, count=1_000_000)
        assert self._uc.reg_read(x86.UC_X86_REG_RIP) == END
        self._uc.hook_del(hook)
        self._uc.context_restore(before)
        return found


@pytest.mark.parametrize("build", BUILDS)
def test_every_entry_and_return(
    build: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compiled(tmp_path, *build)
    said = table()
    sites = {
        (name, what): places(shown(capsys, path, f"kinst::{name}:{what} {{ @ = count(); }}"))
        for name in INLINES
        for what in ("entry", "return")
    }
    for name in INLINES:
        entries = Counter(p.function.split(".")[0] for p in sites[name, "entry"])
        expected: Counter[str] = Counter()
        for (function, _, caller), count in said.copies.items():
            expected[caller] += count if function == name else 0
        more = {caller for function, _, caller in said.open if function == name}
        expected = +expected
        assert set(entries) == set(expected)
        for caller, count in entries.items():
            assert count == expected[caller] or (caller in more and count > expected[caller])
        assert not [p for p in sites[name, "entry"] if p.condition]
        # No function calls itself so that it is unrolled for ever: returns are few.
        assert sites[name, "return"]
    marked = Counter(name for _, name in marks(path))
    once = Counter(function for function, _, _ in said.copies.elements())
    twice = {name for name in INLINES if marked[name] > once[name]}
    # clang also counts the padding before a loop to the copy that the loop begins with.  That
    # padding, which runs once, is then the copy's lowest address: its entry.
    padding = {
        int(at, 16) for at in re.findall(r"^ +([0-9a-f]+):\tnop[wl] ", disassembly(path), re.M)
    }
    where = symbols(path)
    twice |= {
        name
        for name in INLINES
        if any(where[p.function][0] + p.offset in padding for p in sites[name, "entry"])
    }
    assert not (twice and "-O1" in build)
    machine = Machine(path)
    for function, arguments in ARGUMENTS.items():
        for argument in arguments:
            for name in INLINES:
                times = TIMES[function](argument).get(name, 0)
                seen = [
                    sum(machine.passed(function, argument, sites[name, what]).values())
                    for what in ("entry", "return")
                ]
                case = (function, argument, name, seen)
                assert seen[0] == seen[1], case
                assert seen[0] == times or (name in twice and seen[0] < times), case


def test_marks_are_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The marked instruction of each copy runs after an entry and before a return, equally
    often."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    where, machine = symbols(path), Machine(path)
    for name in INLINES:
        marked = []
        for address, one in marks(path):
            (holder,) = (f for f, (low, size) in where.items() if low <= address < low + size)
            if one == name:
                marked.append(Place(holder, address - where[holder][0], ""))
        for function, arguments in ARGUMENTS.items():
            for argument in arguments:
                found = machine.passed(function, argument, marked)
                assert sum(found.values()) == TIMES[function](argument).get(name, 0)


def test_functions_of_their_own_and_other_descriptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function that is not inlined belongs to fbt; other descriptions stay as they are."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    out = shown(capsys, path, "kinst::simple:return, kinst::sink:3, BEGIN /pid == 1/ { exit(0); }")
    assert out.split() == [
        "fbt::simple:return,", "kinst::sink:3,", ":::BEGIN", "/pid", "==", "1/", "{", "exit(0);",
        "}",
    ]  # fmt: skip


def test_source_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """sink() has one statement, so all its instructions but the return are of its line."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    line = 1 + COPIES.read_text().splitlines().index("\tdata[x & 63] += x;")
    found = places(shown(capsys, path, f"kinst::sink:@{line}* {{}}"))
    dump = disassembly(path, "--disassemble=sink")
    start = symbols(path)["sink"][0]
    listed = re.findall(r"^ +([0-9a-f]+):\t(\S+)", dump, re.M)
    expected = [int(at, 16) - start for at, word in listed if word != "ret"]
    assert [p.offset for p in found] == expected


def test_cold_parts_of_an_object_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """cold.c: both() is left once, after its second near().

    complain() is in check.cold alone, and left by the jump back at the end of it.
    """
    path = tmp_path / "cold.o"
    source = COPIES.with_name("cold.c")
    subprocess.run(["gcc", "-O2", "-g", "-c", "-o", path, source], check=True)
    dump = disassembly(path, "-r")
    calls = [int(at, 16) for at in re.findall(r"^ +([0-9a-f]+):\tcall.*\n.*near", dump, re.M)]
    jumps = [int(at, 16) for at in re.findall(r"^ +([0-9a-f]+):\tjmp", dump, re.M)]
    assert len(calls) == 2 and len(jumps) == 1
    returns = places(shown(capsys, path, "kinst::both:return {}"))
    assert {p.function for p in returns} == {"check"}
    # Its last instruction is the second call, or (DWARF ranges may hold it) one just after.
    assert all(p.offset >= calls[1] for p in returns)
    (left,) = places(shown(capsys, path, "kinst::complain:return {}"))
    entered = places(shown(capsys, path, "kinst::complain:entry {}"))
    assert {p.function for p in entered} == {"check.cold"}
    assert left.function == "check.cold" and left.offset <= jumps[0]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("kinst::erly:entry {}", "did you mean"),
        ("kinst::sink:@1 {}", "has no instruction of"),
        ("kinst::early:entry { nothing; }", "nothing"),
    ],
)
def test_wrong_programs(
    program: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    assert main(["-d", "-e", "--debug", str(path), "-n", program]) == 1
    assert message in capsys.readouterr().err


def test_wrong_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = compiled(tmp_path, "gcc", "-O2", name="plain")
    text = tmp_path / "text"
    text.write_text("no ELF file\n" * 20)
    program = "kinst::early:entry {}"
    for path, message in ((plain, "no debug information"), (text, "not an ELF file")):
        assert main(["-d", "-e", "--debug", str(path), "-n", program]) == 1
        assert message in capsys.readouterr().err
    assert main(["-d", "-e", "--debug", str(tmp_path / "none"), "-n", program]) == 1
    assert "no such file" in capsys.readouterr().err
    whole = compiled(tmp_path, "gcc", "-O2", "-g", "-Wl,--build-id", name="whole")
    other = compiled(tmp_path, "gcc", "-O1", "-g", "-Wl,--build-id", name="other")
    words = ["-d", "-e", "--kernel", str(whole), "--debug", str(other), "-n", program]
    assert main(words) == 1
    assert "build-id" in capsys.readouterr().err


LOCALS = """
int sink;
int __attribute__((noinline)) work(int n, char *text)
{
    int total = 123;
    total += n;
    sink = total + text[0];
    return total;
}
int main(int c, char **v) { return work(c, v[0]); }
"""


def test_local_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Variables of code without optimisation are in the frame, at the offset in the instruction
    that sets them.

    At a function's first instruction parameters are in the registers of the calling convention.
    """
    source = tmp_path / "locals.c"
    source.write_text(LOCALS)
    linked, part = tmp_path / "linked", tmp_path / "part.o"
    plain = ["gcc", "-g", "-fno-asynchronous-unwind-tables", str(source)]
    subprocess.run([*plain, "-O0", "-o", linked], check=True)
    subprocess.run([*plain, "-O2", "-c", "-o", part], check=True)
    code = disassembly(linked, "--disassemble=work")
    (first,) = re.findall(r"^0*([0-9a-f]+) <work>:", code, re.M)
    (at, distance) = re.findall(r"([0-9a-f]+):\s+movl +\$0x7b,(-0x[0-9a-f]+)\(%rbp\)", code)[0]
    offset = int(at, 16) - int(first, 16)
    out = shown(capsys, linked, f"kinst::work:{offset} {{ trace(locals->total); }}")
    (base, frame, place) = re.findall(r"\*\(int \*\)\(regs\[(\w+)\] \+ (\d+) - (\d+)\)", out)[0]
    assert (base, int(frame) - int(place)) == ("R_RBP", int(distance, 16))
    out = shown(capsys, part, "kinst::work:0 { trace(locals->n); trace(locals->text); }")
    assert "trace((int)regs[R_RDI]);" in out and "trace((char *)regs[R_RSI]);" in out
    program = "kinst::work:0 { trace(locals->nosuch); }"
    assert main(["-d", "-e", "--debug", str(part), "-n", program]) == 1
    assert "has no local variable nosuch" in capsys.readouterr().err
