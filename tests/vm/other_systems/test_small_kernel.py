"""A riscv64 kernel of this project, with its own DWARF and page tables, and no system that kinst
knows.

Everything is compared with gdb's output for the same instructions of the same run, from reset on.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from tests.vm.command import kinst
from tests.vm.other_systems.other_kernels import OtherKernel, make_small_kernel, stops

pytestmark = pytest.mark.vm
TRANSFERS = 24  # until both are ended


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> OtherKernel:
    elf = make_small_kernel(tmp_path_factory.mktemp("small"))
    qemu = f"""qemu-system-riscv64 -machine virt -m 64 -smp 1 -nodefaults -display none
        -serial null -kernel {elf}"""
    return OtherKernel(elf, tuple(qemu.split()), "gdb-multiarch")


def shown_by_gdb(small: OtherKernel, *commands: str) -> str:
    """Return gdb's output about the file alone."""
    argv = [small.gdb, "-q", "-nx", "-batch", str(small.elf)]
    for command in commands:
        argv += ["-ex", command]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_source_lines_of_all_instructions(small: OtherKernel, tmp_path: Path) -> None:
    """-l -v on the running kernel: bytes, offsets and lines are those that gdb has in the file."""
    names = ("withdraw", "transfer", "one_round", "kmain")
    probes = ", ".join(f"kinst::{name}:" for name in names)
    done = small.kinst(tmp_path, "-l", "-v", "-n", probes, stopped=False).good()
    # Two lines for each: number, provider, module, function, offset; bytes, text, way, line.
    found = re.findall(
        r"^ *\d+ +kinst +vmlinux +(\w+) (\d+)\n\t((?:[0-9a-f]{2} )+) .* stop +(\S+):(\d+)$",
        done.out, re.M,
    )  # fmt: skip
    theirs = list[tuple[str, ...]]()
    for name in names:
        text = shown_by_gdb(small, f"disassemble /rs {name}")
        file, line = "", ""
        for row in text.splitlines():
            if re.match(r"\S+\.c:$", row):
                file = row[:-1]
            elif number := re.match(r"(\d+)\t", row):
                line = number[1]
            elif code := re.match(r" +0x\w+ <\+(\d+)>:\t(\w+)\s", row):
                raw = bytes.fromhex(code[2])[::-1]  # it shows a number
                theirs.append((name, code[1], raw.hex(" ") + " ", Path(file).name, line))
    assert len(theirs) > 80
    assert sorted(row[:3] for row in found) == sorted(row[:3] for row in theirs)
    lines = {row[:2]: row[3:] for row in theirs}
    other = {row[:2]: (Path(row[3]).name, row[4]) for row in found}
    other = {place: line for place, line in other.items() if lines[place] != line}
    # Of several rows for one address gdb takes the last that begins a statement, kinst and
    # addr2line(1) the last.
    assert len(other) < len(lines) // 10
    for (name, at), (file, line) in other.items():
        start = re.search(r"0x\w+", shown_by_gdb(small, f"print {name}"))
        assert start
        argv = [
            "riscv64-linux-gnu-addr2line",
            "-e",
            str(small.elf),
            hex(int(start[0], 16) + int(at)),
        ]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert said.split()[0].endswith(f"/{file}:{line}")


