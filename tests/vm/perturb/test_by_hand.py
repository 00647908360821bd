"""Each action, compared with gdb. In a guest with the same kernel, gdb makes the same change at the
same instruction, by hand at the GDB stub. What the programs in the two guests print must be equal.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from tests.vm.command import SECONDS, guest_script, kinst
from tests.vm.isa_guest import Guest
from tests.vm.perturb.perturbed_functions import COUNT, RESULT, setting_of_result
from tests.vm.stub_guest import stub_guest

pytestmark = pytest.mark.vm

# One CPU: gdb lets only the CPU that it steps over a breakpoint run, and on riscv64 with
# interrupts, since it steps by a breakpoint at the next instruction.  An interrupt there may wait
# for a lock of the other CPU: one of some ten guests with two CPUs stood still in
# ktime_get_update_offsets_now(), while the other CPU was stopped in update_vsyscall().
CPUS = 1
FIRST = {"amd64": "rdi", "arm64": "x0", "riscv64": "a0"}  # first argument
# A call of the kernel's own function that spins for 400 ms.
SPIN = {
    "amd64": "(void)__delay((long)tsc_khz * 400)",
    "arm64": "(void)__udelay(400000L)",
}
# The same on riscv64, where gdb's own call does not come back: it returns to the stack, which the
# kernel's page tables do not let execute. This call returns to a breakpoint at panic(), which the
# kernel does not run, and then goes on at vfs_read() with the registers as before.
CHANGED_BY_CALL = ("ra", *(f"a{n}" for n in range(8)), *(f"t{n}" for n in range(7)))
SPIN_BY_JUMP = f"""\
set $phase = 0
break *vfs_read if $a2 == 108 && $phase != 1
commands
silent
if $phase == 2
set $phase = 0
else
set $whence = $pc
{"".join(f"set $kept_{name} = ${name}{chr(10)}" for name in CHANGED_BY_CALL)}\
set $a0 = 400000
set $ra = (long)&panic
set $pc = (long)&udelay
set $phase = 1
end
continue
end
break *panic if $phase == 1
commands
silent
{"".join(f"set ${name} = $kept_{name}{chr(10)}" for name in CHANGED_BY_CALL)}\
set $pc = $whence
set $phase = 2
continue
end
"""
# A read(2) of so many bytes meets the action. The last read of a round meets none; it is only one.
NAMES = {
    100: "register", 101: "return", 102: "store", 103: "copyout", 104: "raise", 105: "stop",
    106: "skip", 107: "goto", 108: "chill", 109: "last",
}  # fmt: skip
# Actions that kinst refuses at a probe that stops the machine.
ONLY_PLANTED = ("copyout", "raise", "stop", "chill")
ROUND = """\
count=3
try() {
    dd if=$2 of=/dev/null bs=$1 count=$count 2>/tmp/said
    echo "@$1 $? $(grep -v copied /tmp/said | tr '\\n' ' ') $3$([ -z "$3" ] || cat $3)"
}
try 100 /dev/zero
try 101 /dev/zero
try 102 /dev/zero /proc/sys/kernel/panic
try 103 /dev/zero /proc/sys/kernel/randomize_va_space
try 104 /dev/zero
dd if=/dev/zero of=/dev/null bs=105 count=3 2>/dev/null &
child=$!
while [ -e /proc/$child ] && ! grep -q 'State:.T' /proc/$child/status; do sleep 0.1; done
echo "@105 $(grep State /proc/$child/status || echo ended)"
kill -9 $child
wait $child
try 106 /dev/null
try 107 /dev/null
now() {
    read -r up idle </proc/uptime
    echo ${up%.*}${up#*.}
}
before=$(now)
dd if=/dev/zero of=/dev/null bs=108 count=10 2>/dev/null
[ $(($(now) - before)) -ge 400 ] && echo '@108 late' || echo '@108 soon'
count=1
try 109 /dev/zero
"""
PANIC = """\
set confirm off
set width 0
set remotetimeout 120
target remote {stub}
break *vfs_read if ${count} == 110
continue
set var panic_timeout = 0
set ${first} = (long)&linux_banner
set $pc = (long)&panic
detach
"""
# A whole round is that between two stops at 109 with changes between them: QEMU sometimes reports
# the step over a breakpoint before the instruction has run, and gdb stops there twice.
GDB = """\
set confirm off
set pagination off
set width 0
set remotetimeout 120
target remote {stub}
set $whole = 0
set $changed = 0
{breaks}
break *vfs_read if ${count} == 109
commands
silent
if $whole && $changed
detach
quit
end
set $whole = 1
set $changed = 0
shell stat -c 'the round begins after %s' {console}
continue
end
continue
"""


@dataclass(frozen=True)
class Place:
    """The instruction of read_null() that sets its result.

    Attributes:
        function: linked address of read_null(), by its symbol: on riscv64, gdb's `&read_null` is
            the first address after the instructions that the kernel's own tracer replaces.
        offset: the instruction's offset.
        after: offset of the next instruction.
    """

    function: int
    offset: int
    after: int


def by_hand(isa: str, place: Place) -> dict[str, tuple[str, list[str]]]:
    """Return, for each action, the location and gdb's commands that do what the action does."""
    count, first, result = COUNT[isa][2:].lower(), FIRST[isa], RESULT[isa][2:].lower()
    entry, setting = "*vfs_read", f"*{place.function + place.offset:#x}"
    # force_sig() returns to the caller of vfs_read(), which the signal reaches before its program.
    signal = f"set ${first} = {{}}", "set $pc = (long)&force_sig"
    after = f"{place.function + place.after:#x}"
    every = {
        "register": (entry, [f"set ${count} = 1"]),
        "return": (entry, ["return (long)-5"]),
        "store": (entry, ["set var panic_timeout = 77"]),
        "copyout": (entry, ["set var randomize_va_space = panic_timeout"]),
        "raise": (entry, [signal[0].format(9), signal[1]]),
        "stop": (entry, [signal[0].format(19), signal[1]]),
        "skip": (setting, [f"set ${result} = 5", f"set $pc = {after}"]),
        "goto": (setting, [f"set ${result} = 6", f"set $pc = {after}"]),
    }
    if isa in SPIN:
        every["chill"] = entry, [f"call {SPIN[isa]}"]
    return every


def by_kinst(isa: str, place: Place) -> dict[str, str]:
    """Return the clause of each action."""
    count, result = COUNT[isa], RESULT[isa]
    actions = {
        "register": f"regs[{count}] = 1",
        "return": "return(-5)",
        "store": "`panic_timeout = 77",
        "copyout": "copyout(&`panic_timeout, (uintptr_t)&`randomize_va_space, 4)",
        "raise": "raise(9)",
        "stop": "stop()",
        "skip": f"regs[{result}] = 5; skip()",
        "goto": f"regs[{result}] = 6; goto({place.after})",
        "chill": "chill(400000000)",
    }
    bytes_of = {name: size for size, name in NAMES.items()}
    clauses = {}
    for name, action in actions.items():
        probe = (
            f"kinst::read_null:{place.offset}"
            if name in ("skip", "goto")
            else "fbt::vfs_read:entry"
        )
        clauses[name] = f"{probe} /regs[{count}] == {bytes_of[name]}/ {{ {action}; }}"
    return clauses


def printed(text: str) -> dict[str, str]:
    """Return what the programs of a round print, by action."""
    lines = [line[1:].split(maxsplit=1) for line in text.splitlines() if line.startswith("@")]
    return {NAMES[int(size)]: " ".join(told.split()) for size, told in lines}


@dataclass(frozen=True)
class Authority:
    """What the programs print.

    Attributes:
        untraced: in a guest in which nothing is changed.
        by_hand: in a guest that gdb changes.
        told: gdb's own output.
    """

    untraced: dict[str, str]
    by_hand: dict[str, str]
    told: str


@pytest.fixture(scope="module")
def place(guest: Guest) -> Place:
    row, function = setting_of_result(guest), open_elf(guest.kernel.debug).address("read_null")
    assert function is not None
    return Place(function, row.offset, row.after)


@pytest.fixture(scope="module")
def authority(guest: Guest, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return what gdb's changes do, in a guest in which it makes each of them."""
    folder = tmp_path_factory.mktemp("by-hand")
    count = COUNT[guest.isa][2:].lower()
    bytes_of = {name: size for size, name in NAMES.items()}
    breaks = "\n".join(
        "\n".join([f"break {at} if ${count} == {bytes_of[name]}", "commands",
                   "set $changed = 1", *commands, "continue", "end"])
        for name, (at, commands) in by_hand(guest.isa, place).items()
    )  # fmt: skip
    if guest.isa not in SPIN:
        breaks += f"\n{SPIN_BY_JUMP}"
    commands = f"{{\n{ROUND}}} >/dev/CONSOLE"
    with stub_guest(guest.isa, guest.kernel, guest.reads(), folder, "unix", commands, CPUS) as stub:
        (untraced, *_) = stub.console.read_text(errors="replace").split("\nround 1")
        script = folder / "by_hand.gdb"
        script.write_text(
            GDB.format(stub=stub.address, breaks=breaks, count=count, console=stub.console)
        )
        told = subprocess.run(
            ["gdb-multiarch", "-nx", "-batch", "-x", str(script), str(guest.kernel.debug)],
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        _, found, size = told.stdout.rpartition("the round begins after ")
        assert found, told
        assert stub.goes_on(), told
        text = stub.console.read_bytes()[int(size.split()[0]) :].decode(errors="replace")
        perturbed = text.partition("\nround ")[2].partition("\nround ")[0]
    return Authority(printed(untraced), printed(perturbed), told.stdout + told.stderr)


def test_each_change_by_hand_shows(guest: Guest, authority: Authority) -> None:
    """gdb's changes are seen by the programs: otherwise the test below would show nothing."""
    assert list(authority.untraced) == list(authority.by_hand) == list(NAMES.values())
    for name, told in authority.by_hand.items():
        assert (told == authority.untraced[name]) == (name == "last"), (name, authority)


@pytest.mark.parametrize("way", ["auto", "trap", "stop"])
def test_actions_do_what_gdb_does_by_hand(
    guest: Guest, place: Place, authority: Authority, way: str, tmp_path: Path
) -> None:
    script = guest_script(tmp_path, "perturbed", ROUND)
    clauses = by_kinst(guest.isa, place)
    left_out = ONLY_PLANTED if way == "stop" else ()
    program = "\n".join(text for name, text in clauses.items() if name not in left_out)
    done = guest.trace(
        "-q", "-w", "-x", f"plant={way}", "-n", program, "-c", "perturbed", copy=[script]
    )
    expected = {
        name: authority.untraced[name] if name in left_out else told
        for name, told in authority.by_hand.items()
    }
    assert printed(done.guest) == expected, done


def last_words(console: str) -> tuple[str, str]:
    """Return what a kernel that panics says of it: the text that panic() got, and the name of the
    process in which it was called. Source: panic() of kernel/panic.c, and dump_stack_print_info()
    of lib/dump_stack.c."""
    said = re.search(r"\] Kernel panic - not syncing: (.*)", console)
    process = re.search(r"PID: \d+ Comm: (\S+)", console)
    assert said is not None and process is not None, console
    return said[1].strip(), process[1]


def test_the_kernel_panics_as_by_hand(guest: Guest, tmp_path: Path) -> None:
    """gdb calls panic() with another text: the kernel's banner."""
    count = COUNT[guest.isa][2:].lower()
    read = "dd if=/dev/zero of=/dev/null bs=110 count=1"
    with stub_guest(
        guest.isa, guest.kernel, guest.reads(), tmp_path, "unix", f"{read} 2>/dev/null", CPUS
    ) as stub:
        script = tmp_path / "panic.gdb"
        text = PANIC.format(stub=stub.address, count=count, first=FIRST[guest.isa])
        script.write_text(text)
        told = subprocess.run(
            ["gdb-multiarch", "-nx", "-batch", "-x", str(script), str(guest.kernel.debug)],
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        end = time.monotonic() + SECONDS
        while "end Kernel panic" not in (said := stub.console.read_text(errors="replace")):
            assert time.monotonic() < end, (told, said)
            time.sleep(0.1)
    by_hand = last_words(said)
    assert by_hand[0].startswith("Linux version ")
    program = f"fbt::vfs_read:entry /regs[{COUNT[guest.isa]}] == 110/ {{ panic(); }}"
    done = kinst(f"--vm={guest.isa}", "-w", "-n", program, "-c", read)
    assert done.status != 0
    assert last_words(done.err) == ("kinst: panic() in a D program", by_hand[1]), done
