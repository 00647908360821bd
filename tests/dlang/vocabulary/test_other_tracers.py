"""Input of people who know other tracers, and kinst's answers."""

from __future__ import annotations

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.core.errors import DError
from kinst.core.probe import ProbeName, ProbePattern
from kinst.dlang.api import compile_text, parse_option
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary import builtins, other_tracers
from kinst.isa import load, names, register_hint
from kinst.providers import load_all
from kinst.session.descriptions import check_providers, naming


def pattern_of(description: str) -> ProbePattern:
    (clause,) = parse_option("n", description).items
    assert isinstance(clause, tree.ClauseNode)
    return clause.descriptions[0].pattern


def refusal(text: str) -> DError:
    with pytest.raises(DError) as caught:
        check_providers((parse_option("n", text),), load_all())
    return caught.value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kinst::vfs_read+19", ("kinst", "", "vfs_read", "19")),
        ("vfs_read+19", ("kinst", "", "vfs_read", "19")),
        ("kinst::vfs_read:+4", ("kinst", "", "vfs_read", "4")),
        ("kinst:ext4:ext4_sync_file:+0x1c", ("kinst", "ext4", "ext4_sync_file", "0x1c")),
        ("vfs_read+0x13/0x350", ("kinst", "", "vfs_read", "0x13")),
        ("kinst:ext4:ext4_sync_file+4", ("kinst", "ext4", "ext4_sync_file", "4")),
        ("ext4:ext4_sync_file+4", ("kinst", "ext4", "ext4_sync_file", "4")),
        ("kinst:fs/read_write.c:vfs_read:467", ("kinst", "", "vfs_read", "@read_write.c@467")),
        ("fs/read_write.c:vfs_read:467", ("kinst", "", "vfs_read", "@read_write.c@467")),
        ("fs/read_write.c:467", ("kinst", "", "fs/read_write.c@467", "")),
        ("read_write.c:467", ("kinst", "", "read_write.c@467", "")),
        ("kinst:fs/read_write.c::467", ("kinst", "", "fs/read_write.c@467", "")),
        ("kinst:fs/read_write.c:*:467", ("kinst", "", "fs/read_write.c@467", "")),
    ],
)
def test_places_as_other_tools_write_them(written: str, meant: tuple[str, str, str, str]) -> None:
    assert pattern_of(written) == ProbePattern(*meant)


@pytest.mark.parametrize(
    "written", ["kinst:fs/read_write.c:vfs_read:", "fs/read_write.c:vfs_read", "kinst:fs/a.h:"]
)
def test_a_file_without_a_line(written: str) -> None:
    with pytest.raises(DError) as caught:
        parse_option("n", f"{written} {{ @ = count(); }}")
    assert f"{written} has a file without a line" in caught.value.message
    assert "the form is FILE:LINE" in caught.value.hint


def test_members_of_freebsds_threads() -> None:
    with pytest.raises(DError) as caught:
        text = (
            "struct task_struct { int tgid; }; struct task_struct *p; BEGIN { trace(p->td_name); }"
        )
        compile_text(text, "test")
    assert caught.value.hint == "Linux: execname, or curthread->comm"


@pytest.mark.parametrize("written", ["main:entry", "malloc:return", "pthread_create:entry"])
def test_functions_of_programs(written: str) -> None:
    assert "pid$target:a.out:FUNCTION:entry" in refusal(written).hint


