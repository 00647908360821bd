"""Programs of other tracers: the command line in D that follows the error can be pasted."""

from __future__ import annotations

import shlex

import pytest

from kinst.api.compiling import Compiler
from kinst.cli.command import main
from kinst.core.errors import DError
from kinst.core.probe import ProgramText
from kinst.dlang.vocabulary.translation import translate
from kinst.kernels.fetch import Prepared
from kinst.session.report import Report
from kinst.session.request import Request

REPORT = Report(lambda text: None, lambda work, part: None, 0.0)
# From bpftrace's tutorial of one-liners and its README, perf-probe(1) and kprobetrace.rst, with the
# names of functions that Debian's 6.1 has; two with FreeBSD's names.
ONE_LINERS = (
    ("kprobe:vfs_read { @[comm] = hist(arg2); }",
     "fbt::vfs_read:entry { @[execname] = quantize(arg2); }"),
    (r'tracepoint:syscalls:sys_enter_openat { printf("%s %s\n", comm, str(args.filename)); }',
     r'syscall::openat:entry { printf("%s %s\n", execname, copyinstr(arg1)); }'),
    ("tracepoint:raw_syscalls:sys_enter { @[comm] = count(); }",
     "syscall:::entry { @[execname] = count(); }"),
    ("tracepoint:syscalls:sys_exit_read /pid == 18644/ { @bytes = hist(args.ret); }",
     "syscall::read:return /pid == 18644/ { @bytes = quantize(arg1); }"),
    ("kretprobe:vfs_read { @bytes = lhist(retval, 0, 2000, 200); }",
     "fbt::vfs_read:return { @bytes = lquantize(arg1, 0, 2000, 200); }"),
    ("kprobe:vfs_read { @start[tid] = nsecs; } kretprobe:vfs_read /@start[tid]/"
     " { @ns[comm] = hist(nsecs - @start[tid]); delete(@start, tid); }",
     "fbt::vfs_read:entry { self->start = timestamp; } fbt::vfs_read:return /self->start/"
     " { @ns[execname] = quantize(timestamp - self->start); self->start = 0; }"),
    ("tracepoint:sched:sched* { @[probe] = count(); } interval:s:5 { exit(); }",
     "sdt:sched::sched* { @[probename] = count(); } tick-5s { exit(0); }"),
    ("profile:hz:99 { @[kstack] = count(); }", "profile-99 { @[stack()] = count(); }"),
    ("tracepoint:sched:sched_switch { @[kstack(5)] = count(); }",
     "sdt:sched::sched_switch { @[stack(5)] = count(); }"),
    (r'kprobe:vfs_open { printf("%s\n", str(((struct path *)arg0)->dentry->d_name.name)); }',
     r'fbt::vfs_open:entry { printf("%s\n",'
     r" stringof(((struct path *)arg0)->dentry->d_name.name)); }"),
    ("kprobe:vfs_* { @[func]++; } interval:s:1 { print(@, 5); clear(@); }",
     "fbt::vfs_*:entry { @[probefunc] = count(); } tick-1s { trunc(@, 5); printa(@); clear(@); }"),
    ("tracepoint:syscalls:sys_exit_read /args.ret > 0/ { @[pid, comm] = sum(args.ret); }",
     "syscall::read:return /arg1 > 0/ { @[pid, execname] = sum(arg1); }"),
    (r'kprobe:do_sys_openat2 { time("%H:%M:%S "); printf("%s %s\n", comm, str(arg1)); }',
     r'fbt::do_sys_openat2:entry { printf("%Y", walltimestamp);'
     r' printf("%s %s\n", execname, copyinstr(arg1)); }'),
    (r'kprobe:vfs_read { $n = (uint64)arg2; if ($n > 4096) { printf("%d\n", $n); } }',
     "fbt::vfs_read:entry { this->n = (uint64_t)arg2;"
     r' if (this->n > 4096) { printf("%d\n", this->n); } }'),
    (r'fentry:vfs_read { printf("%d\n", args.count); } // sizes',
     r'fbt::vfs_read:entry { printf("%d\n", locals->count); } /* sizes */'),
    ("kprobe:vfs_read { @last[comm] = elapsed; @calls += 1; @total += arg2; }",
     "BEGIN { begun = timestamp; } fbt::vfs_read:entry { last[execname] = (timestamp - begun);"
     " @calls = sum(1); @total = sum(arg2); }"),
    ("kprobe:vfs_read { @reads[comm] = @reads[comm] + 1; } kretprobe:vfs_read"
     " { @sum = @sum + retval - 1; @last = 1; @last = @last + 1; printf(\"%d\", @last); }",
     "fbt::vfs_read:entry { @reads[execname] = sum(1); } fbt::vfs_read:return"
     ' { @sum = sum(arg1 - 1); last = 1; last += 1; printf("%d", last); }'),
    ("begin { @pid = 5; } kprobe:vfs_read /pid == @pid/ { @ = count(); } end { print(@pid); }",
     "BEGIN { pid_ = 5; } fbt::vfs_read:entry /pid == pid_/ { @ = count(); }"
     " END { trace(pid_); }"),
    ("fbt:kernel:vfs_read:entry { @[comm, curthread->td_proc->p_pid] = count(); }",
     "fbt:vmlinux:vfs_read:entry { @[execname, pid] = count(); }"),
    ('fbt::vfs_read:entry { printf("%s", stringof(curthread->td_proc->p_comm)); }',
     'fbt::vfs_read:entry { printf("%s", execname); }'),
    ("vfs_read%return $retval", r'fbt::vfs_read:return { printf("retval=%#x\n", arg1); }'),
    ("p:vfs_read+19 %dx",
     r'kinst::vfs_read:19 { printf("dx=%#x\n", regs[R_RDX]); }'),
    ("r:vfs_read $retval", r'fbt::vfs_read:return { printf("retval=%#x\n", arg1); }'),
    ("kprobe:vfs_read@fs/read_write.c:467 /pid/ { @ = count(); }",
     "kinst::vfs_read:@read_write.c@467 /pid/ { @ = count(); }"),
    ("p:name do_sys_openat2 file=%si:ustring flags=+0(%dx) $comm $arg1",
     r'fbt::do_sys_openat2:entry { printf("file=%s flags=%#x comm=%s arg1=%#x\n",'
     " copyinstr(regs[R_RSI]), *(uint64_t *)(regs[R_RDX]), execname, arg0); }"),
    ("vfs_read file count", "fbt::vfs_read:entry { "
     r'printf("file=%#x count=%#x\n", (uint64_t)locals->file, (uint64_t)locals->count); }'),
    ("p vfs_read+19 %dx", r'kinst::vfs_read:19 { printf("dx=%#x\n", regs[R_RDX]); }'),
)  # fmt: skip


