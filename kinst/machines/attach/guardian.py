"""Guardian of an attached machine: a process that undoes all changes when kinst asks for it or
ends.

The guardian also keeps the connection to the stub, and allocates memory in the guest. kinst tells
the guardian about each change before it makes the change. Only one of the two processes uses the
stub at a time: kinst waits for each answer of the guardian, and the guardian undoes changes by
itself only after kinst has ended.

If undoing fails, the guardian connects to the stub again and retries.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.page_tables import LEAF_SIZE, Paging, Read, Root
from kinst.core.system import HOOK_BYTES, PageAllocator, TrapPath, VirtualLayout
from kinst.core.threads_inside import threads_inside
from kinst.core.trapped import let_pass
from kinst.core.words import PAGE
from kinst.machines.attach.calls import GuestCalls
from kinst.machines.attach.changes import Changes
from kinst.machines.attach.endpoint import QemuEndpoint, remove_stub
from kinst.machines.attach.find import hardware_breakpoints, wait_running
from kinst.machines.attach.guest_allocation import GuestAllocation, allocate, free
from kinst.machines.attach.journal import Journal
from kinst.machines.attach.ram import HIGH_PAGES, Ram, RamRange, find_ram, may_be_split
from kinst.machines.stub.cpus import Debugger, StubView
from kinst.machines.stub.memory import GuestMemory
from kinst.wire.companion import Channel, keep_traceback
from kinst.wire.other_process import OtherProcess
from kinst.wire.rsp import Agreed, Rsp, connect, greets
from kinst.wire.sockets import has_client

GREETING_SECONDS = 8.0
CLIENT_SECONDS = 2.0
LEAVE_SECONDS = 5.0  # for threads to leave memory that is to be freed
TRIES, TRY_SECONDS = 3, 20.0  # undoing is tried so often, and not again after so many seconds
_PAUSE = 0.02
_LET_IT_RUN = "; `cont` in QEMU's monitor lets the guest run, or start kinst once more"
_TEXT_PAGES = (0, 0x1_1000, 0x13_7000)  # offsets in the kernel's text of pages that are compared


@dataclass(frozen=True, slots=True)
class Reached:
    """Facts about a machine to whose stub the guardian has connected.

    Attributes:
        pieces: where the guest's RAM is in QEMU's memory.
        root: page tables that one of the CPUs uses.
        top: a copy of the top-level table of `root`. The table itself may go away, since it belongs
            to a process of the guest.
        text: virtual address at which the kernel's code starts.
        agreed: the protocol features that were agreed on with the stub.
        seen: the stub's description of the machine.
    """

    pieces: tuple[RamRange, ...]
    root: Root
    top: bytes
    text: int
    agreed: Agreed
    seen: StubView


class Guardian:
    """Guardian of one attached machine for one kinst, in a process of its own (wire/companion.py).

    It answers kinst's requests, and undoes kinst's changes at the end.
    """

    def __init__(
        self,
        process: OtherProcess,
        endpoint: QemuEndpoint,
        isa: Isa,
        virtual_layout: VirtualLayout,
        journal: Journal,
    ) -> None:
        """Begin without a connection.

        Args:
            endpoint: the machine's process and sockets.
            journal: the machine's journal, which has records if an earlier kinst has left changes.
        """
        self._process = process
        self._endpoint = endpoint
        self._isa = isa
        self._virtual_layout = virtual_layout
        self._rsp: Rsp | None = None
        self._debugger: Debugger | None = None
        self._memory: GuestMemory | None = None
        self._ram: Ram | None = None
        self._allocator: PageAllocator | None = None
        self._allocation: GuestAllocation | None = None
        self._changes = Changes()
        self._journal = journal
        self._ours = False  # the journal's records are changes of this kinst
        self._over = False
        self._leaving = False  # the stub was asked to detach from the machine
        self._missed = False  # a message of kinst was not processed; it is in the journal

    def serve(self, channel: Channel) -> None:
        """Answer the requests of kinst until their stream ends, then undo all changes that
        remain.
        """
        try:
            self._serve(channel)
        finally:
            remove_stub(self._endpoint)

    def _serve(self, channel: Channel) -> None:
        try:
            while (message := channel.receive()) is not None:
                (name, *arguments), _ = message
                if name in ("text", "written", "kept", "table", "mapped"):
                    self._note(name, arguments)
                else:
                    self._answer(channel, name, arguments)
        except Exception as error:
            # Wait until kinst, whose messages nothing answers any more, has ended.
            keep_traceback(error)
            self._missed = True
            channel.exhaust()
        if not self._over and self._ram is not None:
            self._recover()

    def _note(self, name: str, arguments: Sequence[Any]) -> None:
        """Record a change that kinst is about to make, or has made.

        Args:
            name: "text", "table" or "mapped" for a change to come; "written" or "kept" if the last
                change of code was made.
            arguments: for "text", the addresses, old values and new values of bytes; for "table",
                the address, old bytes and new bytes of a page-table entry; for "mapped", the start
                and end of a range of virtual addresses; otherwise empty.
        """
        if name == "text":
            self._changes.note_text(*arguments)
        elif name == "written":
            self._changes.note_written()
        elif name == "kept":
            self._changes.note_kept()
        elif name == "table":
            self._changes.tables.append(tuple(arguments))
        else:
            self._changes.mapped.append(tuple(arguments))

    def _answer(self, channel: Channel, name: str, arguments: Sequence[object]) -> None:
        actions = {
            "reach": self.reach, "settle": self.settle, "allocate": self.allocate,
            "finish": self.finish,
        }  # fmt: skip
        try:
            value, descriptor = actions[name](*arguments)  # type: ignore[operator]
        except KinstError as error:
            value, descriptor = TargetError(error.message, error.hint), -1
        except Exception as error:  # changes are undone nevertheless
            keep_traceback(error)
            value, descriptor = TargetError(f"kinst's guardian failed: {error!r}"), -1
        # kinst may have ended; a kinst that still waits must see the end of the stream.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.send(value, descriptor)

    # Requests of kinst.

    def reach(self) -> tuple[Reached, int]:
        """Connect to the stub, which stops the machine; let the machine run again, and find its
        RAM.

        Returns what was found, and the file descriptor of the connection.
        """
        busy = TargetError(
            f"another debugger is connected to the GDB stub at {self._endpoint.stub}",
            "end that one first",
        )
        split = may_be_split(self._process)
        # QEMU takes a moment to notice that a client has disconnected.
        deadline = time.monotonic() + CLIENT_SECONDS
        while has_client(self._endpoint.stub):
            if time.monotonic() > deadline:
                raise busy
            time.sleep(_PAUSE)
        if not self._journal.is_there:
            self._journal.begin()
            self._ours = True
        try:
            sock = connect(self._endpoint.stub)
            try:
                if not greets(sock, GREETING_SECONDS):
                    raise busy
                reached = self._reached(Rsp.idle(sock), split)
            except BaseException:
                sock.close()
                raise
        except BaseException:
            if self._ours:
                self._journal.over()
            raise
        self._ram = Ram(self._process, reached.pieces)
        self._memory = GuestMemory(self._isa.paging, self._ram, (0, 0))
        self._memory.set_root(reached.root, reached.top)
        return reached, sock.fileno()

    def _reached(self, idle: Rsp, split: bool) -> Reached:
        """Find the kernel and the RAM of a machine through its stub.  After an error, let the
        machine run.

        Args:
            idle: a new connection to the stub, before protocol features are agreed on.
            split: whether the machine's RAM may continue at 4 GB.
        """
        try:
            self._rsp = idle.begun()
            self._rsp.clear_breakpoints()
            self._debugger = self._new_debugger(self._rsp)
            if not self._rsp.physical_memory():
                raise TargetError("this QEMU has no physical memory mode", "use QEMU 4.1 or newer")
            return self._found(self._rsp, self._debugger, split)
        except BaseException as error:
            begun = self._debugger is not None
            self._rsp = self._rsp if begun else idle
            until = time.monotonic() + TRY_SECONDS
            if left := self._retried(self._leave, until, renew=not begun):
                raise TargetError(f"{left}{_LET_IT_RUN}") from error
            raise

    def _found(self, rsp: Rsp, debugger: Debugger, split: bool) -> Reached:
        paging, read = self._isa.paging, rsp.read_memory
        cpus = [debugger.registers(cpu) for cpu in range(debugger.cpus)]
        cpus.sort(key=paging.in_user_mode)
        pages, text, root, top = [], 0, Root(0), b""
        try:
            text, root = kernels_tables(paging, read, cpus[0], self._virtual_layout.image)
            top = read(root.physical, root.page)
            for offset in _TEXT_PAGES:
                leaf = paging.walk(read, root, text + offset)
                if leaf is not None:
                    pages.append(leaf.physical + text + offset - leaf.address & -PAGE)
            if not pages:
                raise TargetError("the kernel's text is not mapped any more")
        except TargetError as error:
            raise TargetError(
                "no kernel is running in that machine yet: it is in its firmware, or boots",
                "wait until it is up",
            ) from error
        base = self._isa.board.memory_map(LEAF_SIZE)[0][0]
        contents = {page: read(page, PAGE) for page in pages}
        high = {page: read(page, PAGE) for page in HIGH_PAGES if split and not base}
        debugger.resume()
        pieces = find_ram(self._process, base, contents, high)
        return Reached(pieces, root, top, text, rsp.agreed, debugger.seen)

    def settle(self, page_tables: int | None, allocator: PageAllocator | None) -> tuple[str, int]:
        """Take facts about the guest's kernel from kinst, and undo changes that an earlier kinst
        has left in the machine.

        Returns a sentence about what was undone, "" if nothing was left. The second value stands
        for a file descriptor; it is always -1, for none.

        Args:
            page_tables: virtual address of the kernel's top-level page table, None if unknown.
            allocator: the kernel's page allocator, None if unknown.
        """
        assert self._memory is not None
        if page_tables is not None:
            self._memory.set_tables(page_tables)
        self._allocator = allocator
        undone = self._undo_earlier() if self._journal.is_there and allocator is not None else ""
        self._journal.begin()
        self._ours = True
        return undone, -1

    def _undo_earlier(self) -> str:
        """Undo what is left of a kinst that was killed with its guardian; return a sentence about
        that.
        """
        assert self._debugger is not None
        self._debugger.handed_back(running=True)
        self._changes, self._allocation = self._journal.read()
        count, lent = len(self._changes.text), self._allocation.size if self._allocation else 0
        self._debugger.stop()
        try:
            self._restore_text()
            self._debugger.resume()
            trouble = self._free_memory() if self._changes.mapped or self._allocation else ""
        finally:
            if not self._debugger.running:
                self._debugger.resume()
        self._changes, self._allocation = Changes(), None
        done = f"{count} bytes of code were restored, {lent >> 20} MB of memory were freed"
        return (
            "an earlier kinst was killed with its guardian while it traced this machine: "
            f"{trouble or done}"
        )

    def allocate(self, size: int) -> tuple[GuestAllocation, int]:
        """Allocate memory in the guest that kinst can map.

        Returns the allocation, and a file descriptor of its memory. The machine is stopped when
        this is called, and runs afterwards.

        Args:
            size: bytes.
        """
        assert self._ram is not None and self._debugger is not None
        if self._allocator is None:
            raise TargetError(
                "kinst does not find the functions of this kernel that allocate memory",
                "--gdb needs none, but stops the machine at each hit",
            )
        self._debugger.handed_back(running=False)
        try:
            with self._calls().thread() as call:
                self._allocation = allocate(call, self._allocator, self._virtual_to_physical, size)
        finally:
            self._debugger.resume()
        self._journal.allocation(self._allocation)
        self._allocation.about_to_share(self._process, self._ram)
        self._journal.allocation(self._allocation)
        return self._allocation, self._allocation.share(self._process, self._ram)

    def finish(self) -> tuple[str, int]:
        """Undo all changes in the stopped machine, disconnect from its stub and let it run.

        Returns a sentence about what could not be undone, "" if everything was undone. The second
        value stands for a file descriptor; it is always -1, for none.
        """
        assert self._debugger is not None
        self._debugger.handed_back(running=False)
        trouble = self._undo()
        self._over = True
        return trouble, -1

    def _calls(self) -> GuestCalls:
        assert self._debugger and self._allocator and self._memory
        return GuestCalls(
            self._debugger, self._isa, self._allocator, self._memory, self._write, self._renewed
        )

    def _renewed(self) -> Debugger:
        """Make the stub ready for new requests after an error, when its connection may be in the
        middle of a packet. This leaves the machine stopped and without breakpoints.

        Returns a new Debugger for the connection.
        """
        assert self._rsp is not None
        self._rsp = self._connected_anew() if self._leaving else self._rsp.taken_over()
        self._debugger = self._new_debugger(self._rsp)
        self._rsp.physical_memory()
        return self._debugger

    def _new_debugger(self, rsp: Rsp) -> Debugger:
        registers = hardware_breakpoints(self._process, self._isa)
        return Debugger(rsp, self._isa, hardware_breakpoints=registers)

    def _connected_anew(self) -> Rsp:
        """Connect to the stub a second time, which stops the machine.

        QEMU's stub does not answer any more on a connection that has detached from the machine.
        """
        assert self._rsp is not None
        self._rsp.hang_up()
        sock = connect(self._endpoint.stub)
        if not greets(sock, GREETING_SECONDS):
            sock.close()
            raise TargetError("the GDB stub takes no new connection")
        made = Rsp.idle(sock).begun()
        made.clear_breakpoints()
        return made

    def _virtual_to_physical(self, address: int) -> int:
        assert self._memory is not None
        return next(self._memory.pieces(address, 8))[0]

    def _write(self, address: int, data: bytes) -> None:
        """Write data to virtual memory of the guest's kernel."""
        assert self._memory is not None and self._ram is not None
        done = 0
        for at, length in self._memory.pieces(address, len(data)):
            self._ram.write_physical(at, data[done : done + length])
            done += length

    # Undoing.

    def _recover(self) -> None:
        """Undo all changes, after kinst has ended without a request to do so."""
        if self._missed and self._journal.is_there:
            self._changes, self._allocation = self._journal.read()
        self._undo(renew=True)

    def _undo(self, *, renew: bool = False) -> str:
        """Undo all changes and let the machine run.

        Returns a sentence about what could not be undone, or "".

        Args:
            renew: whether to synchronize with the stub first. Without that, the machine must be
                stopped already.
        """
        until = time.monotonic() + TRY_SECONDS
        trouble = self._retried(self._undone, until, renew=renew)
        left = self._retried(self._leave, until, renew=False) or self._why_stopped()
        if left:
            left += _LET_IT_RUN
        if self._ours and not left and not self._journal.is_there:
            self._journal.over()
        assert self._rsp is not None
        with contextlib.suppress(OSError):
            self._rsp.close()
        return trouble or left

    def _retried(self, work: Callable[[], str], until: float, *, renew: bool) -> str:
        """Call `work` until it succeeds, at most TRIES times; return its result, or the last error.

        Args:
            until: no call begins after this time, by time.monotonic().
            renew: whether to synchronize with the stub before the first call, not only after
                errors.
        """
        trouble = ""
        for _ in range(TRIES):
            try:
                if renew:
                    self._renewed()
                return work()
            except Exception as error:
                keep_traceback(error)
                trouble = error.message if isinstance(error, KinstError) else repr(error)
            renew = True
            if time.monotonic() > until:
                break
        return trouble

    def _leave(self) -> str:
        """Disconnect from the stub and let the machine run.  Raises TargetError if that fails."""
        assert self._debugger is not None
        self._leaving = True
        self._debugger.detach()
        return ""

    def _why_stopped(self) -> str:
        """Return why the guest does not run although the stub has been left; "" if it runs."""
        try:
            wait_running(self._process)
        except TargetError as error:
            return error.message
        except OSError:  # QEMU has ended
            pass
        return ""

    def _undone(self) -> str:
        """Undo all changes in the stopped machine, without disconnecting from its stub.

        Returns a sentence about what could not be undone, or "".
        """
        assert self._debugger is not None
        self._restore_text()
        self._debugger.resume()
        trouble = ""
        if self._changes.mapped or self._allocation is not None:
            trouble = self._free_memory()
        if self._ours:
            self._journal.begin()  # nothing is changed any more; the machine may stay stopped
        return trouble

    def _restore_text(self) -> None:
        """Restore the original code. Bytes that are no longer kinst's, since the kernel has changed
        them, are left as they are.

        Hooks are restored last: a CPU that has reached a breakpoint of kinst still needs the hook.
        So the guardian first waits until no CPU is between a breakpoint and its hook.
        """
        assert self._debugger and self._memory
        if self._allocator is not None and self._allocator.tracer is not None:
            self._leave_claims(*self._allocator.tracer)
        traps = self._allocator.traps if self._allocator else TrapPath((), 0)
        hooks = [(at, at + HOOK_BYTES) for at in traps.hooks]
        self._write_text(self._changes.restored(self._memory.read, hooks))
        self._changes.undone(hooks)
        if not self._changes.text:
            return
        sites = self._changes.sites()
        if not traps.pc_delta:  # the first byte of a breakpoint may be one that did not change
            sites = np.concatenate([sites - np.uint64(k) for k in range(len(self._isa.breakpoint))])
        let_pass(self._debugger, self._memory.read, self._isa, sites, traps.pc_delta)
        self._write_text(self._changes.restored(self._memory.read))
        self._changes.undone()

    def _leave_claims(self, word: int, idle: int) -> None:
        """If the kernel's own tracer is in use, forget kinst's claims, so that they are not undone.

        A claim is a write to the tracer's data that keeps the tracer from rewriting an instruction
        (Claims of core/system.py). A claim may be undone only while the tracer has no user.

        Args:
            word: address of the kernel's variable that tells whether the tracer is in use.
            idle: value of the variable while the tracer has no user.
        """
        assert self._memory is not None
        if int.from_bytes(self._memory.read(word, 8), "little") == idle:
            return
        pages = {at & -PAGE for at in self._changes.text}
        data = {page for page in pages if not self._memory.is_code(page)}
        for at in [at for at in self._changes.text if at & -PAGE in data]:
            del self._changes.text[at]

    def _write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        assert self._memory is not None and self._rsp is not None
        if writes:
            self._rsp.write_memory(self._memory.physical_writes(writes))

    def _free_memory(self) -> str:
        assert self._debugger and self._allocator and self._ram
        if not self._threads_left():
            size = self._allocation.size >> 20 if self._allocation else 0
            return (
                f"a thread of the guest is still in a probe's code: {size} MB of its memory stay"
                " with it"
            )
        self._unmap()
        if self._allocation is not None:  # no page table leads to it any more
            self._debugger.resume()
            self._allocation.unshare(self._process, self._ram)
            self._journal.allocation(self._allocation)
            self._debugger.stop()
        with self._calls().thread() as call:
            for start, end in self._changes.mapped:
                call(self._allocator.forget, start, end)
            if self._allocation is not None:
                free(call, self._allocator, self._allocation, self._ram, self._journal.allocation)
        self._allocation = None
        return ""

    def _threads_left(self) -> bool:
        """Wait until no thread is in memory that kinst has mapped, and leave the machine stopped.

        Returns False if a thread is still there after LEAVE_SECONDS.
        """
        debugger, deadline = self._debugger, time.monotonic() + LEAVE_SECONDS
        assert debugger and self._allocator and self._memory
        paging, sp = self._isa.paging, self._isa.sp
        while True:
            debugger.stop()
            every = [debugger.registers(cpu) for cpu in range(debugger.cpus)]
            cpus = [(c.values(), c[sp]) for c in every if not paging.in_user_mode(c)]
            if not threads_inside(
                self._memory.reader(), self._allocator.threads, self._changes.mapped, cpus
            ):
                return True
            if time.monotonic() > deadline:
                return False
            debugger.resume()
            time.sleep(_PAUSE)

    def _unmap(self) -> None:
        """Restore the entries of page tables that kinst has changed.

        An entry that the kernel has changed since is left as it is.
        """
        assert self._ram is not None
        for address, before, now in reversed(self._changes.tables):
            if self._ram.read_physical(address, len(now)) == now:
                self._ram.write_physical(address, before)
        self._changes.tables.clear()


