"""Options as data, from which kinst makes the command line, the library's parameters, --help,
completion and checks.

Tested by tests/session/test_options.py."""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The user's options that select and configure the machine to trace. Paths are as the user
    wrote them."""

    # The kind of machine (a name in kinst.machines), "" for the one that needs no option.
    kind: str = ""
    # The instruction set of a guest, "" for the usual one.
    isa: str = ""
    # The address of a running machine, from its option (--attach, --gdb).
    address: str = ""
    # The address of the machine's GDB stub, if the user gave it in addition.
    stub_address: str = ""
    # The id of a process of the machine that becomes $target; traces end with it.  0 for none.
    process: int = 0
    # The file of the user's kernel.
    kernel: str = ""
    # A kernel of Debian, in place of the user's (kernels/releases.py).
    release: str = ""
    # The file vmlinux, with symbols.
    debug: str = ""
    # Folders with debug files of modules.
    debug_folders: tuple[str, ...] = ()
    # A folder in which a kernel was built.
    build: str = ""
    # The user's initial RAM disk, in place of kinst's.
    initrd: str = ""
    # The user's additions to the kernel's command line.
    append: str = ""
    # How many CPUs a guest has, 0 for the usual number.
    cpus: int = 0
    # Bytes of a guest's memory, 0 for the usual size.
    memory: int = 0
    # The accelerator of a guest ("kvm", "tcg"), "" to let kinst choose.
    accel: str = ""
    # Boot, even if a saved state of such a guest exists.
    cold: bool = False
    # Trace from the first function of the kernel's boot on, instead of from the end of its boot.
    trace_boot: bool = False
    # Let a guest's time pass by the instructions that it executes, and not by the host's clock. The
    # guest has one CPU then.
    steady_time: bool = False
    # The user's additional arguments for QEMU.
    qemu_args: tuple[str, ...] = ()
    # Files to copy to the guest's /bin.
    copies: tuple[str, ...] = ()
    # Kernel modules that the guest loads at boot.
    modules: tuple[str, ...] = ()
    # The folder of the host that is the root of the guest's commands.
    root: str = ""
    # Folders of the host that the guest's commands may write to.
    writable: tuple[str, ...] = ()


NO_OPTIONS = MachineOptions()


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line. If it configures a machine, kinst.boot() and similar functions
    have a keyword parameter for it; `field` is the parameter's name."""

    # The option as it is written: "-c", "--cpus".
    name: str
    # The name of its value in --help, "" if it takes none.  FILE and DIR are completed as files and
    # folders.
    value: str = ""
    # Its description in --help.
    help: str = ""
    # The field of Request or MachineOptions that it sets.
    field: str = ""
    # Converts the option's text to the field's value.  Raises KinstError.
    read: Callable[[str], object] = str
    # The field's value for an option that takes none.
    constant: object = True
    # Whether the option may be repeated: each use adds to the field, a tuple.
    repeats: bool = False
    # Whether the value may be left out: --vm, --vm=ISA.
    optional: bool = False
    # The values that it takes, if they are few.
    words: tuple[str, ...] = ()
    # Hint for the user of a machine that does not have the option.
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
    """An error in a combination of options: the user gave one of the options `given` and one of the
    options `beside`, and none of the options `without`. All three are tuples of field names."""

    given: tuple[str, ...]
    # The error message.  {given} and {beside} become the options that were given; the name of any
    # other field in braces becomes the option of that field.
    message: str
    # The hint, in the form of `message`.
    hint: str = ""
    # If empty, an option of `given` alone is an error.
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    # A further condition for the error.
    when: Callable[[MachineOptions], bool] = lambda options: True
