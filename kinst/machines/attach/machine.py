"""Target for a QEMU that kinst did not start, with scratch memory that is allocated in its guest.

The guest continues to run while kinst reads its memory.

Tested by tests/vm/attach/test_attach.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kinst.core.errors import KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Abilities, KernelLocation
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.machines.attach.changes import changed_bytes
from kinst.machines.attach.endpoint import find_endpoint, process_of, remove_stub
from kinst.machines.attach.find import check, hardware_breakpoints, wait_running
from kinst.machines.attach.guardian import Guardian, Reached
from kinst.machines.attach.guest_allocation import GuestAllocation
from kinst.machines.attach.journal import Journal
from kinst.machines.attach.ram import Ram
from kinst.machines.stub.cpus import Debugger, double_hits_told
from kinst.machines.stub.memory import GuestMemory, read_process
from kinst.machines.stub.target import StubTarget
from kinst.wire.companion import Companion
from kinst.wire.memory import ForeignMemory
from kinst.wire.other_process import OtherProcess
from kinst.wire.ptrace import can_trace
from kinst.wire.rsp import Rsp
from kinst.wire.sockets import claim_name


class _Watched:
    """Guest RAM for page tables: each write is reported to the guardian and the journal before it
    is made.
    """

    def __init__(self, ram: Ram, guardian: Companion, journal: Journal) -> None:
        self._ram = ram
        self._guardian = guardian
        self._journal = journal
        self.read_physical = ram.read_physical

    def write_physical(self, address: int, data: bytes) -> None:
        before = self._ram.read_physical(address, len(data))
        self._journal.table(address, before, data)
        self._guardian.tell("table", address, before, data)
        self._ram.write_physical(address, data)


class AttachedVm(StubTarget):
    """Target for a QEMU that kinst did not start.

    Possible return addresses are not searched for in RAM (pointers() returns None): the machine
    would have to be stopped for half a second.
    """

    abilities = Abilities(writes_code=True, reads_running=True, switches=True)
    cannot_run_commands = (
        "kinst runs no commands in a machine that it did not start",
        "leave out -c",
    )

    def __init__(self, isa: Isa, named: str, stub: str, virtual_layout: VirtualLayout) -> None:
        """Attach to a QEMU, whose guest continues to run.

        Args:
            named: a process id, the path of a QMP socket, or "auto".
            stub: address of the GDB stub; "" to find it in QEMU's command line.
            virtual_layout: the virtual layout of the guest's system.

        Raises TargetError if the guest cannot be traced; in that case the guest is not changed.
        """
        self.isa = isa
        self._paging = isa.paging
        self._virtual_layout = virtual_layout
        self._closed = False
        self._settled: tuple[int | None, PageAllocator | None] = (None, None)
        self._allocation: GuestAllocation | None = None
        self._mapped = (0, 0)  # virtual addresses of scratch
        self._scratch: ForeignMemory | None = None
        self._say: Callable[[str], None] = lambda text: None
        if why := can_trace():
            raise TargetError(why, "--gdb stops the machine at each hit, on any host")
        pid = process_of(named, isa.board.QEMU)
        self._lost = f"QEMU (process {pid}) has ended"
        self._ended = f"the guest of process {pid} has ended"
        self._process = OtherProcess(pid)
        check(self._process, isa.board.QEMU)
        self._process.open_memory()
        self._lock = claim_name(f"kinst-attach-{pid}-{self._process.started}")
        if self._lock is None:
            raise TargetError(
                f"another kinst traces the machine of process {pid}", "end that one first"
            )
        try:
            endpoint = find_endpoint(self._process, named, stub)
            try:
                self._journal = Journal(pid, self._process.started)
                # A kinst that was killed while the machine was stopped has left it stopped.
                if not self._journal.is_begun:
                    wait_running(self._process)
                self._endpoint = endpoint
                self._guardian = self._new_guardian()
            except BaseException:
                remove_stub(endpoint)
                raise
            try:
                self._reach()
            except BaseException:
                self._end_guardian()
                raise
        except BaseException:
            self._lock.close()
            self._process.close()
            raise

    def _new_guardian(self) -> Companion:
        assert self._lock is not None
        inherited = (self._process.fileno(), self._lock.fileno())
        guardian = Guardian(
            self._process, self._endpoint, self.isa, self._virtual_layout, self._journal
        )
        return Companion(guardian.serve, inherited)

    def _end_guardian(self) -> None:
        """Wait until the guardian has undone all changes and ended.

        If the guardian was killed, start another one, which undoes what the journal records. Raises
        TargetError if that fails.
        """
        if self._guardian.close():
            return
        if hasattr(self, "_rsp"):
            self._rsp.close()
        self._guardian = self._new_guardian()
        try:
            _, descriptor = self._guardian.ask("reach")
            os.close(descriptor)
            self._guardian.ask("settle", *self._settled)
        finally:
            self._guardian.close()

    def _ask(self, *message: object) -> tuple[Any, int]:
        """Send a request to the guardian; return its answer, and a file descriptor or -1.

        If the user interrupts kinst (Ctrl-C) during a request, kinst closes its connection to the
        stub: the guardian completes the request, and then undoes all changes.
        """
        try:
            return self._guardian.ask(*message)
        except KinstError:
            raise
        except BaseException:
            if hasattr(self, "_rsp"):
                self._rsp.close()
            raise

    def _reach(self) -> None:
        reached, descriptor = self._ask("reach")
        assert isinstance(reached, Reached)
        self._rsp = Rsp.adopted(descriptor, reached.agreed)
        registers = hardware_breakpoints(self._process, self.isa)
        self._stub = Debugger(self._rsp, self.isa, reached.seen, registers)
        self._stub.handed_back(running=True)
        self.cpus = self._stub.cpus
        self._text = reached.text
        self._ram = Ram(self._process, reached.pieces)
        self._physical = _Watched(self._ram, self._guardian, self._journal)
        self.memory = GuestMemory(self._paging, self._physical, (0, 0))
        self.memory.set_root(reached.root, reached.top)

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Return where the kernel's code is, without waiting: the kernel is up and continues to
        run.

        Args:
            say: called with a line for the user, now or later.
        """
        self._say = say
        return KernelLocation(self._text)

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        if page_tables is not None:
            self.memory.set_tables(page_tables)
        self._settled = page_tables, allocator
        undone, _ = self._ask("settle", page_tables, allocator)
        if undone:
            self._stub.handed_back(running=True)
            self._say(str(undone))

    def insert_breakpoint(self, address: int) -> None:
        if self._stub.hardware_breakpoints and (told := double_hits_told(os.uname().release)):
            say, self._say = self._say, lambda text: None  # once
            say(told)
        super().insert_breakpoint(address)

    @contextmanager
    def _stopped_for(self) -> Iterator[None]:
        """Stop the machine while the context lasts; afterwards it runs if it ran before."""
        ran = self._stub.running
        self.stop()
        try:
            yield
        finally:
            if ran and not self._rsp.closed:
                self.resume()

    # Memory.

    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory, while the machine runs or is stopped."""
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Read memory of the process that a stopped CPU runs, by the page tables that the CPU uses
        now.
        """
        return read_process(self._paging, self._physical, self.registers(cpu), address, size)

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write code of a stopped machine through the stub, so that QEMU translates the code again.

        Args:
            writes: (virtual address, bytes) of each write.
        """
        self._write(writes)
        self._journal.written()
        self._guardian.tell("written")

    def write_switches(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Make the writes that turn static keys on or off (System.switched()).

        The guest is stopped until all writes are made. If kinst fails or is killed before that, the
        guardian undoes them. Otherwise it does not undo them at the end of the trace.
        """
        self._write(writes)
        self._journal.kept()
        self._guardian.tell("kept")

    def _write(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Tell the guardian and the journal what is about to change, and write it."""
        if self._stub.running:
            raise TargetError("the machine must be stopped before its text can be written")
        low, high = self._mapped
        outside = [write for write in writes if not low <= write[0] < high]
        changed = changed_bytes(outside, self.memory.reader())
        self._journal.text(*changed)
        self._guardian.tell("text", *changed)
        self._rsp.write_memory(self.memory.physical_writes(writes))

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map scratch in the guest's kernel; the first call allocates its memory there."""
        if self._allocation is None:
            self._allocate(size)
        assert self._allocation is not None
        frames = self._allocation.frames[: size // LEAF_SIZE]
        # The search runs while the machine runs; map_at() checks again while it is stopped.
        address = self.memory.place_near(size, near, self._virtual_layout, reach or near, data)
        self._tell_mapped(address, address + size)
        with self._stopped_for():
            if not self.memory.map_at(frames, address, near[0]):
                raise TargetError(f"the page tables changed while {address:#x} was being mapped")
        self._mapped = (address, address + size)
        return address

    def _tell_mapped(self, start: int, end: int) -> None:
        self._journal.mapped(start, end)
        self._guardian.tell("mapped", start, end)

    def _allocate(self, size: int) -> None:
        self.stop()
        try:
            allocation, descriptor = self._ask("allocate", size)
        finally:
            self._stub.handed_back(running=True)
        assert isinstance(allocation, GuestAllocation)
        self._allocation = allocation
        self._scratch = ForeignMemory(descriptor, allocation.size)
        _, tables, room = allocation.tables
        self.memory.give_tables((tables, room))

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        if self._allocation is None or scratch_offset + size > self._allocation.size:
            return False
        frames = self._allocation.frames[scratch_offset // LEAF_SIZE :][: size // LEAF_SIZE]
        with self._stopped_for():
            self._tell_mapped(virtual, virtual + size)
            return self.memory.map_at(frames, virtual, self._text)

    def scratch_view(self) -> memoryview:
        if self._scratch is None:
            raise TargetError("no scratch memory was allocated in the guest")
        return self._scratch.view

    def close(self) -> None:
        """Undo all changes, detach from QEMU and let the guest run.  Safe to call twice.

        Raises TargetError, which says what could not be undone.
        """
        if self._closed:
            return
        self._closed = True
        trouble = ""
        try:
            if not self._rsp.closed:
                self._stub.stop()
                if self._scratch is not None:
                    self._scratch.close()
                trouble, _ = self._guardian.ask("finish")
        finally:
            with contextlib.suppress(OSError):
                self._rsp.close()
            try:
                self._end_guardian()
            finally:
                self._process.close()
                assert self._lock is not None
                self._lock.close()
        if trouble:
            raise TargetError(str(trouble))
