"""The gdb target: any machine behind a GDB stub.  No scratch memory, so probes are stop-planted.

Source: "Debugging with GDB", appendix "GDB Remote Serial Protocol".
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.target import Event, Gone, Stopped
from kinst.machines.stub.cpus import Debugger
from kinst.machines.stub.memory import GuestMemory
from kinst.wire.rsp import Rsp, connect


class _Physical:
    """Physical memory through a stub that is in physical mode (QEMU's).

    What page walks read is kept until forget(), which is to be called when the machine runs."""

    def __init__(self, rsp: Rsp) -> None:
        self._rsp = rsp
        self._words: dict[int, bytes] = {}

    def read_physical(self, address: int, size: int) -> bytes:
        if size != 8:
            return self._rsp.read_memory(address, size)
        if address not in self._words:
            self._words[address] = self._rsp.read_memory(address, size)
        return self._words[address]

    def view_physical(self, address: int, size: int) -> memoryview:
        raise TargetError("memory is not written through a GDB stub", "use --vm")

    def forget(self) -> None:
        self._words.clear()


class GdbStub:
    """Target over a stub that someone else started (core/target.py has the protocol).

    The machine is stopped when this is made, and resumed by close().
    """

    def __init__(self, isa: Isa, address: str) -> None:
        """address: HOST:PORT, :PORT or the path of a unix socket.  Raises TargetError when no
        stub is there."""
        self.isa = isa
        machine = importlib.import_module(f"kinst.isa.{isa.name}.board")
        self._paging = importlib.import_module(f"kinst.isa.{isa.name}.paging")
        self._address = address
        sock = connect(address)
        try:
            self._rsp = Rsp(sock)
            self._rsp.ask_stopped()
            self._stub = Debugger(self._rsp, machine, len(isa.breakpoint))
        except BaseException:
            sock.close()
            raise
        self.cpus = self._stub.cpus
        self._cpu = -1
        self._closed = False
        # With physical memory, page tables say what is where; else the selected CPU's view does.
        self._physical = _Physical(self._rsp)
        self._memory: GuestMemory | None = None
        if self._rsp.physical_memory():
            self._memory = GuestMemory(self._paging, self._physical, (0, 0))
            self._memory.set_root(self._paging.root_of(self.registers(self._kernel_cpu())))

    def _kernel_cpu(self) -> int:
        """A CPU that stands in the kernel, if there is one."""
        user = [self._paging.in_user_mode(self.registers(cpu)) for cpu in range(self.cpus)]
        return user.index(False) if False in user else 0

    def find_text(self) -> int | None:
        """Where the kernel's text starts (KASLR), or None where this stub cannot tell."""
        if self._memory is None:
            return None
        address: int = self._paging.find_text(self._physical.read_physical, self._memory.root)
        return address

    def set_tables(self, address: int) -> None:
        """Use the page tables whose top level is at this virtual address from now on."""
        if self._memory is not None:
            self._memory.set_tables(address)

    def read(self, address: int, size: int) -> bytes:
        """Memory as a CPU in kernel mode sees it, if there is one; stopped."""
        if self._stub.running:
            raise TargetError("the machine must be stopped before its memory can be read")
        if self._memory is not None:
            return self._memory.read(address, size)
        if self._cpu < 0:
            self._cpu = self._kernel_cpu()
        self._stub.select(self._cpu)
        return self._rsp.read_memory(address, size)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """See core/target.py: by the page tables that the CPU has now."""
        if (address | address + size) >> 63:
            raise TargetError(f"{address:#x} is not an address of a process")
        if self._memory is not None:
            memory = GuestMemory(self._paging, self._physical, (0, 0))
            memory.set_root(self._paging.root_of(self.registers(cpu)))
            return memory.read(address, size)
        self._stub.select(cpu)
        self._cpu = cpu
        return self._rsp.read_memory(address, size)

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        raise TargetError("code is not written through a GDB stub", "use --vm")

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        return None

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        return False

    def scratch_view(self) -> memoryview:
        raise TargetError("a GDB stub has no scratch memory", "use --vm")

    def stop(self) -> None:
        self._stub.stop()

    def resume(self) -> None:
        self._cpu = -1
        self._physical.forget()
        self._stub.resume()

    def registers(self, cpu: int) -> Mapping[str, int]:
        return self._stub.registers(cpu)

    def insert_breakpoint(self, address: int) -> None:
        self._stub.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        self._stub.remove_breakpoint(address)

    def step_over(self, cpu: int, address: int) -> None:
        self._stub.step_over(cpu, address)

    def wait(self, timeout: float) -> Event | None:
        if not self._stub.running:
            time.sleep(timeout)
            return None
        try:
            reply = self._stub.poll(timeout)
        except TargetError as error:
            if self._rsp.closed:
                return Gone(f"the GDB stub at {self._address} closed the connection")
            raise error
        if reply is None or isinstance(reply, Stopped):
            return reply
        return Gone(f"the GDB stub at {self._address} says that the machine ended")

    def take_warnings(self) -> list[str]:
        return []

    def prepare_command(self, command: str) -> int:
        raise TargetError("a GDB stub cannot run a command in the guest", "use --vm, or no -c")

    def start_command(self) -> None:
        raise TargetError("a GDB stub cannot run a command in the guest", "use --vm, or no -c")

    def end_command(self) -> None:
        pass

    def close(self) -> None:
        """Leave the machine running without a breakpoint of ours.  Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if not self._rsp.closed:
            self._stub.detach()
        self._rsp.close()
