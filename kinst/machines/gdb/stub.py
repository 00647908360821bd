"""Target for a GDB stub; it has no scratch memory, so its probes are stop-planted.

Source: "Debugging with GDB", appendix "GDB Remote Serial Protocol".

Tested by tests/machines/test_gdb.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Abilities, KernelLocation
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.machines.stub.cpus import Debugger, hardware_breakpoints_of
from kinst.machines.stub.memory import GuestMemory, need_process, read_process
from kinst.machines.stub.target import StubTarget
from kinst.wire.rsp import Rsp, connect


class _StubMemory:
    """Physical memory of a machine, read through its stub in QEMU's physical memory mode.

    Page-table entries are cached until forget(), which must be called before the machine runs.
    """

    def __init__(self, rsp: Rsp) -> None:
        self._rsp = rsp
        self._words: dict[int, bytes] = {}

    def read_physical(self, address: int, size: int) -> bytes:
        if size != 8:
            return self._rsp.read_memory(address, size)
        if address not in self._words:
            self._words[address] = self._rsp.read_memory(address, size)
        return self._words[address]

    def write_physical(self, address: int, data: bytes) -> None:
        raise TargetError("memory is not written through a GDB stub", "use --vm")

    def forget(self) -> None:
        self._words.clear()


class GdbStub(StubTarget):
    """Target for a machine whose GDB stub is running.  Connecting stops the machine; close()
    resumes it.

    Possible return addresses are not searched for in RAM (pointers() returns None): a stub does not
    tell where RAM is, and the search would take minutes.
    """

    abilities = Abilities()
    cannot_plant = "code is not written through a GDB stub", "use --vm"
    cannot_run_commands = "a GDB stub cannot run a command in the guest", "use --vm, or no -c"

    def __init__(self, isa: Isa, address: str, virtual_layout: VirtualLayout | None = None) -> None:
        """Connect to a GDB stub, which stops the machine.

        Args:
            address: HOST:PORT, :PORT or the path of a unix socket.
            virtual_layout: the virtual layout of the machine's system; None if the system is not
                known. Without a layout, memory is read as the CPUs see it.

        Raises TargetError if there is no stub at the address.
        """
        self.isa = isa
        self._paging = isa.paging
        self._virtual_layout = virtual_layout
        self._address = address
        self._lost = f"the GDB stub at {address} closed the connection"
        self._ended = f"the GDB stub at {address} says that the machine ended"
        sock = connect(address)
        try:
            self._rsp = Rsp(sock)
            self._rsp.ask_stopped()
            self._rsp.clear_breakpoints()
            registers = hardware_breakpoints_of(self._rsp, isa)
            self._stub = Debugger(self._rsp, isa, hardware_breakpoints=registers)
        except BaseException:
            sock.close()
            raise
        self.cpus = self._stub.cpus
        self._cpu = -1
        self._closed = False
        # With physical memory, kinst walks the page tables; without, it reads as the selected CPU.
        self._physical = _StubMemory(self._rsp)
        self._memory: GuestMemory | None = None
        if virtual_layout is not None and self._rsp.physical_memory():
            self._memory = GuestMemory(self._paging, self._physical, (0, 0))
            self._memory.set_root(self._paging.root_of(self.registers(self._kernel_cpu())))

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Return where the kernel may be in memory.

        The kernel is taken to be up, and the machine is stopped already.
        """
        cpus = [self.registers(cpu) for cpu in range(self.cpus)]
        vectors = [registers.get(name, 0) for registers in cpus for name in self.isa.vectors]
        in_kernel = [registers for registers in cpus if not self._paging.in_user_mode(registers)]
        counters = (registers[self.isa.pc] for registers in in_kernel)
        places = (*(vector & -4 for vector in vectors if vector), *counters)
        return KernelLocation(self.find_text(), tuple(dict.fromkeys(places)))

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        if page_tables is not None:
            self.set_tables(page_tables)

    def _kernel_cpu(self) -> int:
        """Return the number of a CPU that is stopped in kernel mode; 0 if no CPU is."""
        in_user = [self._paging.in_user_mode(self.registers(cpu)) for cpu in range(self.cpus)]
        return in_user.index(False) if False in in_user else 0

    def find_text(self) -> int | None:
        """Return the virtual address at which the kernel's text starts (KASLR moves it).

        None if the stub has no physical memory mode, or the system is not known.
        """
        if self._memory is None or self._virtual_layout is None:
            return None
        read, image = self._physical.read_physical, self._virtual_layout.image
        return self._paging.find_text(read, self._memory.root, image)

    def set_tables(self, address: int) -> None:
        """Read memory by the page tables whose top-level table is at this virtual address from now
        on.
        """
        if self._memory is not None:
            self._memory.set_tables(address)

    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory of a stopped machine.

        If the stub has no physical memory mode, or the system is not known, memory is read as a CPU
        sees it: a CPU in kernel mode, if there is one.
        """
        if self._stub.running:
            raise TargetError("the machine must be stopped before its memory can be read")
        if self._memory is not None:
            return self._memory.read(address, size)
        if self._cpu < 0:
            self._cpu = self._kernel_cpu()
        self._stub.select(self._cpu)
        return self._rsp.read_memory(address, size)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """Read memory of the process that a stopped CPU runs, by the page tables that the CPU uses
        now.
        """
        if self._memory is not None:
            registers = self.registers(cpu)
            return read_process(self._paging, self._physical, registers, address, size)
        need_process(address, size)
        self._stub.select(cpu)
        self._cpu = cpu
        return self._rsp.read_memory(address, size)

    def resume(self) -> None:
        self._cpu = -1
        self._physical.forget()
        super().resume()

    def close(self) -> None:
        """Remove all breakpoints, let the machine run and disconnect.  Safe to call twice.

        Raises TargetError if the machine stays stopped.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._rsp.closed:
                self._stub.detach()
        except TargetError as error:
            if not self._rsp.closed:
                raise TargetError(
                    f"the machine at {self._address} is left stopped: {error.message}",
                    "let it run: `cont` in QEMU's monitor, or `continue` and `detach` in gdb",
                ) from error
        finally:
            self._rsp.close()
