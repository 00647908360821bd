"""A table of dynamic variables in memory of this process, and native functions that use it."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable

import llvmlite.binding as llvm

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import Faults, Firing, Unit
from kinst.codegen.helpers import dynamic_tables
from kinst.codegen.llvm_calls import host_triple
from kinst.codegen.ssa import IrFunction, IrValue, const, module_text
from kinst.core import layout as lay
from kinst.core import records as rec
from kinst.core.dtypes import INT64, UINT64
from kinst.core.records import DynamicLayout, Field, ProgramLayout
from kinst.wire import native
from tests.codegen.codegen_rig import (
    REGISTERS,
    SLOTS,
    SP_SLOT,
)

THREADS, OWN = 4, 8  # each thread has its own keys


KEYS = THREADS * OWN


BUCKETS = 4  # 28 entries: fewer than keys


ENTRY = 16


SIZE = 1 << 20


ROUNDS = 100_000


class Tables:
    """One table in memory of this process, and native functions that use it."""

    def __init__(self, shared: bool) -> None:
        wanted = {"dynamic_size": 8192, "globals_size": 4096}
        self.places = lay.lay_out(
            0, SIZE, THREADS - 1, ring_size=4096, agg_size=4096, strings_size=4096,
            sites_size=4096, traps_size=4096, temp_size=65536, **wanted,
        )  # fmt: skip
        self.layout = DynamicLayout(
            0, 0, BUCKETS, ENTRY, (Field(0, 8, UINT64),), Field(8, 8, INT64), shared
        )
        self.map = mmap.mmap(-1, SIZE)
        self.base = native.address_of(memoryview(self.map))
        machine = CodeMachine(
            "host", host_triple(), "", True, self.base, self.places, 0, REGISTERS, SLOTS,
            SP_SLOT, "ccc",
        )  # fmt: skip
        whole = ProgramLayout((), (), (), 0, 0, 64, (), {}, 0, 0, (self.layout,))
        self.unit = Unit(machine, whole, {}, 8, scratch_pointers=False, variable_pointers=False)
        self.functions = [
            self.write(name, body)
            for name, body in (
                ("find", self._find), ("obtain", self._obtain), ("remove", self._remove),
                ("hammer", self._hammer), ("tally", self._tally),
            )
        ]  # fmt: skip
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        text = module_text(host_triple(), [*self.functions, *self.unit.helpers.values()])
        module = llvm.parse_assembly(text)
        module.verify()
        machine_ = llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, jit=True)
        self.engine = llvm.create_mcjit_compiler(module, machine_)
        self.engine.finalize_object()

    def call(self, name: str, *args: int) -> int:
        return native.call_c(self.engine.get_function_address(name), *args)

    def write(self, name: str, body: Callable[[IrFunction, Firing], None]) -> IrFunction:
        code = IrFunction(name, tuple(IrValue(64, f"%a{i}") for i in range(5)), 64, "ccc", False)
        zero = const(0)
        firing = Firing(
            self.unit, code, zero, zero, zero, zero, code.params[1], code.local(64), Faults("none")
        )
        body(code, firing)
        return code

    def _find(self, code: IrFunction, firing: Firing) -> None:
        code.ret(dynamic_tables.call_find(firing, self.layout, code.params[0]))

    def _obtain(self, code: IrFunction, firing: Firing) -> None:
        code.ret(dynamic_tables.call_obtain(firing, self.layout, code.params[0]))

    def _remove(self, code: IrFunction, firing: Firing) -> None:
        dynamic_tables.call_remove(firing, self.layout, code.params[0])
        code.ret(const(0))

    def _loop(self, code: IrFunction, body: Callable[[IrValue], None]) -> None:
        """Make a function that runs `body` in a loop.

        Its parameters are thread, state page, rounds and memory.  `body` gets a random number and
        ends in a jump to `next`; to the cleaner each round is a clause.
        """
        thread, state, rounds = code.params[:3]
        sequence = code.add(state, lay.STATE_SEQUENCE)
        seed, done = code.local(64), code.local(64)
        code.set(seed, code.op("mul", code.add(thread, 1), 0x9E3779B97F4A7C15))
        code.jump("again")
        code.block("again")
        value = code.get(seed)
        for opcode, by in (("shl", 13), ("lshr", 7), ("shl", 17)):  # Marsaglia's xorshift
            value = code.op("xor", value, code.op(opcode, value, by))
        code.set(seed, value)
        code.store_atomic(code.add(code.load_atomic(sequence), 1), sequence, "seq_cst")
        body(value)
        code.block("next")
        code.store_atomic(code.add(code.load_atomic(sequence), 1), sequence, "seq_cst")
        count = code.add(code.get(done), 1)
        code.set(done, count)
        code.branch(code.icmp("ult", count, rounds), "again", "out")
        code.block("out")

    def _tally(self, code: IrFunction, firing: Firing) -> None:
        """Make a function that adds 1 to random elements, and counts in memory how often for each
        key."""
        memory = code.params[3]

        def body(value: IrValue) -> None:
            key = code.add(code.op("urem", code.op("lshr", value, 8), BUCKETS * 5), 1)
            entry = dynamic_tables.call_obtain(firing, self.layout, key)
            code.branch(code.icmp("eq", entry, 0), "next", "there")
            code.block("there")
            code.change_atomic("add", code.add(entry, 8), const(1))
            code.increment(code.op("add", memory, code.op("mul", key, 8)))
            code.jump("next")

        self._loop(code, body)
        code.ret(const(0))

    def _hammer(self, code: IrFunction, firing: Firing) -> None:
        """Make a function that sets, frees and reads elements.

        The thread's own elements must be as it left them, and elements of others must have a value
        of their key.  It returns the number of violations.

        memory: the value of each own element, 0 for none.
        """
        thread, memory = code.params[0], code.params[3]
        lies = code.local(64)

        def lie_if(condition: IrValue, following: str) -> None:
            lie = code.fresh("lie")
            code.branch(condition, lie, following)
            code.block(lie)
            code.set(lies, code.add(code.get(lies), 1))
            code.jump(following)

        def body(value: IrValue) -> None:
            choice = code.op("and", value, 7)
            first = code.add(code.op("mul", thread, OWN), 1)
            own = code.op("add", first, code.op("and", code.op("lshr", value, 8), OWN - 1))
            other = code.add(code.op("urem", code.op("lshr", value, 16), KEYS), 1)
            mine = code.op("add", memory, code.op("mul", own, 8))
            code.branch(code.icmp("ult", choice, 3), "set", "not_set")
            code.block("set")
            entry = dynamic_tables.call_obtain(firing, self.layout, own)
            code.branch(code.icmp("eq", entry, 0), "lost", "stored")
            code.block("lost")  # only a missing element can find no room
            lie_if(code.icmp("ne", code.load(64, mine), 0), "next")
            code.block("stored")
            low = code.op("or", code.op("and", code.op("lshr", value, 24), 0xFFFF), 1)
            made = code.op("or", code.op("shl", own, 32), low)
            code.store_atomic(made, code.add(entry, 8))
            code.store(made, mine)
            code.jump("next")
            code.block("not_set")
            code.branch(code.icmp("ult", choice, 5), "free", "read")
            code.block("free")
            dynamic_tables.call_remove(firing, self.layout, own)
            code.store(const(0), mine)
            code.jump("next")
            code.block("read")
            code.branch(code.icmp("eq", choice, 5), "own", "others")
            code.block("own")
            entry = dynamic_tables.call_find(firing, self.layout, own)
            code.branch(code.icmp("eq", entry, 0), "absent", "present")
            code.block("absent")
            lie_if(code.icmp("ne", code.load(64, mine), 0), "next")
            code.block("present")
            there = code.load_atomic(code.add(entry, 8))
            lie_if(code.icmp("ne", there, code.load(64, mine)), "next")
            self._look(code, firing, value, other if self.layout.shared else own, lie_if)

        self._loop(code, body)
        code.ret(code.get(lies))

    def _look(
        self,
        code: IrFunction,
        firing: Firing,
        value: IrValue,
        other: IrValue,
        lie_if: Callable[[IrValue, str], None],
    ) -> None:
        """Make a function that finds an element, waits a little, and checks whose value it has."""
        code.block("others")
        entry = dynamic_tables.call_find(firing, self.layout, other)
        code.branch(code.icmp("eq", entry, 0), "next", "wait")
        code.block("wait")  # time for another thread to free it and reuse it
        left = code.local(64)
        code.set(left, code.op("and", code.op("lshr", value, 40), 255))
        code.jump("waiting")
        code.block("waiting")
        code.barrier()
        still = code.get(left)
        code.set(left, code.op("sub", still, const(1)))
        code.branch(code.icmp("eq", still, 0), "look", "waiting")
        code.block("look")
        there = code.load_atomic(code.add(entry, 8))
        whose = code.op("lshr", there, 32)
        known = code.op("or", *(
            code.convert(code.icmp("eq", a, b), 64, signed=False)
            for a, b in ((there, const(0)), (whose, other))
        ))  # fmt: skip
        lie_if(code.icmp("eq", known, 0), "next")

    def word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.map, at)[0])

    def state(self, slot: int, at: int) -> int:
        return self.word(self.places.state_of(slot) + at)

    def entries(self) -> list[tuple[int, int, int]]:
        """Return (state, key, value) of every entry whose tag is not 0."""
        found = []
        for bucket in range(BUCKETS):
            line = self.places.dynamic + bucket * self.layout.stride
            for i in range(rec.DYNAMIC_ENTRIES):
                tag = self.word(line + 8 + 8 * i)
                entry = line + rec.DYNAMIC_LINE + i * ENTRY
                if tag:
                    found.append((tag & rec.DYNAMIC_STATE, self.word(entry), self.word(entry + 8)))
        return found

    def controls(self) -> list[int]:
        return [self.word(self.places.dynamic + i * self.layout.stride) for i in range(BUCKETS)]

    def run_threads(self, name: str, while_running: Callable[[], None]) -> list[int]:
        """Run the function in all threads at once; return their results."""
        results = [-1] * THREADS
        memory = self.base + self.places.globals

        def work(thread: int) -> None:
            state = self.base + self.places.state_of(thread)
            results[thread] = self.call(name, thread, state, ROUNDS, memory + thread * 1024)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            while_running()
        for one in threads:
            one.join()
        return results

    def noted(self, thread: int, key: int) -> int:
        return self.word(self.places.globals + thread * 1024 + 8 * key)
