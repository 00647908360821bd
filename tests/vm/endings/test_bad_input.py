"""Bad input: one line that says what is wrong and where, an exit status, nothing planted, no
traceback.

For D the message has the line with a caret.  An error that can be found without a guest must be
found before a guest is started: those commands run with an empty PATH, so that a kinst that tries
to start QEMU prints another message.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kinst import boot
from kinst.core.endings import PANIC
from kinst.core.errors import DError
from kinst.kernels.fetch import Prepared
from tests.vm.command import Result, kinst

pytestmark = pytest.mark.vm

NO_PATH = {**os.environ, "PATH": "/nonexistent"}
PROBE = "kinst::vfs_read:0 { @ = count(); }"
CARET = re.compile(r"^ *\^+$")

# command line, status, first line of stderr
SIMPLE = [
    # command lines: status 2 and their usage
    ([], 2, r"no probes specified \(-n or -s .*\)"),
    (["-y"], 2, r"option -y not recognized"),
    (["--bogus"], 2, r"option --bogus not recognized"),
    (["-n"], 2, r"option -n requires argument"),
    (["-X", "q", "-n", "BEGIN"], 2, r"-X q: no such conformance \(a, c, s, t\)"),
    (["--dump", "what", "-n", "BEGIN"], 2, r"--dump what: no such stage \(tree, .*plan\)"),
    # options and files
    (["-x", "bufsiz=1m", "-n", "BEGIN"], 1, r"unknown option 'bufsiz' \(did you mean bufsize\?\)"),
    (["-x", "bufsize=lots", "-n", "BEGIN"], 1, r"invalid value 'lots' for option 'bufsize' \(.+\)"),
    (["-x", "plant=maybe", "-n", PROBE], 1, r"plant=maybe: no such way \(.*jump.*no-chain.*\)"),
    (["--vm=vax", "-n", PROBE], 1, r".*'vax' \(there are: amd64.*\)"),
    (["-s", "/none.d"], 1, r"failed to open /none\.d: No such file or directory"),
    (["-o", "/none/x", "-n", "BEGIN"], 1, r"failed to open /none/x: No such file or directory"),
    (["--kernel", "/none", "--debug", "/etc/passwd", "-n", PROBE], 1, r"/none: no such file"),
    (["--kernel", "/etc/passwd", "-n", PROBE], 2, r"--kernel /etc/passwd needs .*--debug.*"),
    (["--debug", "/none", "-n", PROBE], 1, r"/none: no such file"),
    (["--initrd", "/none", "-n", PROBE], 1, r"/none: no such file"),
    (["--copy", "/none", "-n", PROBE], 1, r"--copy /none: no such file"),
    # stubs
    (["--gdb", "/none", "-n", PROBE], 2, r"--gdb needs the kernel's symbols \(--kernel .*"),
    (["--gdb", "/none", "--kernel", "VMLINUX", "-c", "ls", "-n", PROBE], 2, r"-c is an option.*"),
    (["--gdb", "/none", "--kernel", "VMLINUX", "--vm", "-n", PROBE], 2, r"--vm and --gdb: .*"),
    (["--gdb", "/none", "--kernel", "VMLINUX", "--copy", "/bin/ls", "-n", PROBE], 2,
     r"--copy is an option of --vm, not of --gdb"),
    (["--initrd", "/none", "--copy", "/bin/ls", "-n", PROBE], 2, r"--copy .*--initrd.*"),
    (["--initrd", "/none", "-c", "ls", "-n", PROBE], 1, r"/none: no such file"),
    (["--kernel", "/k", "--debug", "/d", "--module", "loop", "-n", PROBE], 2, r"--module is for.*"),
    (["--gdb", "127.0.0.1:99999", "--kernel", "VMLINUX", "-n", PROBE], 1,
     r"127\.0\.0\.1:99999: .+"),
    (["--gdb", "127.0.0.1:1", "--kernel", "VMLINUX", "-n", PROBE], 1,
     r"no GDB stub at 127\.0\.0\.1:1: Connection refused \(.+\)"),
    (["--gdb", "/none", "--kernel", "VMLINUX", "-n", PROBE], 1,
     r"no GDB stub at /none: No such file or directory \(.+\)"),
    # no QEMU
    (["-n", PROBE], 1, r"qemu-system-x86_64 not found \(apt-get install qemu-system-x86\)"),
]  # fmt: skip


def one_line(done: Result, status: int, pattern: str) -> None:
    assert done.status == status, done
    first, *rest = done.err.splitlines()
    assert re.fullmatch(f"kinst: {pattern}", first), done.err
    if status == 2:
        assert rest == ["Try 'kinst --help'."], done.err
    else:
        assert rest == [], done.err
    assert done.out == "" and done.guest == "", done


@pytest.mark.parametrize("words, status, pattern", SIMPLE)
def test_one_line_and_a_status(
    prepared: Prepared, words: list[str], status: int, pattern: str
) -> None:
    words = [str(prepared.debug) if word == "VMLINUX" else word for word in words]
    done = kinst(*words, boots=False, env=NO_PATH)
    one_line(done, status, pattern)


# program, column of the caret, its length, part of the message
D_ERRORS = [
    ("BEGIN { x = ; }", 13, 1, 'syntax error near ";"'),
    ("BEGIN { trace(nope); }", 15, 4, "failed to resolve nope"),
    ('BEGIN { printf("%d", "a"); }', 22, 3, "incompatible with conversion #1"),
    ("kinst::vfs_read:0 { trace(regs[R_NOPE]); }", 32, 6, "R_NOPE"),
    ("kinst::vfs_read:0 /1 +/ { }", 23, 1, "syntax error"),
]


def check_caret(done: Result, line: str, column: int, length: int) -> None:
    """Check the three lines of a D error."""
    assert done.status == 1, done
    _, shown, caret = done.err.splitlines()
    assert shown == line and CARET.match(caret), done.err
    assert (caret.index("^") + 1, caret.count("^")) == (column, length), done.err


@pytest.mark.parametrize("program, column, length, message", D_ERRORS)
def test_d_errors_on_the_command_line(program: str, column: int, length: int, message: str) -> None:
    done = kinst("-n", program, boots=False, env=NO_PATH)
    first = done.err.splitlines()[0]
    assert first.startswith(f"kinst: failed to compile: -n argument:1:{column}: "), done.err
    assert message in first
    check_caret(done, program, column, length)


@pytest.mark.parametrize("program, column, length, message", D_ERRORS)
def test_d_errors_in_a_script(
    tmp_path: Path, program: str, column: int, length: int, message: str
) -> None:
    script = tmp_path / "bad.d"
    script.write_text(f"/* a comment,\n of two lines */\n\n{program}\n\n")
    done = kinst("-s", str(script), boots=False, env=NO_PATH)
    first = done.err.splitlines()[0]
    assert first.startswith(f"kinst: failed to compile: {script}:4:{column}: "), done.err
    assert message in first
    check_caret(done, program, column, length)


def name_of_two(prepared: Prepared) -> str:
    """Return a name that two functions of this kernel have."""
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    code = Counter(w[2] for w in map(str.split, shown.stdout.splitlines()) if w[1] in "tT")
    return min(name for name, k in code.items() if k == 2 and re.fullmatch("[a-z_]+", name))


def test_a_function_that_is_not_there() -> None:
    description = "kinst::vfs_raed:0"
    program = description + " { @ = count(); }"
    done = kinst("-n", program, "-c", "echo ran")
    assert "ran" not in done.guest, "nothing is run when nothing is planted"
    pattern = r'no function named "vfs_raed" \(did you mean .*\bvfs_read\b.*\?\)'
    first = done.err.splitlines()[0]
    assert re.fullmatch(f"kinst: failed to compile: -n argument:1:1: {pattern}", first), done
    check_caret(done, program, 1, len(description))


def test_good_d_for_an_instruction_that_no_one_may_plant_on() -> None:
    done = kinst("-n", "kinst::asm_exc_page_fault:0 { @ = count(); }", "-c", "echo ran")
    assert "ran" not in done.guest
    one_line(
        done,
        1,
        r"asm_exc_page_fault\+0 cannot be planted: .+ \(no instruction of asm_exc_page_fault can\)",
    )


def test_functions_and_offsets_that_are_not_there(prepared: Prepared) -> None:
    twice = name_of_two(prepared)
    with boot() as machine:
        for description, pattern in (
            ("kinst::vfs_read:1", r"vfs_read\+1 is inside an instruction"),
            ("kinst::vfs_read:99999", r"vfs_read\+99999 is outside the function"),
            (f"kinst::{twice}:0", rf'"{twice}" names 2 functions: .* at 0x\w+, .* at 0x\w+'),
        ):
            with pytest.raises(DError, match=pattern) as found:
                machine.run(description + " { @ = count(); }")
            assert found.value.caret().splitlines()[1] == "^" * len(description)


def test_one_of_two_functions_of_a_name_can_be_chosen(prepared: Prepared) -> None:
    """Choose it by a name that the message gives."""
    twice = name_of_two(prepared)
    message = kinst("-l", "-n", f"kinst::{twice}:").err
    names = re.findall(rf"\bvmlinux:({twice}\S*) at 0x", message)
    assert len(set(names)) == 2, message
    words = [word for name in names for word in ("-n", f"kinst:vmlinux:{name}:0")]
    done = kinst("-l", *words).good()
    assert len([row for row in done.out.splitlines() if " kinst " in row]) == 2, done.out


def test_a_kernel_that_is_no_kernel(prepared: Prepared, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a kernel\n")
    done = kinst("--kernel", str(prepared.kernel), "--debug", str(text), "-n", PROBE)
    one_line(done, 1, rf"{text}: not an ELF file.*")


def test_a_debug_file_of_another_kernel(prepared: Prepared, tmp_path: Path) -> None:
    """The file is a program that is no kernel, or another build of the same kernel; messages have
    both build-ids."""
    source, program = tmp_path / "other.c", tmp_path / "other"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-g", "-Wl,--build-id", "-o", program, source], check=True)
    done = kinst("--kernel", str(prepared.kernel), "--debug", str(program), "-n", PROBE)
    one_line(done, 1, rf"{program}: .*vmlinux.*")

    other = tmp_path / "vmlinux"
    subprocess.run(["objcopy", "--strip-debug", prepared.debug, other], check=True)
    notes = subprocess.run(["readelf", "-n", other], capture_output=True, text=True, check=True)
    (right,) = re.findall(r"Build ID: (\w+)", notes.stdout)
    wrong = f"{int(right[:2], 16) ^ 1:02x}{right[2:]}"
    data = other.read_bytes()
    assert data.count(bytes.fromhex(right)) == 1
    other.write_bytes(data.replace(bytes.fromhex(right), bytes.fromhex(wrong)))
    done = kinst("--kernel", str(prepared.kernel), "--debug", str(other), "-n", PROBE)
    one_line(done, 1, f".*{right}.*{wrong}.*")
    other.unlink()


def test_a_kernel_that_does_not_come_up() -> None:
    """kinst prints QEMU's own message, or the console's last lines, within seconds."""
    done = kinst("--qemu-arg", "-nonsense", "-n", PROBE)
    one_line(done, 1, r"QEMU ended with status 1: .*-nonsense: invalid option")
    done = kinst("-n", PROBE, append="rdinit=/none")
    assert done.status == PANIC and "Traceback" not in done.err
    assert "Kernel panic" in done.err.splitlines()[0], done.err


def test_a_command_is_not_forgotten() -> None:
    """The command of -c runs, whatever the probes, or kinst says that it will not."""
    done = kinst("-q", "-n", 'END { printf("over"); }', "-c", "echo ran")
    assert "ran" in done.guest or (done.status != 0 and len(done.err.splitlines()) == 1), done


def test_programs_that_need_no_guest_start_at_once() -> None:
    done = kinst(
        "-q", "-n", "tick-100ms { @ = count(); } tick-1050ms { exit(6); }",
        boots=False, env=NO_PATH,
    )  # fmt: skip
    assert done.status == 6, done
    # Periods that a busy machine missed are not caught up.
    assert 1 <= int(done.out) <= 10


def test_a_listed_function_that_refuses_all_probes() -> None:
    done = kinst("-l", "-n", "kinst::exc_page_fault:", "-n", "kinst::vfs_read:0").good()
    listed = sum(" exc_page_fault " in line for line in done.out.splitlines())
    assert f"kinst: {listed} of these cannot be planted" in done.err and "noinstr" in done.err
    assert "cannot be planted" not in kinst("-l", "-n", "kinst::vfs_read:0").good().err


def test_a_function_of_freebsds_kernel() -> None:
    assert "(here: handle_mm_fault)" in kinst("-n", "kinst::vm_fault:4").err
