"""Target for a kernel that kinst boots in QEMU: boot, events, hangs and commands."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    Abilities,
    Complaint,
    Gone,
    KernelLocation,
    MachineEvent,
    Stopped,
    Terminal,
)
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.machines.stub.cpus import double_hits_told
from kinst.machines.stub.jump_cache import JUMP_CACHE
from kinst.machines.vm import ABILITIES
from kinst.machines.vm.accelerators import KVM, TCG
from kinst.machines.vm.files import Share, in_surroundings
from kinst.machines.vm.guest import SAMPLE, SAMPLES, Guest
from kinst.machines.vm.kvm import FAILED, Accelerator
from kinst.machines.vm.qemu import Qemu, VmConfig, gone_error, prepare_line
from kinst.machines.vm.warm import Loading, warm_start
from kinst.wire.other_process import OtherProcess
from kinst.wire.sockets import wait_until_ready

_PREPARE_TIMEOUT = 60.0
_WARM_SECONDS = 20.0
_SYSTEM_SECONDS = 300.0  # for the user's own init to start its services
_BOOT_SECONDS = 180.0  # for a boot on a busy host; a panic ends it at once
_FIRST_BOOT_SECONDS = 60.0  # after which a guest that hangs during boot is restarted
_BOOTS = 4  # how often it is restarted, since each boot may hang in the same way
_BEAT_SILENCE = 5.0  # seconds without a timer tick before the CPUs are examined
# Seconds without output from a kernel that boots under TCG, after which QEMU must translate code
# again: the code that the CPUs execute, and at last all of it.
_SILENCES = (4.0, 8.0, 30.0)
# The host is too busy to try KVM if a guest's CPUs have run for less than these seconds, and were
# ready but had no CPU of the host in this part of the time.  The guest then has this many times as
# long to boot under KVM.
_ENOUGH, _BUSY, _TIMES_BUSY = 2.0, 0.25, 3
_COMMAND_LIMIT = 64 * 1024  # bytes


class GuestHelpers:
    """Processes of kinst's init script in the guest, which run its command; implements Helpers
    (core/machine.py).
    """

    def __init__(self, qemu: Qemu, pid: int, passer: int) -> None:
        self._qemu = qemu
        self.pid = pid
        self.passer = passer

    def start_alone(self) -> None:
        self._qemu.send_control("go alone")

    def go_on(self) -> None:
        self._qemu.send_control("on")


class Vm(Guest):
    """Target for a guest that kinst boots."""

    abilities = ABILITIES

    def __init__(
        self,
        isa: Isa,
        config: VmConfig,
        virtual_layout: VirtualLayout,
        on_output: Callable[[bytes], None] | None = None,
        early_start: tuple[Qemu, Loading] | None = None,
        terminal: Terminal | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """Start QEMU, without waiting for the guest.  Call bring_up() before anything else.

        Args:
            virtual_layout: the virtual layout of the guest's system.
            on_output: called with the output of the guest's command, from within wait() and other
                methods.
            early_start: a QEMU that was started before and loads a saved state, to use instead of a
                new QEMU; None to start a new QEMU.
            terminal: the terminal of the guest's commands; None if they have no terminal.
            accelerator: the accelerator in config.accel, and why it was chosen. With None, kinst
                uses config.accel, tries no other accelerator and does not record the outcome.

        Raises TargetError if QEMU, a file or memory is missing.
        """
        super().__init__(isa, config, virtual_layout, on_output, early_start)
        self._accelerator = accelerator or Accelerator(config.accel, required=True)
        self.abilities = self._abilities_when_up()
        self._terminal = terminal
        self._say: Callable[[str], None] = lambda text: None
        self._prepares = ""  # the command that the guest prepares since it runs
        self._command_pids = (0, 0)  # of the command, and of the process that passes its output on
        self._init_is_ready = False
        self._refused = ""  # the module that the guest could not load, and the reason
        self._shares_mounted = False
        self._beat_at = 0
        self._beat = b""
        self._beat_seen = 0.0
        self._revived = False  # code was translated again since the last tick

    # Booting.

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Continue from a saved state or boot, stop the machine when its kernel is up, and return
        where the kernel is.

        A guest that hangs during boot is restarted. A guest that does not come up under KVM is
        started again under TCG, unless the user has asked for KVM.

        Args:
            say: called with a line for the user about a restart.

        Raises TargetError if the guest does not come up, or could not load a module.
        """
        self._say = say
        try:
            self._come_up(say)
        except TargetError as error:
            if not self._accelerator.falls_back:
                raise
            self._come_up_under_tcg(error, say)
        else:
            if self._accelerator.record is not None and self._accelerator.name == KVM:
                self._accelerator.record.came_up()
        if self._refused:
            raise TargetError(f"the guest could not load {self._refused}")
        return KernelLocation(self.find_text())

    def _abilities_when_up(self) -> Abilities:
        """Return what the guest can do under its accelerator once its kernel is up."""
        if self._config.accel != TCG:
            return ABILITIES
        watches = self._board.STOPS_AFTER_WRITE
        return replace(ABILITIES, code_table=JUMP_CACHE, watches=watches)

    def describe(self) -> str:
        return f"the guest runs under {self._accelerator.short_text}"

    def _come_up(self, say: Callable[[str], None]) -> None:
        if not self._continues(say):
            self._boot(say)

    def _come_up_under_tcg(self, error: TargetError, say: Callable[[str], None]) -> None:
        """Start the guest again under TCG, and record that it does not come up under KVM.

        Nothing is recorded if the guest does not come up under TCG either. Nothing is recorded if
        the host was too busy to run it under KVM.

        Args:
            error: why it has not come up under KVM.
            say: called with a line for the user.
        """
        reason = error.message.splitlines()[0]
        busy = self._is_starved()
        say(f"kinst: under KVM, {reason}; starting the guest again under TCG")
        self.qemu.close()
        record = self._accelerator.record
        self._accelerator = Accelerator(TCG, FAILED, failure=reason)
        self._config = replace(self._config, accel=TCG)
        self.abilities = self._abilities_when_up()
        self._warm = warm_start(self._config, self._board)
        self._init_is_ready = self._shares_mounted = False
        self._start()
        self._come_up(say)
        if record is not None and not busy:
            record.failed(reason)

    def _is_starved(self) -> bool:
        """Return whether the host has given the guest's CPUs too little time to come up; False if
        QEMU has ended.

        QEMU's first thread counts as waiting, too: on a very busy host it has not yet started the
        threads of the CPUs.
        """
        try:
            process = OtherProcess(self.qemu.pid)
            ran, waited = process.busy() / 1e9, process.waited() / 1e9
        except (TargetError, OSError):
            return False
        return ran < _ENOUGH and waited > _BUSY * (time.monotonic() - self._started)

    def _boot(self, say: Callable[[str], None]) -> None:
        """Boot the guest, stop it when its kernel is up, and save its state for later guests if
        possible. The state of a guest that could not load a module is not saved.

        A guest that hangs during boot is restarted.

        Args:
            say: called with a line for the user about a restart.
        """
        if self._config.accel != TCG:
            self._wait_under_kvm()
        for _ in range(_BOOTS if self._config.accel == TCG else 0):
            try:
                if self.boots(_FIRST_BOOT_SECONDS):
                    break
                say("kinst: the guest hung during boot; restarting it")
            except TargetError:
                if not self.qemu.console.lost_breakpoint:
                    raise
                say("kinst: the guest died of a stale breakpoint in QEMU; restarting it")
            self.start_again()
        self.wait_ready(_BOOT_SECONDS)
        self.stop()
        self.qemu.clear_scratch()
        try:
            self.arm_timers()
        except TargetError:  # the timers of a guest that continues could not be rearmed
            self._warm = None
        if self._warm is not None and not self._refused:
            self._warm.save(self.qemu, self.location())

    def _wait_under_kvm(self) -> None:
        """Wait until kinst's init has started in a guest under KVM.

        A guest is taken to hang if it prints nothing for Accelerator.silence seconds. If the host
        is busy and gives the guest's CPUs little time, kinst waits longer.

        Raises TargetError if the guest ends or hangs.
        """
        limit = self._accelerator.silence

        def over() -> bool:
            silence = time.monotonic() - self.qemu.console.heard
            if self._hears_init() or silence > _TIMES_BUSY * limit:
                return True
            return silence > limit and not self._is_starved()

        self.qemu.wait_for(over, _BOOT_SECONDS, "booted")
        if not self._hears_init():
            late = f"the guest has printed nothing for {limit:g} s of its boot"
            raise gone_error(Gone(late, self.qemu.console.last_lines(), "hang"))

    def _continues(self, say: Callable[[str], None]) -> bool:
        """Wait until the guest has loaded its saved state, and stop it; return whether that
        succeeded.

        False without a saved state. If loading fails, the saved state is deleted and the guest is
        restarted.

        Args:
            say: called with a line for the user about a failure.
        """
        if self._loading is None or self._warm is None:
            return False
        try:
            self._loading.finish()
            self.qemu.wait_for(self._clock_is_set, _WARM_SECONDS, "continued")
            self._attach()
            self.stop()
            self.arm_timers()
        except TargetError as error:
            reason = str(error).splitlines()[0]
            say(f"kinst: the saved state of the guest is replaced: {reason}")
            self._warm.delete()
            self.start_again()
            return False
        self._init_is_ready = True
        self._prepares = self._loading.command
        return True

    def _clock_is_set(self) -> bool:
        return self.qemu.control_line("clock") is not None

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        if page_tables is not None:
            self.set_tables(page_tables)
        if heartbeat is not None:
            self.watch_heartbeat(heartbeat)

    def boots(self, seconds: float) -> bool:
        """Wait for kinst's init, and return whether it has started within `seconds`.

        If the guest prints nothing for some seconds, kinst makes QEMU translate code again
        (retranslation.py). If a CPU still cannot recover, return False at once. If the initrd is
        the user's own, which lacks kinst's init, return True at once.

        Raises TargetError if the guest ends.
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
        """End this guest, which has not booted, and start a new one."""
        self.qemu.close()
        self._init_is_ready = False
        self._shares_mounted = False
        self._start(cold=True)

    def _hears_init(self) -> bool:
        if self._config.control and not self._init_is_ready:
            self._init_is_ready = self.qemu.control_line("ready") is not None
            if self._init_is_ready:
                self._refused = self.qemu.control_line("refused") or ""
        return self._init_is_ready or not self._config.control

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the kernel is up, and stop the machine.

        The kernel is up when kinst's init says so or, with the user's own initrd, when the first
        program runs.

        Args:
            timeout: seconds.

        Raises TargetError, with the console's last lines, if the kernel does not come up.
        """
        if self._config.control:
            self.qemu.wait_for(self._hears_init, timeout, "booted")
            self._attach()
            self.stop()
        else:
            self._wait_init(timeout)

    def _wait_init(self, timeout: float) -> None:
        """Wait until the kernel starts init, and stop the machine.

        kinst waits for one of three signs. A kernel says on the console that it starts init, unless
        its command line has `quiet`. It write-protects its text shortly before that, unless its
        command line has `rodata=off`. And after init has started, a CPU is in user mode.

        After Linux has protected its text, it searches its page tables for pages that are writable
        and executable (debug_checkwx), and would warn about scratch. So after the second sign kinst
        waits one more second.

        Args:
            timeout: seconds.

        Raises TargetError if the kernel does not start init.
        """
        deadline = time.monotonic() + timeout
        first = deadline - timeout + 1.0  # the firmware and the decompressor are done
        self.qemu.wait_for(
            lambda: self.qemu.console.init_runs or time.monotonic() > first, timeout, "booted"
        )
        self._attach()
        final = 0  # samples in which the text was write-protected
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
        """Return whether any CPU of the stopped machine is in user mode."""
        return any(self._paging.in_user_mode(self.registers(cpu)) for cpu in range(self.cpus))

    def _text_is_final(self) -> bool:
        read, final = self.qemu.read_physical, self._config.boot.text_is_final
        image = self._virtual_layout.image
        every = (self.registers(cpu) for cpu in range(self.cpus))
        return any(final(self._paging, read, registers, image) for registers in every)

    # Running.

    def insert_breakpoint(self, address: int) -> None:
        if self._config.accel == KVM and (told := double_hits_told(os.uname().release)):
            say, self._say = self._say, lambda text: None  # once
            say(told)
        super().insert_breakpoint(address)

    def resume(self) -> None:
        self._beat_seen = time.monotonic()
        super().resume()

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait for an event, and return it; None after `timeout` seconds.

        Output of the guest's command is passed to on_output meanwhile.
        """
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
                return self.qemu.ended(5.0) or Gone("QEMU's GDB stub has detached from the guest")
            event = self._hung()
            left = deadline - time.monotonic()
            if event is not None or left <= 0:
                return event
            assert self._rsp is not None
            fds = [self._rsp.fileno(), self.qemu.fileno()]
            wait_until_ready(fds, seconds=min(left, 0.5))

    def watch_heartbeat(self, address: int) -> None:
        """Let wait() report from now on if the kernel hangs with interrupts off.

        The machine must be stopped, unless its memory was read at least once before.

        Args:
            address: address of the kernel's counter of timer ticks (8 bytes).
        """
        self._beat = self.read(address, 8)
        self._beat_at = address
        self._beat_seen = time.monotonic()

    def _hung(self) -> Gone | None:
        """Return Gone, with the reason, if the machine hangs; otherwise None.

        The machine hangs if no timer tick is counted for some seconds and a CPU has interrupts off
        in all samples. Without ticks but with interrupts on, the machine may sleep.
        """
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
            # kinst may still unplant them.
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
        self.qemu.poll()
        warnings, self.qemu.console.warnings = self.qemu.console.warnings, []
        return warnings

    # The guest's command.

    def prepare_command(self, command: str) -> int:
        """Create the process of a command in the guest, without running it yet; return its process
        id.

        The machine runs meanwhile; afterwards it runs or is stopped as before.
        """
        text = self._command_text(command)
        was_stopped = not self._stub.running
        pid = ""

        def answered() -> bool:
            nonlocal pid
            pid = self.qemu.control_line("pid") or pid
            return bool(pid)

        self.resume()
        self._mount_shares()
        size = self._terminal_size
        limit = _SYSTEM_SECONDS if self._config.beside else _PREPARE_TIMEOUT
        prepared, self._prepares = self._prepares, ""
        if prepared and (prepared != text or size):
            self.qemu.wait_for(answered, limit, "prepared the command")
            self.end_command()
            pid, prepared = "", ""
        if not prepared:
            self.qemu.send_control(prepare_line(text, size))
        self.qemu.wait_for(answered, limit, "prepared the command")
        if was_stopped:
            self.stop()
        own, _, passer = pid.partition(" ")
        self._command_pids = int(own), int(passer or 0)
        return int(own)

    def _command_text(self, command: str) -> str:
        """Return a command as the guest's shell gets it.  Raises TargetError if it is too long."""
        around = self._config.surroundings
        text = in_surroundings(command, around) if around else command
        if len(text.encode("utf-8", "surrogateescape")) > _COMMAND_LIMIT:
            subject = "the command and its environment are" if around else "the command is"
            raise TargetError(f"{subject} too long for the guest", "put it into a file")
        return text

    @property
    def _terminal_size(self) -> str:
        """Rows and columns of the commands' terminal, "" without one."""
        return "{} {}".format(*self._terminal.size()) if self._terminal is not None else ""

    @property
    def helpers(self) -> GuestHelpers | None:
        """Processes of kinst's init script that run the command, which can be made to wait; None if
        there are none.

        If the command has a terminal, the value is None as well: the processes serve the terminal
        and must not wait.
        """
        if self._terminal is not None or not self._config.control:
            return None
        return GuestHelpers(self.qemu, *self._command_pids)

    def _mount_shares(self) -> None:
        """Mount the folders of the host in the running guest.  Does nothing the second time."""
        for share in self._mounting():
            try:
                self.qemu.wait_for(self._says_mounted, _PREPARE_TIMEOUT, f"mounted {share.folder}")
            except TargetError as error:
                needs = (
                    "the kernel needs VIRTIO_PCI, VIRTIO_FS and OVERLAY_FS, built in or --module"
                )
                raise TargetError(f"{share.folder} is not in the guest: {error}", needs) from error

    def _mounting(self) -> Iterator[Share]:
        """Ask kinst's init to mount the folders of the host, one after another, the root first.

        Yields each folder after the request for it. The caller must then wait until
        _says_mounted(). A second call yields nothing.
        """
        if self._shares_mounted:
            return
        self.qemu.plug_shares()
        for share in sorted(self._config.shares, key=lambda share: share.writable):
            where = f"{share.tag} {share.at.encode().hex()}".strip()
            self.qemu.send_control(f"mount {where}")
            yield share
        self._shares_mounted = True

    def _says_mounted(self) -> bool:
        return self.qemu.control_line("mounted") is not None

    def start_command(self) -> None:
        """Let the prepared command run; it begins when the machine runs."""
        if self._terminal is not None:
            self._terminal.connect(self.qemu.send_input, self._resize)
        self.qemu.send_control("go")

    def _resize(self, rows: int, columns: int) -> None:
        self.qemu.send_control(f"resize {rows} {columns}")

    def end_command(self) -> None:
        self.resume()
        self.qemu.send_control("end")
        self.qemu.wait_for(self._command_over, _PREPARE_TIMEOUT, "ended the command")

    def _command_over(self) -> bool:
        """Return whether kinst's init in the guest has confirmed the end of the command. If it has,
        discard the command's exit status.
        """
        if self.qemu.control_line("ended") is None:
            return False
        self.qemu.command_ended()
        return True
