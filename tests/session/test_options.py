"""One table of options, used by the command line, the library and the machines."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import kinst
from kinst.api import opening
from kinst.cli import options as command_line
from kinst.core.errors import KinstError
from kinst.core.options import MachineOptions, Option
from kinst.machines import kinds
from kinst.session.request import Request

FIELDS = {field.name for one in (MachineOptions, Request) for field in fields(one)}
# Parameters that are not options: what to do with the machine, and the destination of messages.
OWN_PARAMETERS = {"start", "on_message", "on_progress"}
# Fields that several options share, or that have another name in the library.
RENAMED = {"release": "kernel", "address": "machine", "stub_address": "address", "kind": ""}


def table() -> list[Option]:
    return [option for option in command_line.options().values() if not option.refused]


def parameters(function: object) -> set[str]:
    return set(inspect.signature(function).parameters) - OWN_PARAMETERS  # type: ignore[arg-type]


def test_each_option_sets_a_field_that_there_is() -> None:
    shown = {"format", "shows"}  # of CommandLine
    for option in table():
        assert option.field in FIELDS | shown or not option.field, option.name
    # Fields that words without an option, or values of several options, set.
    set_otherwise = {"machine", "arguments", "preprocessor_path", "release", "debug_folders"}
    set_otherwise |= {"kind", "stub_address", "steady_time"}
    assert FIELDS - {option.field for option in table()} <= set_otherwise


def test_rules_and_machines_name_fields_that_there_are() -> None:
    for kind in kinds():
        assert set(kind.takes) <= FIELDS
        for rule in kind.rules:
            assert {*rule.given, *rule.beside, *rule.without} <= FIELDS


def test_boot_takes_what_the_option_that_needs_none_has() -> None:
    (kind,) = (kind for kind in kinds() if kind.name == "vm")
    own = {option.field for option in (kind.option, *kind.options)}
    shared = {"kernel", "debug", "debug_folders"}
    assert parameters(kinst.boot) == own | shared
    assert shared <= kind.takes


@pytest.mark.parametrize(
    ("words", "arguments", "message"),
    [
        (["--kernel", "/k"], {"kernel": "/k"}, "{kernel} needs its vmlinux with symbols"),
        (
            ["--kernel", "6.12", "--debug", "/d"],
            {"kernel": "6.12", "debug": "/d"},
            "{kernel} is fetched with its vmlinux: {debug} is for kernels of your own",
        ),
        (
            ["--initrd", "/i", "--copy", "/c"],
            {"initrd": "/i", "copies": ["/c"]},
            "{copies} changes kinst's initial RAM disk, which {initrd} replaces",
        ),
        (
            ["--initrd", "/i", "--rw", "/c"],
            {"initrd": "/i", "writable": ["/c"]},
            "{writable} changes kinst's initial RAM disk, which {initrd} replaces",
        ),
        (
            ["--root", "/", "--copy", "/c"],
            {"root": "/", "copies": ["/c"]},
            "with {root}, commands see only that folder, not the file of {copies}",
        ),
        (
            ["--cpus", "3", "--qemu-arg", "-smp", "--qemu-arg", "2"],
            {"cpus": 3, "qemu_args": ["-smp", "2"]},
            "{cpus} and -smp in {qemu_args} both say how many CPUs there are",
        ),
        (
            ["--accel", "tcg", "--qemu-arg", "-accel", "--qemu-arg", "kvm"],
            {"accel": "tcg", "qemu_args": ["-accel", "kvm"]},
            "{accel} and -accel in {qemu_args} both say what runs the guest",
        ),
        (
            ["--boot", "--accel", "kvm"],
            {"trace_boot": True, "accel": "kvm"},
            "{trace_boot} stops the guest at each hit, which works under TCG alone",
        ),
        (
            ["--boot", "--qemu-arg", "-accel", "--qemu-arg", "kvm"],
            {"trace_boot": True, "qemu_args": ["-accel", "kvm"]},
            "{trace_boot} stops the guest at each hit, which works under TCG alone",
        ),
        (["--cpus", "0"], {"cpus": 0}, "{cpus}: the value is not a number of CPUs"),
        (["--memory", "1k"], {"memory": "1k"}, "{memory}: too little memory to boot in"),
    ],
)
def test_the_library_and_the_command_refuse_the_same(
    words: list[str], arguments: dict[str, object], message: str
) -> None:
    """Messages are the same, except for the names of the options."""
    spelled = {"kernel": f"--kernel {arguments.get('kernel')}", "copies": "--copy",
               "writable": "--rw", "qemu_args": "--qemu-arg", "trace_boot": "--boot"}  # fmt: skip
    named = {name: spelled.get(name, f"--{name}") for name in parameters(kinst.boot)}
    called = {name: f"{name}=" for name in named} | {
        "kernel": f"kernel={arguments.get('kernel')!r}"
    }
    for name in ("cpus", "memory"):
        if f"{{{name}}}:" in message:
            named[name] += f" {arguments[name]}"
            called[name] += f"{arguments[name]}"
    with pytest.raises(KinstError) as of_command:
        command_line.parse(words)
    with pytest.raises(KinstError) as of_library:
        kinst.boot(**arguments, start=False)  # type: ignore[arg-type]
    assert of_command.value.message == message.format(**named)
    assert of_library.value.message == message.format(**called)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--live", "--cpus", "2"], "--cpus is an option of --vm, not of --live"),
        (["--gdb", ":1", "--kernel", "/k", "-c", "ls"],
         "-c is an option of --vm and --live and --process, not of --gdb"),
        (["--live", "--kernel", "/k"],
         "--kernel /k is an option of --vm and --attach and --gdb, not of --live"),
        (["--live", "--shell"], "--shell is an option of --vm, not of --live"),
        (["--vm", "--gdb", ":1"], "--vm and --gdb: one machine at a time"),
        (["--live", "--attach", "auto"], "--attach and --live: one machine at a time"),
        (["--gdb", ":1"], "--gdb needs the kernel's symbols"),
        (["--live", "-p", "1", "-c", "ls"], "-c and -p both say which process $target is"),
        (["--build", "/b", "--debug", "/d"], "--build and --debug both say which kernel"),
        (["-c", "ls", "--shell"], "-c and --shell both run something in the guest"),
    ],
)  # fmt: skip
def test_options_of_another_machine(words: list[str], message: str) -> None:
    with pytest.raises(KinstError) as error:
        command_line.parse(words)
    assert error.value.message == message


def test_attach_may_have_the_stub_of_its_machine() -> None:
    for words in (["--attach", "7", "--gdb", ":1"], ["--gdb", ":1", "--attach", "7"]):
        machine = command_line.parse([*words, "--kernel", "/k"]).request.machine
        assert (machine.kind, machine.address, machine.stub_address) == ("attach", "7", ":1")
    alone = command_line.parse(["--gdb", ":1", "--kernel", "/k"]).request.machine
    assert (alone.kind, alone.address, alone.stub_address) == ("gdb", ":1", "")


def test_attach_and_live_are_checked_by_the_table() -> None:
    with pytest.raises(KinstError, match="needs the kernel's symbols"):
        opening.attach(":1", start=False)
    with pytest.raises(KinstError, match="needs a machine"):
        opening.attach(kernel="/k", start=False)
