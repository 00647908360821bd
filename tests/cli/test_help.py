"""--help, and the reply to a wrong command line: one line, and where to look."""

from __future__ import annotations

import pytest

from kinst.cli import command, inlinecall
from kinst.cli.options import help_text


def test_help_begins_with_usage_and_three_one_liners(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown == help_text() and shown.startswith("usage: kinst ")
    _, first, options = shown.split("\n\n", 2)
    lines = first.splitlines()
    assert [line.startswith("  kinst ") for line in lines] == [False, True] * 3
    assert all(len(line) < 100 for line in shown.splitlines())
    assert options.startswith("What is traced:\n  -n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nosuch"], "kinst: option --nosuch not recognized"),
        ([], "kinst: no probes specified (-n or -s names some)"),
        (
            ["-l", "vfs_read"],
            "kinst: no probes specified (-f vfs_read names a function, -n a program)",
        ),
        ([__file__], f"kinst: no probes specified (-s {__file__} reads the program in this file)"),
        (["flmae", "-c", "ls"], "kinst: no probes specified (did you mean kinst flame?)"),
        # as bpftrace and perf are called
        (
            ["-e", "kprobe:f { @ = hist(1); }"],
            "kinst: no probes specified (type: kinst -n 'fbt::f:entry { @ = quantize(1); }')",
        ),
        (
            ["-q", "fbt::f:entry { @ = count(); }", "-c", "ls"],
            "kinst: no probes specified (type: kinst -q -n 'fbt::f:entry { @ = count(); }' -c ls)",
        ),
        (
            ["-l", "kprobe:vfs_*"],
            "kinst: no probes specified (type: kinst -l -n 'fbt::vfs_*:entry')",
        ),
        (["list"], "kinst: no probes specified (-l -n 'fbt::vfs_*:entry' lists probes)"),
        (["help"], "kinst: no probes specified (kinst --help)"),
        (["heat", "--help"], "kinst: there is no kinst heat (kinst plot draws heat maps)"),
        (["flmae", "-h"], "kinst: there is no kinst flmae (did you mean kinst flame?)"),
        (
            ["--gdb", ":1", "--kernel", "6.12", "-n", "BEGIN"],
            "kinst: --kernel 6.12 is an option of --vm, not of --gdb (--debug says which vmlinux is"
            " traced)",
        ),
        (
            ["--kernel", "6.12", "--debug", "vmlinux", "-n", "BEGIN"],
            "kinst: --kernel 6.12 is fetched with its vmlinux: --debug is for kernels of your own"
            " (leave out --debug)",
        ),
        (
            ["--kernel", "./6.12", "-n", "BEGIN"],
            "kinst: --kernel ./6.12 needs its vmlinux with symbols (--debug VMLINUX)",
        ),
        (["-c", "", "-n", "BEGIN"], "kinst: -c: the command is empty"),
        (
            ["-n", "kinst::vfs_read:0", "/pid/", "{", "@=count()", "}"],
            "kinst: the shell has split the program after kinst::vfs_read:0"
            " (quote it: -n 'kinst::vfs_read:0 { ... }')",
        ),
    ],
)
def test_wrong_command_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [message, "Try 'kinst --help'."]
    assert shown.out == ""


def test_wrong_command_line_of_inlinecall(capsys: pytest.CaptureFixture[str]) -> None:
    assert inlinecall.main(["fdget"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "inlinecall: a function and a file are needed (inlinecall FUNCTION FILE)",
        "Try 'inlinecall --help'.",
    ]


def test_a_list_without_descriptions_says_how_to_list_a_kernel_s_probes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """-l lists what needs no kernel; with a description it lists that alone, and says nothing."""
    assert command.main(["-l"]) == 0
    first = capsys.readouterr()
    assert "BEGIN" in first.out and first.err.endswith(": kinst -l -P syscall\n")
    assert command.main(["-l", "-n", "BEGIN"]) == 0
    assert not capsys.readouterr().err