def test_arguments_locals_registers_and_inline_functions(
    small: OtherKernel, tmp_path: Path
) -> None:
    """All events of the kernel's first transfers are traced in order, from reset, before the
    kernel is in memory."""
    after = re.search(r"0x(\w+)", shown_by_gdb(small, "info line 36"))
    start = re.search(r"0x(\w+)", shown_by_gdb(small, "print withdraw"))
    assert after and start
    offset = int(after[1], 16) - int(start[1], 16)
    program = f"""
        fbt::transfer:entry /n++ == {TRANSFERS}/ {{ exit(0); }}
        fbt::transfer:entry
        {{ printf("transfer %d %s %d %x\\n", args[2], stringof(args[0]->name), args[1]->number,
           regs[R_SP]); }}
        kinst::withdraw:{offset} {{ printf("fee %d of %d\\n", locals->fee, locals->amount); }}
        kinst::fee_of:entry
        {{ printf("in %s: %d %d\\n", probefunc, locals->account->number, locals->amount); }}"""
    done = small.kinst(tmp_path, "-q", "-n", program).good()
    places = {
        "*transfer": '"transfer %ld %s %d %lx\\n", amount, from->name, to->number, $sp',
        f"*withdraw+{offset}": '"fee %ld of %ld\\n", fee, amount',
    }
    commands = stops(places, "*transfer", TRANSFERS)
    inline = [
        "break fee_of",
        "commands",
        "silent",
        "if !$again()",
        "up",
        "python print_inline()",
        "end",
        "continue",
        "end",
    ]
    function = [
        "python",
        "def print_inline():",
        "    inner = gdb.newest_frame()",
        "    value = lambda name: int(inner.read_var(name))",
        "    number = int(inner.read_var('account')['number'])",
        "    print(f\"in {inner.older().name()}: {number} {value('amount')}\")",
        "end",
    ]
    text = small.ask_gdb(tmp_path, [*function, *commands[:-1], *inline, commands[-1]])
    theirs = re.findall(r"^(?:transfer|fee|in) .*\d$", text, re.M)
    assert done.out.splitlines() == [*theirs, ""] or done.out.splitlines() == theirs
    assert sum(line.startswith("transfer ") for line in theirs) == TRANSFERS
    assert {line.split(":")[0] for line in theirs if line.startswith("in ")} == {
        "in withdraw",
        "in transfer",
    }


def test_inline_returns_follow_their_entries(small: OtherKernel, tmp_path: Path) -> None:
    """Each pass of a copy ends, in the function where it began; gdb's `finish` counts the same."""
    program = f"""
        fbt::transfer:entry /n++ == {TRANSFERS}/ {{ exit(0); }}
        kinst::fee_of:entry {{ printf("entry %s\\n", probefunc); }}
        kinst::fee_of:return {{ printf("return %s\\n", probefunc); }}"""
    rows = small.kinst(tmp_path, "-q", "-n", program).good().out.split("\n")
    rows = [row for row in rows if row]
    assert len(rows) > 2 * TRANSFERS
    for entry, back in zip(rows[::2], rows[1::2], strict=True):
        assert entry.startswith("entry ") and back == entry.replace("entry", "return")
    commands = stops({"*transfer": '"transfer\\n"', "fee_of": '"copy\\n"'}, "*transfer", TRANSFERS)
    assert small.ask_gdb(tmp_path, commands).count("copy\n") == len(rows) // 2


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("trace(execname)", "execname"),
        ("trace(pid)", "pid"),
        ("trace(curthread)", "curthread"),
        ("@[caller] = count()", "caller"),
        ("stack()", r"stack\(\)"),
        ("ustack()", r"ustack\(\)"),
        ("trace(cwd)", "cwd"),
        ("self->x = 1", "a thread-local variable"),
        ("trace(copyinstr(arg0))", r"copyinstr\(\)"),
    ],
)
def test_what_only_a_system_knows_is_refused(small: OtherKernel, asked: str, named: str) -> None:
    """kinst refuses before it connects: there is no stub at this address."""
    program = f"fbt::transfer:entry {{ {asked}; }}"
    done = kinst("--gdb", "/no/stub", "--kernel", str(small.elf), "-n", program, boots=False)
    assert done.status == 1
    reason = rf"{named} needs a system that kinst knows: {re.escape(str(small.elf))} is of none"
    assert re.search(reason, done.err.splitlines()[0])


def test_another_kernels_file_is_refused(small: OtherKernel, tmp_path: Path) -> None:
    """The file is of a kernel whose code is not what runs there."""
    other = tmp_path / "other.elf"
    data = bytearray(small.elf.read_bytes())
    (text,) = (section for section in open_elf(small.elf).sections if section.name == ".text")
    for at in range(text.offset, text.offset + text.size):
        data[at] ^= 0x55
    other.write_bytes(data)
    changed = OtherKernel(other, small.qemu, small.gdb)
    for _ in range(5):  # until it is past its boot
        done = changed.kinst(tmp_path, "-l", "-n", "fbt::transfer:entry", stopped=False)
        if done.status:
            break
    assert "is not that of" in done.err and "--kernel" in done.err
