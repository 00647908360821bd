"""Options as data, from which kinst makes the command line, the library's parameters, --help,
completion and checks.

Tested by tests/session/test_options.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinst.core.errors import KinstError


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The user's options that select and configure the machine to trace. Paths are as the user
    wrote them."""

    # The kind of machine (a name in kinst.machines), "" for the one that needs no option.
    kind: str = ""
    # The instruction set of a guest, "" for the usual one.
    isa: str = ""
    # Where a machine is that runs already: of its option (--attach, --gdb).
    address: str = ""
    # The address of its GDB stub, if that was given besides.
    stub_address: str = ""
    # The id of a process that runs there and becomes $target; traces end with it.  0 for none.
    process: int = 0
    # The user's kernel: a file.
    kernel: str = ""
    # One of Debian's kernels instead (kernels/releases.py).
    release: str = ""
    # The vmlinux with symbols.
    debug: str = ""
    # Folders with debug files of modules.
    debug_folders: tuple[str, ...] = ()
    # A folder in which a kernel was built.
    build: str = ""
    # An initial RAM disk in place of kinst's.
    initrd: str = ""
    # More of the kernel's command line.
    append: str = ""
    # How many CPUs a guest has, 0 for the usual number.
    cpus: int = 0
    # Bytes of a guest's memory, 0 for the usual size.
    memory: int = 0
    # Boot, even if a saved state of such a guest exists.
    cold: bool = False
    # More arguments for QEMU.
    qemu_args: tuple[str, ...] = ()
    # Files for the guest's /bin.
    copies: tuple[str, ...] = ()
    # Kernel modules that the guest loads at boot.
    modules: tuple[str, ...] = ()
    # The host's folder on which the guest's commands run.
    root: str = ""
    # Folders of the host that they write to.
    writable: tuple[str, ...] = ()


NO_OPTIONS = MachineOptions()


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line. An option of a machine is also a keyword parameter of the
    library, under the name of its field."""

    # As it is written: "-c", "--cpus".
    name: str
    # What --help calls its value, "" if it takes none.  FILE and DIR are completed as such.
    value: str = ""
    # What it does, for --help.
    help: str = ""
    # The field of Request or MachineOptions that it sets.
    field: str = ""
    # Makes the field's value of the text.  Raises KinstError.
    read: Callable[[str], object] = str
    # The field's value for an option that takes none.
    constant: object = True
    # Each one adds to the field, a tuple.
    repeats: bool = False
    # The value may be left out: --vm, --vm=ISA.
    optional: bool = False
    # The values that it takes, if they are few.
    words: tuple[str, ...] = ()
    # What to do with a machine that does not have it.
    instead: str = ""
    # Why kinst does not have this option of dtrace(1).
    refused: str = ""

    def parse(self, text: str, given: str) -> object:
        """Return the field's value for the text of an option.

        Args:
            text: the option's value, as written.
            given: the option as the user wrote it, for messages.

        Raises KinstError."""
        if self.words and text not in self.words:
            raise KinstError(f"{given}: no such {self.value.lower()}", ", ".join(self.words))
        try:
            return self.read(text)
        except KinstError as error:
            raise KinstError(f"{given}: {error.message}", error.hint) from error


@dataclass(frozen=True, slots=True)
class Rule:
    """A combination of options that is an error: one of `given` and one of `beside` were given, and
    none of `without`. All three are names of fields."""

    given: tuple[str, ...]
    # What is wrong: {given} and {beside} become the options that were given, and the name of any
    # other field in braces becomes its option.
    message: str
    # What to do, in the same form.
    hint: str = ""
    # Empty: one of `given` is enough by itself.
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    # A further condition.
    when: Callable[[MachineOptions], bool] = lambda options: True