def kernels_tables(
    paging: Paging, read: Read, registers: Mapping[str, int], image: tuple[int, int]
) -> tuple[int, Root]:
    """Return the address at which the kernel's text starts, and the kernel's page tables.

    A CPU may have several page tables, since those of user mode may map only the kernel's entry
    code. The result is the table in which kernel text begins at the lowest address. Raises
    TargetError if no table maps kernel text.

    Args:
        read: reads physical memory.
        registers: registers of a CPU.
        image: virtual addresses [low, high) where the kernel may be mapped.
    """
    candidates: list[tuple[int, Root]] = []
    for root in paging.roots_of(registers):
        with contextlib.suppress(TargetError):
            candidates.append((_text_of(paging, read, root, image), root))
    if not candidates:
        raise TargetError("no kernel text found in the guest's page tables")
    return min(candidates, key=lambda candidate: candidate[0])


def _text_of(paging: Paging, read: Read, root: Root, image: tuple[int, int]) -> int:
    """Return the address at which the kernel's text starts.

    If a kinst was killed with its guardian, its trampolines may still lie below the text. The pages
    of trampolines are writable, and the pages of a running kernel's text are not.

    Args:
        read: reads physical memory.
        image: virtual addresses [low, high) where the kernel may be mapped.
    """
    text = paging.find_text(read, root, image)
    first = paging.walk(read, root, text)
    if first is None or not first.writable:
        return text
    for leaf in paging.leaves(read, root, text, image[1]):
        if leaf.executable and not leaf.user and not leaf.writable:
            return leaf.address
    return text  # of a kernel with rodata=off