def test_a_predicate_follows_an_offset() -> None:
    (clause,) = parse_option("n", "vfs_read+19/pid == 1/{ trace(1); }").items
    assert isinstance(clause, tree.ClauseNode) and clause.predicate is not None
    assert clause.descriptions[0].pattern == ProbePattern("kinst", "", "vfs_read", "19")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kprobe:vfs_read { @[comm] = hist(arg2); }", "fbt::vfs_read:entry"),
        ("kretprobe:vfs_read", "fbt::vfs_read:return"),
        ("kprobe:vfs_read+19", "kinst::vfs_read:19"),
        ("kprobe:vfs_read@read_write.c:467", "kinst::vfs_read:@read_write.c@467"),
        ("fexit:vfs_read", "fbt::vfs_read:return"),
        ("p:vfs_read", "fbt::vfs_read:entry"),
        ("interval:s:5", "tick-5s"),
        ("interval:ms:10", "tick-10ms"),
        ("profile:hz:99", "profile-99"),
        ("tracepoint:sched:sched_switch", "in D: sdt:sched::sched_switch"),
        ("rawtracepoint:sched_switch", "in D: sdt:::sched_switch"),
        ("sched:sched_switch", "in D: sdt:sched::sched_switch"),
        ("tracepoint:syscalls:sys_enter_read", "in D: syscall::read:entry"),
        ("tracepoint:syscalls:sys_exit_*", "in D: syscall::*:return"),
        ("tracepoint:raw_syscalls:sys_enter", "in D: syscall:::entry"),
        ("syscalls:sys_exit_openat", "in D: syscall::openat:return"),
        ("t:syscalls:sys_enter_read", "in D: syscall::read:entry"),
        ("block:block_rq_*", "in D: sdt:block::block_rq_*"),
        ("tracepoint:sched:*", "in D: sdt:sched::*"),
        ("uprobe:/bin/bash:readline", "programs"),
        ("syscall:freebsd:read:entry", "in D: syscall::read:entry"),
        ("fbt:kernel:vfs_*:return", "in D: fbt:vmlinux:vfs_*:return"),
        ("sched:::on-cpu { trace(args[0]->pr_pid); }", "no such provider"),
    ],
)
def test_probes_of_other_tracers_are_told_before_anything_else(written: str, meant: str) -> None:
    if written.startswith("uprobe"):  # a path is no description of D's
        assert meant in other_tracers.probe_hint(ProbePattern("", "uprobe", "bash", "readline"))
        return
    if written.startswith(("syscall", "fbt")):  # a kernel might have such a module
        assert naming(pattern_of(written), load_all(), None) == meant
        return
    error = refusal(written)
    assert error.tag == "D_PDESC_ZERO" and error.span.column == 1
    assert meant in error.hint


def test_a_system_call_by_its_function() -> None:
    hint = naming(pattern_of("sys_read"), load_all(), None, [ProbeName("fsinfo", "", "", "read")])
    assert hint == "in D: syscall::read:entry"


def test_providers_of_libraries_are_among_those_that_may_be_meant() -> None:
    probes = [ProbeName("sched", "", "", "on-cpu"), ProbeName("fsinfo", "", "", "read")]

    def hint(text: str) -> str:
        with pytest.raises(DError) as caught:
            check_providers((parse_option("n", text),), load_all(), lambda: probes)
        return caught.value.hint

    assert hint("shed:::on-cpu") == "did you mean sched:::on-cpu?"
    assert "fbt, fsinfo, kinst" in hint("nothing::like:that")


@pytest.mark.parametrize(
    "fine",
    [
        "BEGIN", "tick-1s", "profile-97", "kinst::vfs_read:19", "fbt::kprobe:entry", "f*:::entry",
        "vmlinux:kprobe:return", "provider mine { probe it(); }; mine:::it { trace(1); }",
    ],
)  # fmt: skip
def test_descriptions_of_known_providers_are_not_refused(fine: str) -> None:
    check_providers((parse_option("n", fine),), load_all())


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ("@[comm] = count();", "execname"),
        ("@ = hist(1);", "quantize("),
        ("trace(nsecs);", "timestamp"),
        ("trace(str(0));", "copyinstr("),
        ("x = kstack;", "stack()"),
        ("trace($rdi);", "regs[R_RDI]"),
        ("trace($arg1);", "arg0"),
        ("trace($comm);", "execname"),
    ],
)
def test_names_of_other_tracers(body: str, meant: str) -> None:
    with pytest.raises(DError) as caught:
        compile_text(f"BEGIN {{ {body} }}", "test")
    assert meant in caught.value.hint


def test_no_name_of_the_tables_is_a_name_of_d() -> None:
    """A hint for a name that D has would never be shown."""
    free = {"pid", "tid", "ppid", "uid", "cpu", "execname", "probefunc"}  # no functions of D
    assert not set(other_tracers.FUNCTIONS) & set(prototypes())
    assert not set(other_tracers.FUNCTIONS) & (builtins.CALLABLE - free)
    assert not set(other_tracers.VARIABLES) & (set(builtins.VARIABLES) | builtins.ARRAYS)


def test_registers_of_another_spelling() -> None:
    amd64 = load("amd64")
    for spelt in ("rdx", "RDX", "%rdx", "R_rdx"):
        assert "regs[R_RDX]" in register_hint(amd64, spelt)
    assert register_hint(amd64, "count") == ""


@pytest.mark.parametrize("here", names())
@pytest.mark.parametrize("other", names())
def test_a_register_of_another_isa_is_told_by_its_argument(here: str, other: str) -> None:
    """Arguments: System V (rdi, rsi, rdx), AAPCS64 (x0 to x2) and RISC-V's psABI (a0 to a2)."""
    third = {"amd64": "R_RDX", "arm64": "R_X2", "riscv64": "R_A2"}
    hint = register_hint(load(here), third[other])
    assert third[here] in hint
    assert (other in hint) is (here != other)
