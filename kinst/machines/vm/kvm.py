"""Choice between KVM and TCG for a guest, and the record of guests that were started under KVM.

On some hosts /dev/kvm can be opened, but QEMU fails, or a guest hangs early in its boot. So the
first guest is the test: kinst starts it under KVM and, if it does not come up, starts it again
under TCG. The outcome is recorded for later guests with the same kernel. As long as no guest at all
has come up under KVM, a failure counts for all kernels. A record is valid until the host boots or
QEMU is replaced.

Tested by tests/machines/vm/test_kvm.py.
"""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kinst.core.board import Board
from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.options import MachineOptions
from kinst.core.whole_files import write_whole
from kinst.machines.vm.accelerators import KVM, TCG, accelerator_of, says_accelerator
from kinst.wire.child_process import boot_id, find_program

if TYPE_CHECKING:
    from kinst.core.isa import Isa

DEVICE = Path("/dev/kvm")
SILENCE = 8.0  # seconds; see Accelerator
# Errors that pass without a boot of the host: another hypervisor has the processor, or memory is
# short.
_PASSING = tuple(os.strerror(number) for number in (errno.EBUSY, errno.ENOMEM))
FAILED = "a guest did not come up under KVM"
_NOT_TRIED = "no guest has been started under KVM since this host's boot"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerator that a guest is started with.

    Attributes:
        name: KVM or TCG.
        reason: why this accelerator was chosen, for the user.
        failure: how a guest failed under KVM, if that is the reason; "" otherwise.
        required: whether the user has asked for this accelerator. Then kinst tries no other one if
            the guest does not come up.
        silence: seconds without output after which a guest that boots under KVM is taken to hang.
        record: where the outcome of a start under KVM is recorded; None to record nothing.
    """

    name: str = TCG
    reason: str = ""
    required: bool = False
    silence: float = math.inf
    record: KvmRecord | None = None
    failure: str = ""

    @property
    def text(self) -> str:
        """The accelerator and the reason, for the user."""
        failure = f": {self.failure}" if self.failure else ""
        return f"{self.name.upper()}: {self.reason}{failure}"

    @property
    def short_text(self) -> str:
        """The text without QEMU's words, which are long."""
        hint = " (kinst --version -v says why)" if self.failure else ""
        return f"{self.name.upper()}: {self.reason}{hint}"

    @property
    def falls_back(self) -> bool:
        """Whether a guest that does not come up is started again under TCG."""
        return self.name == KVM and not self.required


class KvmRecord:
    """File in the cache with the outcomes of starting guests under KVM, on this host and by one
    QEMU program: for each kernel, whether a guest has come up."""

    def __init__(self, cache: Path, board: Board, kernel: Path | None = None) -> None:
        """Read nothing yet.

        Args:
            cache: the cache folder.
            kernel: the guest's kernel; None if no particular kernel is meant.

        Raises TargetError if QEMU is missing.
        """
        self._file = cache / f"kvm-{board.QEMU}.json"
        # The identity of QEMU's file stands for its version, for which QEMU would have to run.
        self._host = f"{boot_id()} {_identity(Path(find_program(board.QEMU, board.PACKAGE)))}"
        self._kernel = _identity(kernel) if kernel is not None else ""

    def outcome(self) -> str | None:
        """Return whether guests with this kernel come up under KVM, as far as it was tried since
        the host's boot.

        The result is "" if a guest has come up, the reason if a guest has failed to come up, and
        None if none was tried. If no guest at all has come up, the failure of another kernel counts
        for this kernel. If no particular kernel is meant, a guest with any kernel counts.
        """
        outcomes = self._outcomes()
        best = min(outcomes.values(), default=None)  # "" if a guest has come up
        return outcomes.get(self._kernel, best if best or not self._kernel else None)

    def came_up(self) -> None:
        """Record that a guest has come up under KVM."""
        self._write("")

    def failed(self, reason: str) -> None:
        """Record why a guest has not come up under KVM, although it has come up under TCG.

        Nothing is recorded for an error that may be gone at the next attempt.
        """
        if not any(text in reason for text in _PASSING):
            self._write(reason)

    def _outcomes(self) -> dict[str, str]:
        try:
            content = json.loads(self._file.read_text())
            if content["host"] != self._host:
                return {}
            return {str(kernel): str(reason) for kernel, reason in content["kernels"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, reason: str) -> None:
        outcomes = self._outcomes()
        if outcomes.get(self._kernel) != reason:
            content = {"host": self._host, "kernels": {**outcomes, self._kernel: reason}}
            write_whole(self._file, [json.dumps(content).encode()])


def _identity(path: Path) -> str:
    """Return a text that changes if a file is changed or replaced; "" if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return ""  # QEMU reports the error
    return f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def choose(
    isa: Isa,
    options: MachineOptions,
    kernel: Path | None,
    cache: Path | None,
    device: Path = DEVICE,
) -> Accelerator:
    """Return the accelerator for a guest: KVM if this host has it and no start under it has failed.

    Args:
        options: the user's options for the guest.
        kernel: the guest's kernel; None if no particular kernel is meant.
        cache: the cache folder, for the record; None to read and write no record.
        device: path of KVM's device.

    Raises TargetError if the user asks for KVM and this host lacks it, or if QEMU is missing.
    """
    if says_accelerator(options.qemu_args):
        return Accelerator(accelerator_of(options.qemu_args), "QEMU's arguments say so", True)
    if options.accel == TCG:
        return Accelerator(TCG, "--accel says so", True)
    obstacle, hint = _obstacle(isa, device)
    if obstacle and options.accel:
        raise TargetError(f"--accel {options.accel}: {obstacle}", hint or "leave out --accel")
    if obstacle:
        return Accelerator(TCG, obstacle)
    record = None if cache is None else KvmRecord(cache, isa.board, kernel)
    outcome = record.outcome() if record is not None else None
    if outcome and not options.accel:
        return Accelerator(TCG, FAILED, failure=outcome)
    proved = outcome == ""
    reason = "a guest has come up under it since this host's boot" if proved else _NOT_TRIED
    silence = math.inf if proved or options.accel else SILENCE
    own = bool(options.initrd or options.qemu_args)  # these may be what fails
    record = None if own else record
    if options.accel:
        return Accelerator(KVM, "--accel says so", True, silence, record)
    if own and not proved:
        return Accelerator(TCG, f"{_NOT_TRIED}, without --initrd and --qemu-arg")
    return Accelerator(KVM, reason, False, silence, record)


def _obstacle(isa: Isa, device: Path) -> tuple[str, str]:
    """Return why this host's KVM cannot run a guest, and what to do; ("", "") if nothing is known
    that prevents it.
    """
    host = os.uname().machine
    if host not in isa.board.HOST_MACHINES:
        return f"KVM of this host ({host}) runs no {isa.name} guests", ""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        hint = "join the group kvm, or run kinst as root" if error.errno == errno.EACCES else ""
        return f"{device}: {error.strerror}", hint
    return "", ""
