"""Linux's tracepoints: their subsystems, sites and arguments.

The kernel's source fires a tracepoint by an inline function, trace_NAME(). Each inlined copy has a
nop, a site of the tracepoint's static key. While the key is on, the nop is a jump to code that
calls the functions in the tracepoint's list. kinst turns the key on by itself (static_keys.py).
What kinst plants depends on the kernel:

- Kernels without static calls: the code calls __traceiter_NAME(data, ...), which calls each
  function in the list; the list may be empty. kinst plants the first instruction of
  __traceiter_NAME(). Where the compiler has inlined this function, kinst also plants the load of
  the list (tracepoint_firings.py).
- Kernels with static calls: the code loads the address of the list and skips the call if it is 0.
  Otherwise it calls __traceiter_NAME(), or the function in the list if there is only one. kinst
  plants the load, and finds the arguments from the instructions between the load and the call
  (Isa.guarded_call()). The kernel's table of static calls has the address of each such call.

kinst adds no function to the list. The kernel allows for an empty list while the key is on: this
happens for a moment whenever a tracer comes or goes.

Source: include/linux/tracepoint.h and kernel/tracepoint.c of Linux 5.10 to 7.3.

Tested by tests/systems/linux/test_tracepoints.py and tests/vm/counts/test_tracepoints.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.layout import ARGUMENT_SLOT, ARGUMENT_STACK, ARGUMENTS
from kinst.core.probe import Argument, Function
from kinst.core.system import Tracepoint, TracepointSite
from kinst.core.words import COLD, MASK
from kinst.image.btf import KIND_FUNC, KIND_FUNC_PROTO, Btf
from kinst.image.relocations import pointers
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.modules import LinuxModules
from kinst.systems.linux.static_keys import StaticKeys
from kinst.systems.linux.tables import KernelTables
from kinst.systems.linux.tracepoint_firings import TracepointFirings, UnknownFiringError

U64 = npt.NDArray[np.uint64]

_POINT = "__tracepoint_"
_CALLED = "__traceiter_"
_TOGETHER = 1 << 16  # bytes between structures that are read at once
_WORD, _DISTANCE = 8, 4  # bytes


class LinuxTracepoints:
    """The tracepoints of a running kernel and of its modules."""

    def __init__(
        self,
        kernel: LinuxMemory,
        btf: Btf,
        tables: KernelTables,
        modules: LinuxModules,
        keys: StaticKeys,
        isa: Isa,
        lookup: Callable[[str], Sequence[Function]],
        function_at: Callable[[int], Function | None],
    ) -> None:
        self._kernel = kernel
        self._btf = btf
        self._tables = tables
        self._modules = modules
        self._keys = keys
        self._isa = isa
        self._lookup = lookup
        self._function_at = function_at

    @cached_property
    def _addresses(self) -> dict[str, int]:
        """Running address of each struct tracepoint, by the tracepoint's name."""
        btf, kernel = self._btf, self._kernel
        own = self._of_kernel
        low, high = (kernel.elf.address(f"__{end}___tracepoints_ptrs") for end in ("start", "stop"))
        if low is None or high is None or not own:
            return own
        size = (high - low) // len(own)  # bytes of an entry: a distance, or an address
        found = dict(own)
        for module in self._modules.all:
            start, count = module.tracepoint_table
            for at in range(start, start + count * size, size):
                place = kernel.number(at, size)
                if size == _DISTANCE:
                    place = at + (place ^ 1 << 31) - (1 << 31) & MASK
                name = kernel.text(kernel.number(place + btf.offset("tracepoint", "name")), 128)
                found.setdefault(name, place)
        return found

    @cached_property
    def _of_kernel(self) -> dict[str, int]:
        symbols, slide = self._kernel.elf.symbols, self._kernel.slide
        every = np.arange(len(symbols))
        at = every[symbols.begin_with(every, (_POINT,))]
        found = zip(symbols.names_of(at), symbols.address[at].tolist(), strict=True)
        named = {name.removeprefix(_POINT): address + slide & MASK for name, address in found}
        return {name: at for name, at in named.items() if self._kernel.has(_CALLED + name)}

    def named(self, pattern: str) -> tuple[Tracepoint, ...]:
        """Return the tracepoints whose name matches an sh(1) pattern, sorted by
        subsystem and name."""
        if not (self._btf.has("tracepoint", "funcs") and self._keys.known):
            return ()
        match = re.compile(translate(pattern)).match
        names = [name for name in self._addresses if match(name)]
        systems = self._systems if names else {}  # without a name, no event is read
        found = [Tracepoint(systems.get(self._addresses[name], ""), name) for name in names]
        return tuple(sorted(found, key=lambda one: (one.subsystem, one.name)))

    @cached_property
    def _systems(self) -> dict[int, str]:
        """Names of subsystems, such as "sched", by the address of a struct tracepoint, for
        tracepoints that are events of ftrace. They come from each event's struct trace_event_call.
        """
        kernel, btf, elf = self._kernel, self._btf, self._kernel.elf
        low, high = elf.address("__start_ftrace_events"), elf.address("__stop_ftrace_events")
        if low is None or high is None or not btf.has("trace_event_call", "tp"):
            return {}
        slide = np.uint64(kernel.slide & MASK)
        parts = [pointers(elf, low, elf.read(low, high - low)) + slide]
        for at, count in (module.event_table for module in self._modules.all):
            parts.append(np.frombuffer(kernel.read(at, count * _WORD) if count else b"", "<u8"))
        events = np.concatenate(parts)
        classes = self._words(events, btf.offset("trace_event_call", "class"))
        points = self._words(events, btf.offset("trace_event_call", "tp"))
        known = [k for k, at in enumerate(points.tolist()) if at in self._places]
        of = np.unique(classes[known])
        systems = self._words(of, btf.offset("trace_event_class", "system")).tolist()
        texts = {at: kernel.text(at, 64) for at in set(systems)}
        by_class = {at: texts[s] for at, s in zip(of.tolist(), systems, strict=True)}
        return {int(points[k]): by_class[int(classes[k])] for k in known}

    @cached_property
    def _places(self) -> frozenset[int]:
        return frozenset(self._addresses.values())

    def _words(self, structures: U64, offset: int) -> U64:
        """Return the 8-byte word at an offset in each of some structures, in the same order. Words
        that are near to each other are read together.

        Args:
            structures: running addresses of the structures.
            offset: offset of the word in a structure.
        """
        words = np.zeros(len(structures), np.uint64)
        order = np.argsort(structures, kind="stable")
        there = structures[order]
        far = np.flatnonzero(np.diff(there) > _TOGETHER) + 1
        for some in np.split(order, far) if len(order) else ():
            at = structures[some]
            first = int(at[0])
            raw = self._kernel.read(first + offset, int(at[-1]) - first + _WORD)
            for k, place in zip(some.tolist(), (at - at[0]).tolist(), strict=True):
                words[k] = int.from_bytes(raw[place : place + _WORD], "little")
        return words

    def sites(self, name: str) -> list[TracepointSite]:
        """Return all sites of a tracepoint.  Raises KinstError with the reason why it cannot be
        traced."""
        at = self._addresses[name]
        if why := self._needs(at):
            raise KinstError(f"the tracepoint {name} {why}")
        key = at + self._btf.offset("tracepoint", "key")
        if not self._keys.sites(key):
            raise KinstError(f"the tracepoint {name} is nowhere in this kernel's code")
        if not self._kernel.number(at + self._btf.offset("tracepoint", "static_call_tramp")):
            return self._without_static_calls(name, at, key)
        static = self._kernel.number(at + self._btf.offset("tracepoint", "static_call_key"))
        guard, count = at + self._btf.offset("tracepoint", "funcs"), self._count(name)
        calls = [call for call in self._calls(static) if not self._is_boot_code(call)]
        if not calls:
            raise KinstError(f"the kernel has no table of the calls of the tracepoint {name}")
        return [self._before(name, call, guard, count, key) for call in calls]

    def _needs(self, at: int) -> str:
        """Return why a tracepoint is refused, if it fires only after the kernel has run a function
        (regfunc); "" if it needs no such function. kinst does not run this function.

        Args:
            at: address of the struct tracepoint.
        """
        btf, kernel = self._btf, self._kernel
        if btf.has("tracepoint", "regfunc"):
            function = kernel.number(at + btf.offset("tracepoint", "regfunc"))
        elif not btf.has("tracepoint", "ext"):
            return "may need a function of the kernel first, and kinst cannot tell"
        else:  # since Linux 6.14
            more = kernel.number(at + btf.offset("tracepoint", "ext"))
            offset = btf.offset("tracepoint_ext", "regfunc")
            function = kernel.number(more + offset) if more else 0
        if not function:
            return ""
        called = self._function_at(function)
        own = f"{called.name}()" if called else "a function of its own"
        return f"fires only after the kernel has run {own}"

    def _without_static_calls(self, name: str, at: int, key: int) -> list[TracepointSite]:
        """Return the sites of a tracepoint in a kernel without static calls: the first instruction
        of __traceiter_NAME(), if the code that fires the tracepoint calls it, and loads of the
        list.

        Raises KinstError if some code may fire the tracepoint in another way.

        Args:
            name: the tracepoint's name.
            at: address of its struct tracepoint.
            key: address of its static key.
        """
        functions = self._lookup(_CALLED + name)
        if len(functions) != 1:
            raise KinstError(f"the tracepoint {name} calls a function that kinst cannot find")
        function = functions[0]
        pointer = at + self._btf.offset("tracepoint", "funcs")
        sites = {site.address: site for site in self._keys.sites(key)}
        try:
            firings = self._firings.places(
                name, pointer, self._count(name), function.address, sites
            )
        except UnknownFiringError as error:
            raise self._unknown(name, error.address) from error
        found = []
        if firings.calls:
            found.append(TracepointSite(function, b"", function.address, self._passed, key))
        for load, arguments in sorted(firings.loads.items()):
            there = self._function_at(load)
            one = self._firings.instruction(load)
            if there is None or one is None:
                raise self._unknown(name, load)
            found.append(TracepointSite(there, one.code, load, arguments, key))
        if not found:
            raise KinstError(f"the tracepoint {name} is fired nowhere in this kernel's code")
        return found

    @cached_property
    def _passed(self) -> tuple[Argument, ...]:
        """The arguments of __traceiter_NAME() at its first instruction, without `data`."""
        registers = [Argument(ARGUMENT_SLOT, slot) for slot in self._isa.argument_slots[1:]]
        others = (
            Argument(ARGUMENT_STACK, self._isa.stack_arguments + _WORD * k)
            for k in range(ARGUMENTS - len(registers))
        )
        return (*registers, *others)

    @cached_property
    def _firings(self) -> TracepointFirings:
        offset, slide = self._btf.offset("tracepoint", "key"), self._kernel.slide
        own = {at + offset for at in self._places}
        sites = self._keys.targets()
        targets = {at: target for at, (target, _) in sites.items()}
        fixups = self._tables.fixups.items()
        return TracepointFirings(
            self._isa, self._kernel.read, self._function_at, targets.get,
            {at for at, (_, key) in sites.items() if key in own},
            {at + slide & MASK: target + slide & MASK for at, target in fixups},
            {at + slide & MASK for at in self._tables.fatal_bugs.tolist()},
        )  # fmt: skip

    def _unknown(self, name: str, address: int) -> KinstError:
        """Return an error for a tracepoint that is fired at an address in an unknown way."""
        function = self._function_at(address)
        where = f"{function.name}+{address - function.address}" if function else f"{address:#x}"
        return KinstError(
            f"the tracepoint {name} is called at {where} in a way that kinst does not know"
        )

    @cached_property
    def _static_calls(self) -> tuple[U64, U64]:
        """Running address of each static call of the kernel and of its modules and, in the same
        order, the running address of its struct static_call_key."""
        slide = np.uint64(self._kernel.slide & MASK)
        code, keys = self._tables.static_call_keys
        parts = [(code + slide, keys + slide)]
        parts += [module.static_call_keys for module in self._modules.all]
        return np.concatenate([c for c, _ in parts]), np.concatenate([k for _, k in parts])

    def _calls(self, static: int) -> list[int]:
        """Return the running addresses of all static calls that have the given key.

        Args:
            static: running address of the key, a struct static_call_key.
        """
        code, keys = self._static_calls
        found: list[int] = code[keys == np.uint64(static)].tolist()
        return found

    def _is_boot_code(self, address: int) -> bool:
        return self._tables.is_boot_code(address - self._kernel.slide & MASK)

    def _before(self, name: str, call: int, guard: int, count: int, key: int) -> TracepointSite:
        function = self._function_at(call)
        if function is not None:
            parts = self._parts(function)
            pieces = [(part.address, self._kernel.read(part.address, part.size)) for part in parts]
            found = self._isa.guarded_call(pieces, call, guard, count)
            if found is not None:
                address, code, arguments = found
                return TracepointSite(function, code, address, tuple(arguments[1:]), key)
        raise self._unknown(name, call)

    def _parts(self, function: Function) -> Iterator[Function]:
        """Yield a given function, then all other functions that belong to the same source function:
        the function without its cold parts, and the cold parts that the compiler has split from it.
        """
        yield function
        stem = function.name.partition(COLD)[0]
        for other in (*self._lookup(stem), *self._lookup(stem + COLD)):
            if other.address != function.address:
                yield other

    def _count(self, name: str) -> int:
        """Return the number of arguments of __traceiter_NAME(), at most 11: `data`, and arg0 to
        arg9 of D. If the kernel's types do not tell, return the number of argument registers."""
        btf = self._btf
        for function in btf.named(btf.string_offsets(_CALLED + name), [KIND_FUNC]):
            info, _, _, _ = btf.record(btf.record(function)[2])
            if info >> 24 & 31 == KIND_FUNC_PROTO:
                return min(info & 0xFFFF, 1 + ARGUMENTS)
        return len(self._isa.argument_slots)
