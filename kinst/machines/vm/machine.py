"""The vm machine: a kernel that kinst boots in QEMU, with scratch memory inside."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from dataclasses import replace

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Abilities, Bearings, Complaint, Gone, MachineEvent, Stopped, Terminal
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.machines.stub.jump_cache import JUMP_CACHE
from kinst.machines.vm.files import in_surroundings
from kinst.machines.vm.guest import SAMPLE, SAMPLES, Guest
from kinst.machines.vm.qemu import Qemu, VmConfig, gone_error
from kinst.machines.vm.warm import Loading

_PREPARE_TIMEOUT = 60.0
_WARM_SECONDS = 20.0
_SYSTEM_SECONDS = 300.0  # for the user's own init to start all that it starts
_BOOT_SECONDS = 180.0  # on a busy host; a panic is told at once
# What stands in its boot, and could not be set going (retranslation.py), is started again, once.
_FIRST_BOOT_SECONDS = 60.0
_BOOTS = 4  # how often such a one is; each of these may meet what the first has met
_BEAT_SILENCE = 5.0  # seconds without a timer tick before the CPUs are looked at
# Seconds without a word from a kernel that boots, until QEMU is made to translate code anew: that
# which the CPUs are at and, at last, all.
_SILENCES = (4.0, 8.0, 30.0)
_COMMAND_LIMIT = 64 * 1024  # bytes


class GuestHelpers:
    """The processes of kinst's init script (core.machine.Helpers has the protocol)."""

    def __init__(self, qemu: Qemu, pid: int, passer: int) -> None:
        self._qemu = qemu
        self.pid = pid
        self.passer = passer

    def start_alone(self) -> None:
        self._qemu.send_control("go alone")

    def go_on(self) -> None:
        self._qemu.send_control("on")


