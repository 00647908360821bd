"""Contract of an instruction set: kinst beside the kernel's own kprobe events.

Both probe the same instructions in one run, and agree on counts and registers.  A kprobe can be
set on kinst's jump: to the kernel it is a branch of its text.  It cannot be set on kinst's
breakpoint; then it is on the instruction before, which only falls through to the site, is the only
way to it, and changes no register.  tests/vm/counts/test_kprobes.py has more detail for amd64.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import capstone
import pytest

from tests.vm.command import Row, counts, guest_script
from tests.vm.isa_guest import Guest
from tests.vm.kprobe_events import script, seen

pytestmark = pytest.mark.vm

READS = 1000
SITES = 20
SPARE = 4  # for those at which the kernel sets no kprobe
# Functions that read(2) executes in one kernel or another.
PATH = (
    "ksys_read", "vfs_read", "rw_verify_area", "__fdget_pos", "__fget_light", "fdget_pos",
    "read_zero", "read_iter_zero", "security_file_permission", "new_sync_read",
    "apparmor_file_permission", "common_file_perm",
)  # fmt: skip
_C = capstone
DECODERS = {
    "amd64": _C.Cs(_C.CS_ARCH_X86, _C.CS_MODE_64),
    "arm64": _C.Cs(_C.CS_ARCH_ARM64, _C.CS_MODE_ARM),
    "riscv64": _C.Cs(_C.CS_ARCH_RISCV, _C.CS_MODE_RISCV64 | _C.CS_MODE_RISCVC),
}
for _decoder in DECODERS.values():
    _decoder.detail = True
# Mnemonics of stores and comparisons, which change no register but flags.
QUIET = {
    "amd64": r"cmp|test",
    "arm64": r"cmp|cmn|tst|stp|str|strb|strh|nop",
    "riscv64": r"s[bhwd]|c\.s[wd](sp)?|(c\.)?nop",
}
LEAVING = {
    "amd64": r"j.*|call|ret.*|int3|ud2|loop.*",
    "arm64": r"b|b\..*|bl|blr|br|cbn?z|tbn?z|ret.*|brk",
    "riscv64": r"(c\.)?(j|jal|jalr|jr|beqz?|bnez?|bltz?|bgez?|blez|bgtz|bltu|bgeu|ebreak|ret)",
}
RELATIVE = ("riscv64",)  # capstone's operands of branches: relative to the instruction
RISCV_NAMES = (
    "ra", "sp", "gp", "tp", *(f"t{i}" for i in range(7)), *(f"s{i}" for i in range(12)),
    *(f"a{i}" for i in range(8)),
)  # fmt: skip
# Names of kprobe events for the names of regs[].
REGISTERS = {
    "amd64": {f"R_R{n}": f"r{n}" for n in range(8, 16)}
    | {f"R_R{n.upper()}": n for n in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")},
    "arm64": {f"R_X{n}": f"x{n}" for n in range(30)} | {"R_LR": "lr", "R_SP": "sp"},
    "riscv64": {f"R_{name.upper()}": name for name in RISCV_NAMES},
}


def decoded(isa: str, row: Row) -> tuple[str, str]:
    """Return (mnemonic, operands) of one instruction, whose address is its offset in the function.

    Both are empty for arithmetic that this capstone does not know (Zbb).
    """
    for _, _, mnemonic, operands in DECODERS[isa].disasm_lite(row.code, row.offset, 1):
        return mnemonic, operands
    assert row.text.startswith(".insn"), row
    return "", ""


def leaves(isa: str, row: Row) -> bool:
    return re.fullmatch(LEAVING[isa], decoded(isa, row)[0]) is not None


def targets(isa: str, rows: list[Row]) -> set[int]:
    """Return the offsets that direct branches go to."""
    found = set()
    for row in rows:
        operands = decoded(isa, row)[1]
        if leaves(isa, row) and (number := re.search(r"(-?\b(?:0x[0-9a-f]+|\d+))$", operands)):
            found.add(int(number[1], 0) + (row.offset if isa in RELATIVE else 0))
    return found


def quiet(isa: str, row: Row) -> bool:
    """Return whether an instruction changes no register."""
    mnemonic, operands = decoded(isa, row)
    if re.search(r"!|\], ", operands):  # the base register changes
        return False
    return re.fullmatch(QUIET[isa], mnemonic) is not None


def pairs(isa: str, rows: list[Row], way: str) -> list[tuple[Row, Row]]:
    """Return (site for kinst, instruction for the kprobe); no two pairs share an instruction.

    The start is left out, because the kernel's ftrace allows no kprobe there.
    """
    rows = [row for row in rows if row.offset >= 16]
    if way == "jump":
        return [(row, row) for row in rows if row.way == "jump"]
    goals, used, found = targets(isa, rows), set[int](), []
    for before, site in itertools.pairwise(rows):
        if (
            before.after == site.offset
            and quiet(isa, before)
            and site.way == way
            and site.offset not in goals
            and not used & {before.offset, site.offset}
        ):
            used |= {before.offset, site.offset}
            found.append((site, before))
    return found


def runs_with(isa: str, rows: list[Row], offset: int) -> list[Row]:
    """Return other instructions that run exactly as often as the one at `offset`.

    They are in its straight line, which is entered at its start only, and left at its end.  If the
    function has computed jumps there are none.
    """
    at = next(k for k, row in enumerate(rows) if row.offset == offset)
    goals = targets(isa, rows)
    if any(computed(isa, row) for row in rows):
        return []
    first = last = at
    while first and joined(isa, rows[first - 1], rows[first], goals):
        first -= 1
    while last + 1 < len(rows) and joined(isa, rows[last], rows[last + 1], goals):
        last += 1
    return rows[first:at] + rows[at + 1 : last + 1]


def computed(isa: str, row: Row) -> bool:
    """Return whether an instruction is a jump whose target it does not name; a return is not."""
    mnemonic, operands = decoded(isa, row)
    known = re.fullmatch(r"ra|-?(0x[0-9a-f]+|\d+)", operands)
    return not known and re.fullmatch(r"(c\.)?jr|br|jmp", mnemonic) is not None


def joined(isa: str, one: Row, two: Row, goals: set[int]) -> bool:
    """Return whether control goes from one to two, and to two from nowhere else."""
    return one.after == two.offset and two.offset not in goals and not leaves(isa, one)


def chosen_sites(guest: Guest, way: str) -> list[tuple[Row, Row]]:
    """Return some sites of each function that exists."""
    path = guest.functions(PATH)
    # In a chain control would skip the instruction itself, where the kernel's probe may be.
    options = ("-x", "plant=trap" if way == "trap" else "plant=no-chain")
    each = {f: pairs(guest.isa, rows, way) for f, rows in guest.rows(path, *options).items()}
    turns = itertools.zip_longest(*each.values())
    chosen = [pair for turn in turns for pair in turn if pair is not None][: SITES + SPARE]
    assert len(chosen) == SITES + SPARE and len({site.function for site, _ in chosen}) >= 5
    return chosen


def places(isa: str, chosen: list[tuple[Row, Row]], fetched: Row) -> dict[str, str]:
    """Return a kprobe event for each pair, and one that also fetches the registers."""
    arguments = " ".join(f"{name}=%{name}:x64" for name in REGISTERS[isa].values())
    each = {f"k{k}": f"{probe.function}+{probe.offset}" for k, (_, probe) in enumerate(chosen)}
    return each | {"regs": f"{fetched.function}+{fetched.offset} {arguments}"}


@pytest.mark.parametrize(
    ("guest", "way"),
    [
        ("arm64", "jump"),
        pytest.param("riscv64", "trap", marks=pytest.mark.slow),
        pytest.param("amd64", "jump", marks=pytest.mark.slow),
        pytest.param("arm64", "trap", marks=pytest.mark.slow),
    ],
    indirect=["guest"],
)
def test_counts_and_registers(guest: Guest, way: str, tmp_path: Path) -> None:
    """20 instructions of five functions or more; every register at 1,000 hits, in order."""
    chosen = chosen_sites(guest, way)
    site, probe = next(p for p in chosen if p[0].function == "vfs_read")
    events = script(places(guest.isa, chosen, probe), f"reads {READS}")
    names = REGISTERS[guest.isa]
    form = " ".join(["%x"] * len(names))
    values = ", ".join(f"regs[{name}]" for name in names)
    program = ", ".join(site.name for site, _ in chosen)
    # In a chain control would skip the instruction itself, where the kernel's probe may be.
    options = ("-x", "plant=trap" if way == "trap" else "plant=no-chain")
    done = guest.trace(
        "-q", *options,
        "-n", f"{program} {{ @[pid, probefunc, probename] = count(); }}",
        "-n", f'{site.name} /execname == "reads"/'
        f'{{ printf("R %d %d {form}\\n", timestamp, pid, {values}); }}',
        "-c", "events.sh",
        copy=[
            guest.reads(), guest.program("kprobes", guest.isa),
            guest_script(tmp_path, "events.sh", events),
        ],
    )  # fmt: skip
    theirs = seen(done.guest)
    assert len(theirs.events) > SITES and "regs" in theirs.events, done.guest[:3000]
    found = counts("\n".join(x for x in done.out.splitlines() if not x.startswith("R ")))
    for k, pair in enumerate(chosen):
        if f"k{k}" in theirs.events:
            ours = found.get((theirs.pid, pair[0].function, str(pair[0].offset)), 0)
            assert ours == theirs.events[f"k{k}"], pair
    ran = [k for k, hits in theirs.events.items() if hits and k != "regs"]
    assert len(ran) >= SITES // 2, theirs.events
    lines = sorted(
        (x.split()[1:] for x in done.out.splitlines() if x.startswith("R ")),
        key=lambda words: int(words[0]),
    )
    got = [[int(word, 16) for word in words[2:]] for words in lines if words[1] == theirs.pid]
    assert len(theirs.values) == theirs.events["regs"] >= READS
    assert got == theirs.values
