"""Memory and CPUs of a guest that kinst boots, through QEMU's GDB stub and the file with its RAM.

Tested by tests/machines/vm/test_machine.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Target
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import VirtualLayout
from kinst.core.words import PAGE
from kinst.machines.stub.cpus import Debugger
from kinst.machines.stub.memory import GuestMemory, read_process
from kinst.machines.stub.scan import pointers_in, replace_in
from kinst.machines.vm.accelerators import KVM, TCG
from kinst.machines.vm.qemu import Qemu, VmConfig, gone_error
from kinst.machines.vm.retranslation import all_code, code_at_hand
from kinst.machines.vm.warm import Loading, SavedLocation, warm_start
from kinst.wire.rsp import Rsp

SAMPLE = 0.25  # seconds between two samples of a running machine
SAMPLES = 4  # samples that must agree on the state of a CPU


class Guest(Target):
    """Base class of targets for a QEMU that kinst starts: memory, stopping and planting."""

    def __init__(
        self,
        isa: Isa,
        config: VmConfig,
        virtual_layout: VirtualLayout,
        on_output: Callable[[bytes], None] | None = None,
        early_start: tuple[Qemu, Loading] | None = None,
    ) -> None:
        """Start QEMU, without waiting for the guest.

        Args:
            virtual_layout: the virtual layout of the guest's system.
            on_output: called with the output of the guest's command.
            early_start: a QEMU that was started before and loads a saved state, to use instead of a
                new QEMU; None to start a new QEMU.

        Raises TargetError if QEMU, a file or memory is missing.
        """
        self.isa = isa
        self.cpus = config.cpus
        self._config = config
        self._virtual_layout = virtual_layout
        self._paging = isa.paging
        self._board = isa.board
        self._on_output = on_output
        self._scratch = 0, 0  # where it is mapped: addresses [low, high)
        self._closed = False
        self._warm = warm_start(config, isa.board)
        self._start(early_start)

    def _start(
        self, early_start: tuple[Qemu, Loading] | None = None, *, cold: bool = False
    ) -> None:
        """Start QEMU, from a saved state if there is one.

        Args:
            early_start: a QEMU that was started before, to use instead of a new one.
            cold: whether to boot even if there is a saved state.
        """
        self._loading: Loading | None = None
        warm = None if cold or self._warm is None or not self._warm.is_there else self._warm
        if early_start is not None:
            self.qemu, self._loading = early_start
            self.qemu.tell_output(self._on_output)
        else:
            self.qemu = Qemu(self._config, self._board, self._on_output, waits=warm is not None)
            self._loading = Loading(warm, self.qemu) if warm is not None else None
        self._started = time.monotonic()
        layout = self.qemu.layout
        self.memory = GuestMemory(self._paging, self.qemu, (layout.tables, layout.tables_size))
        self._rsp: Rsp | None = None
        self._debugger: Debugger | None = None

    def _attach(self) -> None:
        """Connect to the GDB stub, which stops the machine.  Does nothing the second time."""
        if self._rsp is not None:
            return
        with self._watched():
            self._rsp = Rsp(self.qemu.gdb, running=not self._config.halted)
            registers = self._board.HARDWARE_BREAKPOINTS if self._config.accel == KVM else 0
            self._debugger = Debugger(self._rsp, self.isa, hardware_breakpoints=registers)
            self.cpus = self._debugger.cpus
            if not self._rsp.physical_memory():
                raise TargetError("this QEMU has no physical memory mode", "use QEMU 4.1 or newer")

    def _is_lost(self) -> bool:
        """Return whether any CPU of the running machine can no longer recover.

        The machine is stopped SAMPLES times to look at its CPUs. A CPU counts as lost only if it
        looks lost each time (Board.is_lost()).
        """
        lost = set(range(self.cpus))
        for _ in range(SAMPLES):
            self._attach()
            self.stop()
            lost = {cpu for cpu in lost if self._board.is_lost(self.registers(cpu))}
            self.resume()
            if not lost:
                return False
            time.sleep(SAMPLE)
        return True

    def _translate_anew(self, everything: bool) -> None:
        """Make QEMU translate the kernel's code again; the machine continues to run.

        Args:
            everything: True for all of the kernel's code; False for the code that CPUs execute or
                may return to.
        """
        if self._config.accel != TCG:
            return
        self._attach()
        self.stop()
        pages: set[int] = set()
        for cpu in range(self.cpus):
            registers = self.registers(cpu)
            with contextlib.suppress(TargetError):  # the CPU has no page tables yet
                if everything:
                    pages |= all_code(
                        self._paging, self._virtual_layout.image, self.qemu, registers
                    )
                else:
                    pages |= code_at_hand(self.isa, self.qemu, registers)
        with self._watched():
            assert self._rsp is not None
            read = self.qemu.read_physical
            self._rsp.write_memory([(page, read(page, PAGE)) for page in sorted(pages)])
        self.resume()

    @property
    def _stub(self) -> Debugger:
        if self._debugger is None:
            raise TargetError("the guest is not ready yet")
        return self._debugger

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Run the context. If it raises TargetError and the guest has ended, raise instead an error
        that says why the guest has ended."""
        try:
            yield
        except TargetError as error:
            if self._closed:
                raise TargetError("the guest has been closed") from error
            gone = self.qemu.poll()
            if gone is None and (self._rsp is None or self._rsp.closed):
                gone = self.qemu.ended(1.0)
            if gone is not None:
                raise gone_error(gone) from error
            raise

    def arm_timers(self) -> None:
        """Rearm the timers of a stopped guest that continues from a saved state; overdue timers
        fire immediately.

        Raises TargetError if the stub lacks the timers' registers.
        """
        for cpu in range(self.cpus if self._board.TIMERS else 0):
            with self._watched():
                for timer in self._board.TIMERS:
                    self._stub.rewrite(cpu, *timer)

    # Memory.

    def set_tables(self, address: int) -> None:
        """Use the page tables whose top-level table is at this virtual address to read memory from
        now on.

        The machine must be stopped, unless its memory was read at least once before.
        """
        self._need_root()
        self.memory.set_tables(address)

    def find_text(self) -> int:
        """Return the virtual address at which the kernel's text starts (KASLR moves it).

        The machine must be stopped, unless its memory was read at least once before.
        """
        self._need_root()
        image = self._virtual_layout.image
        return self._paging.find_text(self.qemu.read_physical, self.memory.root, image)

    def _need_root(self) -> None:
        if not self.memory.has_root:
            self._use_tables_of(self._kernels_cpu())

    def _use_tables_of(self, registers: Mapping[str, int]) -> None:
        """Use the page tables of a stopped CPU to read memory from now on.

        Args:
            registers: the registers of that CPU.
        """
        root = self._paging.root_of(registers)
        self.memory.set_root(root, self.qemu.read_physical(root.physical, root.page))

    def _kernels_cpu(self) -> Mapping[str, int]:
        """Return the registers of a CPU in kernel mode; of any CPU if none is in kernel mode."""
        return min(map(self.registers, range(self.cpus)), key=self._paging.in_user_mode)

    def location(self) -> SavedLocation:
        """Return where the kernel of this stopped guest is. A saved state of the guest needs this,
        to be read later."""
        root = self._paging.root_of(self._kernels_cpu())
        image = self._virtual_layout.image
        return SavedLocation(root, self._paging.find_text(self.qemu.read_physical, root, image))

    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory. The machine must be stopped for the first read; later it may run."""
        self._need_root()
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        self._need_root()
        self.memory.write(address, data)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Read memory of the process that a stopped CPU runs, by the page tables that the CPU uses
        now.
        """
        return read_process(self._paging, self.qemu, self.registers(cpu), address, size)

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        if ranges and self._stub.running:
            raise TargetError("the machine must be stopped before its memory is searched")
        return pointers_in(self.qemu.own_memory() if ranges else (), ranges)

    def move(self, places: Mapping[int, int]) -> None:
        if self._stub.running:
            raise TargetError(
                "the machine must be stopped before kinst changes the program counters of its CPUs"
            )
        replace_in(self.qemu.own_memory(), places)
        for cpu in range(self.cpus):
            registers = self.registers(cpu)
            moved = {name: places[at] for name, at in registers.items() if at in places}
            if moved:
                with self._watched():
                    self._stub.write_registers(cpu, moved)

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write code of a stopped machine through the stub, so that QEMU translates the code again.

        Args:
            writes: (virtual address, bytes) of each write.
        """
        if self._stub.running:
            raise TargetError("the machine must be stopped before its text can be written")
        self._need_root()
        with self._watched():
            assert self._rsp is not None
            self._rsp.write_memory(self.memory.physical_writes(writes))

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map scratch in the guest's kernel; its memory was set aside when QEMU started.

        Raises TargetError if `size` is more than was set aside.
        """
        self._need_root()
        layout = self.qemu.layout
        if size > layout.scratch_size:
            raise TargetError(
                f"scratch of {size} bytes was asked for and the guest has {layout.scratch_size}"
            )
        frames = range(layout.scratch, layout.scratch + size, LEAF_SIZE)
        address = self.memory.map_near(frames, near, self._virtual_layout, reach or near, data)
        self._scratch = address, address + size
        return address

    @property
    def most_scratch(self) -> int:
        return self.qemu.layout.scratch_size

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        self._need_root()
        if scratch_offset + size > self.qemu.layout.scratch_size:
            return False
        physical = self.qemu.layout.scratch + scratch_offset
        frames = range(physical, physical + size, LEAF_SIZE)
        return self.memory.map_at(frames, virtual, self.find_text())

    def scratch_view(self) -> memoryview:
        layout = self.qemu.layout
        return self.qemu.view_physical(layout.scratch, layout.scratch_size)

    # CPUs.

    def stop(self) -> None:
        with self._watched():
            self._stub.stop()

    def resume(self) -> None:
        with self._watched():
            self._stub.resume()

    def registers(self, cpu: int) -> Mapping[str, int]:
        with self._watched():
            return self._stub.registers(cpu)

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        with self._watched():
            self._stub.write_registers(cpu, values)

    def insert_breakpoint(self, address: int) -> None:
        with self._watched():
            self._stub.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        with self._watched():
            self._stub.remove_breakpoint(address)

    def watch(self, ranges: Sequence[tuple[int, int]]) -> None:
        with self._watched():
            self._stub.watch(ranges, reads=False)

    def unwatch(self) -> None:
        with self._watched():
            self._stub.unwatch()

    def step_over(self, cpu: int, address: int) -> None:
        with self._watched():
            self._stub.step_over(cpu, address)

    def close(self) -> None:
        """End QEMU.  Safe to call twice."""
        self._closed = True
        self.qemu.close()