class Vm(Guest):
    """Target over a guest that kinst boots (core/machine.py has the protocol)."""

    abilities = Abilities(boots=True, writes_code=True, runs_commands=True)

    def __init__(
        self,
        isa: Isa,
        config: VmConfig,
        virtual_layout: VirtualLayout,
        on_output: Callable[[bytes], None] | None = None,
        early_start: tuple[Qemu, Loading] | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        """Start QEMU and return at once; call bring_up before anything else.

        virtual_layout: of the system that it boots.  on_output: gets the guest command's output,
            from within wait and its like.  early_start: see Guest.  terminal: that the commands
            have. Raises TargetError when QEMU or a file is missing, or memory.
        """
        super().__init__(isa, config, virtual_layout, on_output, early_start)
        if config.accel == "tcg":
            self.abilities = replace(self.abilities, code_table=JUMP_CACHE)
        self._terminal = terminal
        self._command_pids = (0, 0)  # of the command, and of what passes its output on or 0
        self._init_is_ready = False
        self._shares_mounted = False
        self._beat_at = 0
        self._beat = b""
        self._beat_seen = 0.0
        self._revived = False  # since the last beat

    # Booting.

    def bring_up(self, say: Callable[[str], None]) -> Bearings:
        """See core/machine.py.  A guest that stands in its boot is started again; one that does
        not go on from the state that was kept of another is booted."""
        if not self._goes_on(say):
            self._boot(say)
        return Bearings(self.find_text())

    def _boot(self, say: Callable[[str], None]) -> None:
        """Wait until the kernel is up, and keep that for the next one, where that can be."""
        for _ in range(_BOOTS):
            try:
                if self.boots(_FIRST_BOOT_SECONDS):
                    break
                say("kinst: the guest stands in its boot and is started again")
            except TargetError:
                if not self.qemu.console.lost_breakpoint:
                    raise
                say("kinst: the guest met a breakpoint that is gone (QEMU) and is started again")
            self.start_again()
        self.wait_ready(_BOOT_SECONDS)
        self.stop()
        self.qemu.clear_scratch()
        try:
            self.arm_timers()
        except TargetError:  # so nobody could arm those of one that goes on
            self._warm = None
        if self._warm is not None:
            self._warm.keep(self.qemu, self.bearings())

    def _goes_on(self, say: Callable[[str], None]) -> bool:
        """Whether the guest goes on from where another was when it had booted; it stands then.
        Where it does not, that state is thrown away, and the guest boots."""
        if self._loading is None or self._warm is None:
            return False
        try:
            self._loading.finish()
            self.qemu.wait_for(self._clock_is_set, _WARM_SECONDS, "gone on")
            self._attach()
            self.stop()
            self.arm_timers()
        except TargetError as error:
            say(f"kinst: the state of the booted guest is made anew: {str(error).splitlines()[0]}")
            self._warm.forget()
            self.start_again()
            return False
        self._init_is_ready = True
        return True

    def _clock_is_set(self) -> bool:
        return self.qemu.control_line("clock") is not None

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        """See core/machine.py."""
        if page_tables is not None:
            self.set_tables(page_tables)
        if heartbeat is not None:
            self.watch_heartbeat(heartbeat)

    def boots(self, seconds: float) -> bool:
        """Whether kinst's init is heard of within so many seconds; with an initrd of the user's
        True at once, as nothing can be heard there.  Before wait_ready.

        A guest that falls silent meanwhile is revived (retranslation.py), if that is what it needs;
        False at once where a CPU is beyond help.
        Raises TargetError when the guest ends.
        """
        deadline = time.monotonic() + seconds
        silences = iter((*_SILENCES, math.inf))
        silence = next(silences)

        def over() -> bool:
            now = time.monotonic()
            return self._hears_init() or now > deadline or now > self.qemu.console.heard + silence

        while True:
            self.qemu.wait_for(over, seconds + 1.0, "booted")
            if self._hears_init() or time.monotonic() > deadline:
                return self._hears_init()
            self._translate_anew(silence == _SILENCES[-1])
            if self._is_lost():
                return False
            silence = next(silences)

    def start_again(self) -> None:
        """End this guest, which has not booted, and start another one like it."""
        self.qemu.close()
        self._init_is_ready = False
        self._shares_mounted = False
        self._start(cold=True)

    def _hears_init(self) -> bool:
        if self._config.control and not self._init_is_ready:
            self._init_is_ready = self.qemu.control_line("ready") is not None
        return self._init_is_ready or not self._config.control

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the kernel is up: kinst's init says so or, with an initrd of the user's,
        the first program runs.  The machine is stopped then.

        Raises TargetError with the console's last lines when it does not get there.
        """
        if self._config.control:
            self.qemu.wait_for(self._hears_init, timeout, "booted")
            self._attach()
            self.stop()
        else:
            self._wait_init(timeout)

    def _wait_init(self, timeout: float) -> None:
        """Ready is when the kernel has said that it starts init or (with `quiet`) has
        write-protected its text or (with `rodata=off` too) a CPU is caught in user mode.

        Behind the protection Linux looks through its page tables for pages that are writable and
        executable (debug_checkwx), and would warn of scratch: it is given a second for that."""
        deadline = time.monotonic() + timeout
        first = deadline - timeout + 1.0  # the firmware and the decompressor are done
        self.qemu.wait_for(
            lambda: self.qemu.console.init_runs or time.monotonic() > first, timeout, "booted"
        )
        self._attach()
        final = 0  # times that the text was seen to be write-protected
        while not self.qemu.console.init_runs and not self._in_user_mode():
            final += self._text_is_final()
            if final * SAMPLE > 1.0:
                break
            if time.monotonic() > deadline:
                late = f"the guest has not run a program in {timeout:g} s"
                raise gone_error(Gone(late, self.qemu.console.last_lines(), "hang"))
            self.resume()
            event = self.wait(SAMPLE)
            if isinstance(event, Gone):
                raise gone_error(event)
            self.stop()

    def _in_user_mode(self) -> bool:
        """Whether a CPU is."""
        return any(self._paging.in_user_mode(self.registers(cpu)) for cpu in range(self.cpus))

    def _text_is_final(self) -> bool:
        read, final, image = (
            self.qemu.read_physical,
            self._config.boot.text_is_final,
            self._virtual_layout.image,
        )
        every = (self.registers(cpu) for cpu in range(self.cpus))
        return any(final(self._paging, read, registers, image) for registers in every)

    # Running.

    def resume(self) -> None:
        self._beat_seen = time.monotonic()
        super().resume()

    def wait(self, timeout: float) -> MachineEvent | None:
        """See core/machine.py.  The command's output goes to on_output from here."""
        deadline = time.monotonic() + timeout
        while True:
            gone = self.qemu.poll()
            event: MachineEvent | None = self.qemu.command_ended() or gone
            if event is not None:
                return event
            try:
                stopped = self._stub.poll(0.0)
            except TargetError:
                gone = self.qemu.ended(2.0)
                if gone is None:
                    raise
                return gone
            if stopped is not None:
                if isinstance(stopped, Stopped):
                    return stopped
                return self.qemu.ended(5.0) or Gone("QEMU let the guest go")
            event = self._hung()
            left = deadline - time.monotonic()
            if event is not None or left <= 0:
                return event
            assert self._rsp is not None
            fds = [self._rsp.fileno(), self.qemu.fileno()]
            select.select(fds, [], [], min(left, 0.5))

    def watch_heartbeat(self, address: int) -> None:
        """Tell wait where the kernel counts its timer ticks (8 bytes), so that it
        can report a kernel that hangs with interrupts off.  Stopped, or after a read."""
        self._beat = self.read(address, 8)
        self._beat_at = address
        self._beat_seen = time.monotonic()

    def _hung(self) -> Gone | None:
        """The machine hangs when no tick is counted for seconds although a CPU takes no
        interrupts all the while.  (No ticks alone is how a machine sleeps.)"""
        if not self._beat_at or not self._stub.running:
            return None
        now = time.monotonic()
        if self._beat_moved() or now - self._beat_seen < _BEAT_SILENCE:
            return None
        stuck, in_probes = set(range(self.cpus)), False
        low, high = self._scratch
        for _ in range(SAMPLES):
            self.stop()
            stuck &= {c for c in stuck if self._board.interrupts_off(self.registers(c))}
            places = {c: self.registers(c)[self.isa.pc] for c in stuck}
            in_probes = in_probes or any(low <= at < high for at in places.values())
            if not stuck or self._beat_moved():
                self.resume()
                self._beat_seen = now
                return None
            self.resume()
            time.sleep(SAMPLE)
        if in_probes:
            # Whoever has planted them may still take them out.
            text = f"no timer tick for {_BEAT_SILENCE:g} s, with a CPU in probes"
            self.qemu.console.warnings.append(Complaint("hang", text))
            self._beat_seen = now
            return None
        if not self._revived:
            self._revived = True
            self._translate_anew(everything=False)
            return None
        self.stop()
        where = ", ".join(f"CPU {c} at {at:#x}" for c, at in sorted(places.items()))
        reason = f"the guest hangs with interrupts off: {where}"
        return Gone(reason, self.qemu.console.last_lines(), "hang")

    def _beat_moved(self) -> bool:
        beat = self.read(self._beat_at, 8)
        moved, self._beat = beat != self._beat, beat
        if moved:
            self._beat_seen = time.monotonic()
            self._revived = False
        return moved

    def take_warnings(self) -> list[Complaint]:
        """See core/machine.py."""
        self.qemu.poll()
        taken, self.qemu.console.warnings = self.qemu.console.warnings, []
        return taken

    # The guest's command.

    def prepare_command(self, command: str) -> int:
        """See core/machine.py.  The machine runs meanwhile, and is as before afterwards."""
        around = self._config.surroundings
        text = in_surroundings(command, around) if around else command
        data = text.encode("utf-8", "surrogateescape")
        if len(data) > _COMMAND_LIMIT:
            what = "the command and its environment are" if around else "the command is"
            raise TargetError(f"{what} too long for the guest", "put it into a file")
        was_stopped = not self._stub.running
        pid = ""

        def answered() -> bool:
            nonlocal pid
            pid = self.qemu.control_line("pid") or pid
            return bool(pid)

        self.resume()
        self._mount_shares()
        size = "{} {}".format(*self._terminal.size()) if self._terminal is not None else ""
        self.qemu.send_control(f"prepare {data.hex()} {size}".strip())
        limit = _SYSTEM_SECONDS if self._config.beside else _PREPARE_TIMEOUT
        self.qemu.wait_for(answered, limit, "prepared the command")
        if was_stopped:
            self.stop()
        own, _, passer = pid.partition(" ")
        self._command_pids = int(own), int(passer or 0)
        return int(own)

    @property
    def helpers(self) -> GuestHelpers | None:
        """None with a terminal, which they serve while the command runs."""
        if self._terminal is not None:
            return None
        return GuestHelpers(self.qemu, *self._command_pids)

    def _mount_shares(self) -> None:
        """Have the folders of the host mounted, the root first.  Once; the machine runs."""
        if self._shares_mounted:
            return
        self.qemu.plug_shares()
        for share in sorted(self._config.shares, key=lambda share: share.writable):
            what = f"{share.tag} {share.at.encode().hex()}".strip()
            self.qemu.send_control(f"mount {what}")
            try:
                self.qemu.wait_for(self._says_mounted, _PREPARE_TIMEOUT, f"mounted {share.folder}")
            except TargetError as error:
                needs = (
                    "the kernel needs VIRTIO_PCI, VIRTIO_FS and OVERLAY_FS, built in or --module"
                )
                raise TargetError(f"{share.folder} is not in the guest: {error}", needs) from error
        self._shares_mounted = True

    def _says_mounted(self) -> bool:
        return self.qemu.control_line("mounted") is not None

    def start_command(self) -> None:
        """See core/machine.py.  It starts when the machine runs."""
        if self._terminal is not None:
            self._terminal.connect(self.qemu.send_input, self._resize)
        self.qemu.send_control("go")

    def _resize(self, rows: int, columns: int) -> None:
        self.qemu.send_control(f"resize {rows} {columns}")

    def end_command(self) -> None:
        """See core/machine.py."""
        self.resume()
        self.qemu.send_control("end")
        self.qemu.wait_for(self._command_over, _PREPARE_TIMEOUT, "ended the command")

    def _command_over(self) -> bool:
        """Whether the guest's init has answered; the command's own end came before that."""
        if self.qemu.control_line("ended") is None:
            return False
        self.qemu.command_ended()
        return True