@pytest.mark.parametrize(
    "program",
    ["fbt::vfs_read:entry { @ = quantise(arg2); }",
     "fbt::vfs_read:entry { @[execname] = counts(); }",
     "BEGIN { @a = 5; }", "BEGIN { printa(@x); }", "BEGIN { @total[pid] = arg0; }"],
)  # fmt: skip
def test_a_mistake_in_an_aggregation_of_d_is_no_bpftrace(program: str) -> None:
    assert translate(program) == program


# As scripts are written that come with bpftrace.
SCRIPT = r"""#!/usr/bin/env bpftrace
// Latency of reads, see http://example.org
BEGIN
{
	printf("Tracing // reads... Hit Ctrl-C to end.\n");
}

kprobe:vfs_read
{
	@start[tid] = nsecs;
}

kretprobe:vfs_read
/@start[tid]/
{
	$us = (nsecs - @start[tid]) / 1000;
	@us[comm] = hist($us);
	delete(@start[tid]); // done
}

END
{
	clear(@start);
}
"""


def test_a_script_keeps_its_lines(prepared: Prepared) -> None:
    asked = Request(programs=(ProgramText("s", SCRIPT, "reads.bt"),))
    with pytest.raises(DError) as caught:
        Compiler(asked, REPORT).compile(asked)
    translation = caught.value.translation
    assert translation is not None
    ((_, text),) = translation.texts
    assert len(text.splitlines()) == len(SCRIPT.splitlines())
    assert text.splitlines()[1] == "/* Latency of reads, see http://example.org */"
    assert r'printf("Tracing // reads... Hit Ctrl-C to end.\n");' in text
    assert "\t@us[execname] = quantize(this->us);\n\tself->start = 0; /* done */\n" in text
    assert "END\n{\n\t/* @start is a variable" in text
    assert translation.error == ""


def refused(text: str) -> DError:
    """Return the error of a program that is no D."""
    asked = Request(programs=(ProgramText("n", text, "-n"),))
    with pytest.raises(DError) as caught:
        Compiler(asked, REPORT).compile(asked)
    return caught.value


@pytest.mark.parametrize(("written", "meant"), ONE_LINERS)
def test_one_liners_of_other_tracers_compile_in_d(
    written: str, meant: str, prepared: Prepared
) -> None:
    translation = refused(written).translation
    assert translation is not None and translation.error == ""
    assert translation.texts == ((written, meant),)
    asked = Request(programs=(ProgramText("n", meant, "-n"),))
    compiler = Compiler(asked, REPORT)
    compiler.check_functions(compiler.compile(asked))  # by itself, as if it were pasted


@pytest.mark.parametrize(
    ("written", "remains"),
    [
        ("kprobe:vfs_read { join(comm); }", "undefined function name: join"),
        ("kprobe:vfs_reed { @[comm] = count(); }", "vfs_reed"),
        ("kprobe:vfs_read { while (1) { @ = count(); } }", "syntax error"),
    ],
)
def test_what_cannot_be_translated_is_told_with_the_rest(
    written: str, remains: str, prepared: Prepared
) -> None:
    translation = refused(written).translation
    assert translation is not None and remains in translation.error
    assert translation.texts[0][1].startswith("fbt::vfs_re")


@pytest.mark.parametrize(
    "text",
    [
        "BEGIN { trace(timestmp); }",
        "BEGIN { x = ; }",
        "BEGIN {",
        "fbt::vfs_read:entry {",
        "#!/usr/sbin/dtrace -s\n#pragma D option quiet\nBEGIN{ trace($$1); }",
        "fbt::vfs_read:entry,fbt::vfs_write:entry { trace(nothing) }",
    ],
)
def test_wrong_programs_in_d_have_no_translation(text: str) -> None:
    assert refused(text).translation is None


def test_the_whole_command_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-q", "-n", "BEGIN { @ = hist(3); }", "-n", "END { trace(pid); }", "-c", "echo 'a b'"]
    assert main(words) == 1
    *_, before, line = capsys.readouterr().err.splitlines()
    assert before == "kinst: the whole line in D:"
    words[2] = "BEGIN { @ = quantize(3); }"
    assert shlex.split(line) == ["kinst", *words]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kprobe:vfs_read { @x[tid] = (comm, arg2); }", "self->x = tuple(execname, arg2)"),
        ("kprobe:vfs_read { print((comm, arg2)); }", "print(tuple(execname, arg2))"),
    ],
)
def test_a_tuple_is_to_be_changed(written: str, meant: str, prepared: Prepared) -> None:
    translation = refused(written).translation
    assert translation is not None
    assert meant in translation.texts[0][1]
    assert "undefined function name: tuple (in D: a variable for each value)" in translation.error
