"""Loaded modules of a running Linux kernel: their functions, tables and sections, read from memory.

kinst finds all of this by struct module (include/linux/module.h): the symbols for kallsyms, the
tables that the kernel used when it loaded the module, and the addresses of the module's sections.
kinst needs no file to trace a module by function or instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.probe import Function
from kinst.core.system import Section
from kinst.core.words import MASK
from kinst.image.btf import Btf
from kinst.image.elf import SYMBOL
from kinst.image.orc import ENTRY, Orc, numbers_of
from kinst.systems.linux.ftrace import Ftrace
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.refusals import BUG, FIXUP, JUMP_LABEL, STATIC_CALL
from kinst.systems.linux.tables import STATIC_CALL_FLAGS, Spans, spans

U64 = npt.NDArray[np.uint64]

MAX_MODULES = 4096
MAX_TABLE = 1 << 22  # most entries of a module's table; with more, the memory is not a module
MAX_SECTIONS = 1024
TEXT_LETTERS = frozenset(b"tTwW")
STT_FUNC = 2
BUG_SIZE = 2
LIVE = 0  # MODULE_STATE_LIVE


@dataclass(frozen=True)
class Module:
    """One loaded module, at running addresses.

    Attributes:
        text: [start, end) of its code.
        functions: its functions, in address order.
        sections: its sections and their addresses.
        exceptions: instructions with an exception-table entry.
        bugs: BUG and WARN trap instructions.
        jump_labels: nops and jumps of static keys.
        static_calls: call instructions of static calls.
        forbidden: (start, end, reason) of code that must not be planted.
        orc: the module's ORC table, or None.
        fixups: address at which control continues after a fault, by the faulting instruction.
        label_targets: branch targets of static keys.
        static_call_keys: the address of each static call, and of its struct static_call_key.
        jump_table: address and bytes of its jump table.
        tracepoint_table: address of its list of tracepoints, and their number.
        event_table: address of its list of trace events, and their number.
    """

    name: str
    text: tuple[int, int]
    functions: tuple[Function, ...]
    sections: tuple[Section, ...]
    exceptions: Spans
    bugs: Spans
    jump_labels: Spans
    static_calls: Spans
    forbidden: tuple[tuple[int, int, str], ...]
    orc: Orc | None
    fixups: Mapping[int, int]
    label_targets: U64
    static_call_keys: tuple[U64, U64]
    jump_table: tuple[int, bytes] = (0, b"")
    tracepoint_table: tuple[int, int] = (0, 0)
    event_table: tuple[int, int] = (0, 0)

    def holds(self, address: int) -> bool:
        return self.text[0] <= address < self.text[1]


class _ModuleStruct:
    """A struct module in the running kernel's memory, read by the names of its members."""

    def __init__(self, kernel: LinuxMemory, btf: Btf, at: int) -> None:
        self._kernel = kernel
        self._btf = btf
        self._at = at

    def has(self, path: str) -> bool:
        return self._btf.has("module", path)

    def place(self, path: str) -> int:
        return self._at + self._btf.offset("module", path)

    def number(self, path: str, size: int = 8) -> int:
        return self._kernel.number(self.place(path), size)

    def table(self, pointer: str, count: str, entry: int) -> tuple[int, bytes]:
        """Read a table of the module and return its address and its bytes; (0, b"") if the kernel
        was built without that table.

        Args:
            pointer: member of struct module with the table's address.
            count: member with the number of entries.
            entry: size of an entry in bytes.
        """
        if not self.has(pointer):
            return 0, b""
        number, start = self.number(count, 4), self.number(pointer)
        if number > MAX_TABLE:
            raise KinstError(
                f"a loaded module's table {pointer} is damaged: {number} entries are too many"
            )
        return start, self._kernel.read(start, number * entry) if number and start else b""

    def counted(self, pointer: str, count: str) -> tuple[int, int]:
        """Return (address of a list of the module, number of its entries); (0, 0) if the kernel was
        built without that list.

        Args:
            pointer: member of struct module with the list's address.
            count: member with the number of entries.
        """
        if not self.has(pointer):
            return 0, 0
        number = self.number(count, 4)
        if number > MAX_TABLE:
            raise KinstError(
                f"a loaded module's table {pointer} is damaged: {number} entries are too many"
            )
        return self.number(pointer), number

    def relative(self, pointer: str, count: str, entry: int, offset: int = 0) -> U64:
        """Read a table of the module that stores addresses as 32-bit distances, and return these
        addresses in the table's order.

        Args:
            pointer: member of struct module with the table's address.
            count: member with the number of entries.
            entry: size of an entry in bytes.
            offset: where in each entry the distance is, in bytes. The table means this address: the
                distance, plus the running address of the distance itself.
        """
        start, raw = self.table(pointer, count, entry)
        words = np.frombuffer(raw, dtype="<i4").reshape(-1, entry // 4)[:, offset // 4]
        words = words.astype(np.int64)
        at = np.arange(len(words), dtype=np.int64) * entry + offset
        return (words + at).astype(np.uint64) + np.uint64(start)

    def absolute(self, pointer: str, count: str) -> U64:
        """Read a table of the module whose entries are 64-bit addresses, and return these addresses
        in the table's order.

        Args:
            pointer: member of struct module with the table's address.
            count: member with the number of entries.
        """
        return np.frombuffer(self.table(pointer, count, 8)[1], dtype="<u8")

    def region(self, start: str, size: str) -> tuple[int, int]:
        if not self.has(start):
            return 0, 0
        at = self.number(start)
        return at, at + self.number(size, 4)


def _points(addresses: U64, size: int) -> Spans:
    return spans(addresses, np.full(len(addresses), size, dtype=np.uint64))


def _within(addresses: U64, text: tuple[int, int]) -> U64:
    return addresses[(addresses >= np.uint64(text[0])) & (addresses < np.uint64(text[1]))]


def _sized(kernel: LinuxMemory, addresses: U64, sizes: dict[int, int], otherwise: int) -> Spans:
    """Return spans of live code. The first byte of a span tells its size.

    Args:
        addresses: running addresses of the spans.
        sizes: size in bytes by the value of the first byte.
        otherwise: size in bytes for all other values.
    """
    first = [kernel.number(int(a), 1) for a in addresses.tolist()]
    lengths = np.array([sizes.get(b, otherwise) for b in first], dtype=np.uint64)
    return spans(addresses, lengths)


class LinuxModules:
    """The modules that were loaded when the property `all` was first read."""

    def __init__(
        self, kernel: LinuxMemory, btf: Btf, names: IsaFacts, bug_size: int, exception_size: int
    ) -> None:
        """Describe the modules; they are read when `all` is first read.

        Args:
            bug_size: size in bytes of an entry of the table of BUG and WARN traps.
            exception_size: size in bytes of an entry of the exception table.
        """
        self._exception_size = exception_size
        self._kernel = kernel
        self._btf = btf
        self._bug_size = bug_size
        self._label_size = names.label_size

    @cached_property
    def all(self) -> tuple[Module, ...]:
        """All loaded modules in the state MODULE_STATE_LIVE. Raises KinstError if the kernel's list
        of modules is damaged."""
        kernel, btf = self._kernel, self._btf
        layouts = btf.has("module", "core_layout") or btf.has("module", "mem")
        if not kernel.has("modules") or not layouts:
            return ()
        head = kernel.symbol("modules")
        link = btf.offset("module", "list")
        live: list[Module] = []
        at = kernel.number(head)
        for _ in range(MAX_MODULES):
            if at == head:
                return tuple(live)
            reader = _ModuleStruct(kernel, btf, at - link)
            if reader.number("state", 4) == LIVE:
                live.append(self._read(reader))
            at = kernel.number(at)
        raise KinstError("the running kernel's list of modules is damaged: it has no end")

    def at(self, address: int) -> Module | None:
        """Return the module whose code contains a running address; None if it is in no module."""
        return next((m for m in self.all if m.holds(address)), None)

    def _read(self, reader: _ModuleStruct) -> Module:
        kernel = self._kernel
        name = kernel.text(reader.place("name"), 56)
        text = self._text(reader)
        # The tables still have entries for init code, which the kernel has freed.
        jumps = _within(reader.relative("jump_entries", "num_jump_entries", 16), text)
        calls = reader.relative("static_call_sites", "num_static_call_sites", 8)
        keys = reader.relative("static_call_sites", "num_static_call_sites", 8, 4)
        faulting = reader.relative("extable", "num_exentries", self._exception_size)
        fixups = reader.relative("extable", "num_exentries", self._exception_size, 4)
        return Module(
            name,
            text,
            self._functions(reader, name, text),
            self._sections(reader),
            _points(faulting, 1),
            _points(reader.relative("bug_table", "num_bugs", self._bug_size), BUG_SIZE),
            _points(jumps, self._label_size)
            if self._label_size
            else _sized(kernel, jumps, {0xE9: 5, 0x0F: 5}, 2),
            _sized(kernel, _within(calls, text), {0x0F: 6}, 5),
            self._forbidden(reader),
            self._orc(reader),
            dict(zip(faulting.tolist(), fixups.tolist(), strict=True)),
            reader.relative("jump_entries", "num_jump_entries", 16, 4),
            (calls, keys & ~np.uint64(STATIC_CALL_FLAGS)),
            reader.table("jump_entries", "num_jump_entries", 16),
            reader.counted("tracepoints_ptrs", "num_tracepoints"),
            reader.counted("trace_events", "num_trace_events"),
        )

    def _text(self, reader: _ModuleStruct) -> tuple[int, int]:
        """Return the running addresses [start, end) of a module's code. Since Linux 6.4 it is the
        first element of an array of memory areas."""
        if reader.has("core_layout"):
            base = reader.number("core_layout.base")
            return base, base + reader.number("core_layout.text_size", 4)
        memory, member = reader.place("mem"), self._btf.offset
        base = self._kernel.number(memory + member("module_memory", "base"))
        return base, base + self._kernel.number(memory + member("module_memory", "size"), 4)

    def _functions(
        self, reader: _ModuleStruct, module: str, text: tuple[int, int]
    ) -> tuple[Function, ...]:
        kernel, btf = self._kernel, self._btf
        kallsyms = reader.number("kallsyms")
        symtab, strtab, types = (
            kernel.number(kallsyms + btf.offset("mod_kallsyms", member))
            for member in ("symtab", "strtab", "typetab")
        )
        count = kernel.number(kallsyms + btf.offset("mod_kallsyms", "num_symtab"), 4)
        if count > MAX_TABLE:
            raise KinstError(f"module {module} says that it has {count} symbols")
        rows = np.frombuffer(kernel.read(symtab, count * SYMBOL.itemsize), dtype=SYMBOL)
        letters = kernel.read(types, count)
        functions: dict[int, Function] = {}
        for row, letter in zip(rows.tolist(), letters, strict=True):
            offset, info, _, _, address, size = row
            inside = text[0] <= address < text[1]
            if inside and letter in TEXT_LETTERS and info & 15 == STT_FUNC:
                name = kernel.text(strtab + offset, 256)
                functions.setdefault(address, Function(module, name, address, size))
        return tuple(functions[address] for address in sorted(functions))

    def _sections(self, reader: _ModuleStruct) -> tuple[Section, ...]:
        kernel, btf = self._kernel, self._btf
        attrs = reader.number("sect_attrs") if reader.has("sect_attrs") else 0
        if not attrs:
            return ()
        if btf.has("module_sect_attrs", "nsections"):
            count = kernel.number(attrs + btf.offset("module_sect_attrs", "nsections"), 4)
            size, where = btf.size("module_sect_attr"), btf.offset("module_sect_attr", "address")
            file = btf.offset("module_sect_attr", "battr")
        else:  # since Linux 6.14
            count = self._listed(attrs + btf.offset("module_sect_attrs", "grp.bin_attrs"))
            size, where = btf.size("bin_attribute"), btf.offset("bin_attribute", "private")
            file = 0
        first = attrs + btf.offset("module_sect_attrs", "attrs")
        named = file + btf.offset("bin_attribute", "attr.name")
        return tuple(
            Section(kernel.text(kernel.number(at + named), 128), kernel.number(at + where))
            for at in range(first, first + min(count, MAX_SECTIONS) * size, size)
        )

    def _listed(self, pointer: int) -> int:
        """Return the number of pointers in a list that ends with a null pointer.

        Args:
            pointer: address of a pointer to the list.
        """
        kernel = self._kernel
        start = kernel.number(pointer)
        ends = (n for n in range(MAX_SECTIONS) if not kernel.number(start + 8 * n))
        return next(ends, MAX_SECTIONS)

    def _forbidden(self, reader: _ModuleStruct) -> tuple[tuple[int, int, str], ...]:
        noinstr = reader.region("noinstr_text_start", "noinstr_text_size")
        kprobes = reader.region("kprobes_text_start", "kprobes_text_size")
        listed = reader.absolute("kprobe_blacklist", "num_kprobe_blacklist").tolist()
        listing = "it is on the kernel's own do-not-probe list"
        return (
            (*noinstr, "the kernel marks it noinstr: it runs where no probe may"),
            (*kprobes, listing),
            *((address, address + 1, listing) for address in listed),
        )

    def _orc(self, reader: _ModuleStruct) -> Orc | None:
        if not reader.has("arch.num_orcs"):
            return None
        start, raw = reader.table("arch.orc_unwind_ip", "arch.num_orcs", 4)
        _, rules = reader.table("arch.orc_unwind", "arch.num_orcs", ENTRY.itemsize)
        if not raw:
            return None
        distances = np.frombuffer(raw, dtype="<i4").astype(np.int64)
        at = np.arange(len(distances), dtype=np.int64) * 4
        places = (distances + at).astype(np.uint64) + np.uint64(start & MASK)
        entries = np.frombuffer(rules, dtype=ENTRY)
        numbers = numbers_of(entries, "a module")
        return Orc(places, entries, self._kernel.has("orc_header"), numbers)


def _over(where: Spans, address: int, size: int) -> bool:
    at, length = np.array([address], np.uint64), np.array([size], np.uint64)
    return bool(where.overlaps(at, length)[0])


class ModuleRules:
    """Rules for planting in the code of loaded modules: which code is not planted, and why."""

    def __init__(self, kernel: LinuxMemory, modules: LinuxModules, ftrace: Ftrace) -> None:
        self._kernel = kernel
        self._modules = modules
        self._ftrace = ftrace

    def function(self, function: Function) -> str:
        """Return why no instruction of a module's function may be planted, or "" if instructions
        may be planted."""
        module = self._modules.at(function.address)
        if module is None:
            return f"module {function.module} is not loaded any more"
        for start, end, reason in module.forbidden:
            if start <= function.address < end:
                return reason
        return ""

    def site(self, address: int, size: int, fault_hook: bool, bug_hook: bool) -> str:
        """Return why one instruction of a module may not be planted, or "" if it may.

        Args:
            fault_hook: whether faults of displaced instructions can be reported at the original
                address.
            bug_hook: whether BUG and WARN traps can be reported at the original address.
        """
        module = self._modules.at(address)
        if module is None:
            return "its module is not loaded any more"
        for where, reason, free in (
            (module.jump_labels, JUMP_LABEL, False),
            (module.static_calls, STATIC_CALL, False),
            (module.bugs, BUG, bug_hook),
            (module.exceptions, FIXUP, fault_hook),
        ):
            if not free and _over(where, address, size):
                return reason
        return self._ftrace.refusal(address, size, self._kernel.read(address, size)) or ""

    def rewritten(self, address: int, size: int) -> bool:
        """Return whether the kernel itself may overwrite these `size` bytes of a module's code
        while it runs, at jump labels and static calls."""
        module = self._modules.at(address)
        return module is not None and any(
            _over(where, address, size) for where in (module.jump_labels, module.static_calls)
        )

    def has_fixup(self, address: int) -> bool:
        module = self._modules.at(address)
        return module is not None and _over(module.exceptions, address, 1)

    def is_bug(self, address: int) -> bool:
        module = self._modules.at(address)
        return module is not None and _over(module.bugs, address, 1)
