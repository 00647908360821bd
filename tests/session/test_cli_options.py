"""The command line: the effect of each option."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.cli.guard import UsageError
from kinst.cli.options import parse
from kinst.core.errors import KinstError
from kinst.isa import load
from kinst.session.request_machine import guest_append
from kinst.systems import of_host


def test_clustered_and_interleaved() -> None:
    request = parse(["-qn", "BEGIN", "one", "-v", "two"]).request
    assert request.settings == (("quiet", ""),)
    assert [(p.letter, p.text) for p in request.programs] == [("n", "BEGIN")]
    assert request.arguments == ("one", "two")
    assert request.verbose


def test_vm_takes_an_optional_isa() -> None:
    vm = parse(["--vm", "-l"]).request.machine
    assert (vm.kind, vm.isa) == ("vm", "")
    assert parse(["--vm=arm64"]).request.machine.isa == "arm64"
    assert parse(["--vm", "arm64", "-l"]).request.machine.isa == "arm64"
    beside = parse(["--vm", "vfs_read", "arm64"]).request
    assert (beside.machine.isa, beside.arguments) == ("", ("vfs_read", "arm64"))
    assert parse([]).request.machine.kind == ""
    assert parse(["--", "--vm"]).request.arguments == ("--vm",)


def test_repeated() -> None:
    request = parse(["--qemu-arg", "-s", "--qemu-arg", "-S", "-x", "a=1", "-x", "b"]).request
    assert request.machine.qemu_args == ("-s", "-S")
    assert request.settings == (("a", "1"), ("b", ""))


def test_script(tmp_path: Path) -> None:
    script = tmp_path / "x.d"
    script.write_text("BEGIN { exit(0); }")
    (program,) = parse(["-s", str(script)]).request.programs
    assert (program.letter, program.text, program.file) == ("s", "BEGIN { exit(0); }", str(script))
    assert parse(["-qs", "-"], lambda: "END").request.programs[0].text == "END"
    with pytest.raises(KinstError, match="failed to open /nonexistent: No such file"):
        parse(["-s", "/nonexistent"])


def test_the_users_files() -> None:
    request = parse(["--root", "/", "--rw", "/a", "--rw", "/b", "--shell"]).request
    machine = request.machine
    assert (machine.root, machine.writable, request.shell) == ("/", ("/a", "/b"), True)
    assert parse(["--build", "/k"]).request.machine.build == "/k"


def test_a_helper_beside_the_users_init() -> None:
    """The helper is started in place of the user's init, and told of that init."""
    beside = " rdinit=/.kinst/init kinst_init="
    own = ["--initrd", "/none"]
    for words, expected in (
        ([*own, "--append", "quiet"], "quiet"),
        ([*own, "-c", "ls", "--append", "quiet"], f"quiet{beside}/init"),
        ([*own, "--shell", "--append", "rdinit=/a rdinit=/b"], f"rdinit=/a rdinit=/b{beside}/b"),
        (["-c", "ls", "--append", "quiet"], "quiet"),
    ):
        assert guest_append(parse(words).request, of_host().boot(load("amd64"))) == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--shell", "-c", "ls"],
        ["--root", "/", "--copy", "x"],
        ["--root", "/", "--initrd", "x"],
        ["--rw", "/", "--gdb", "x", "--kernel", "x"],
        ["--build", "x", "--kernel", "x", "--debug", "y"],
        ["--shell", "--gdb", "x", "--kernel", "x"],
        ["--live", "-p", "1", "-c", "ls"],
        ["--live", "-p", "1", "-p", "2"],
    ],
)
def test_what_excludes_one_another(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv)


def test_a_process_that_runs() -> None:
    assert parse(["--live", "-p", "12"]).request.machine.process == 12
    assert parse(["--live"]).request.machine.process == 0
    for machine in ([], ["--vm"], ["--gdb", "x", "--kernel", "x"]):
        with pytest.raises(
            UsageError,
            match=r"-p is an option of --live and --process, not of --(vm|gdb) \(a predicate",
        ):
            parse([*machine, "-p", "12"])


def test_timeout() -> None:
    assert parse(["--timeout", "1.5"]).request.timeout == 1.5
    assert parse([]).request.timeout is None


@pytest.mark.parametrize(
    "argv",
    [
        ["-k"],
        ["--nosuch"],
        ["-n"],
        ["-X", "z"],
        ["-c", ""],
        ["--dump", "all"],
        ["--timeout", "soon"],
        ["--timeout", "0"],
        ["--timeout", "-1"],
        ["--timeout", "inf"],
        ["--live", "-p", "0"],
        ["--live", "-p", "init"],
        ["--live", "-p", "²"],
    ],
)
def test_usage_errors(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv)


def test_cpus_and_memory() -> None:
    request = parse(["--cpus", "8", "--memory", "3g"]).request
    assert (request.machine.cpus, request.cpus, request.machine.memory) == (8, 8, 3 << 30)
    assert parse([]).request.cpus == 2
    assert parse(["--memory", "134217729"]).request.machine.memory == 65 << 21
    for wrong in (["--cpus", "0"], ["--cpus", "x"], ["--cpus", "256"], ["--memory", "64m"]):
        with pytest.raises(UsageError, match=f"^{wrong[0]} {wrong[1]}: "):
            parse(wrong)
    with pytest.raises(UsageError, match="both say how many"):
        parse(["--cpus", "2", "--qemu-arg", "-smp", "--qemu-arg", "2"])
    with pytest.raises(UsageError, match="--cpus is an option of --vm, not of --gdb"):
        parse(["--gdb", ":1", "--kernel", "vmlinux", "--cpus", "2"])
