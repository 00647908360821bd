"""A guest that has a /dev/kvm and this machine's files, kept open for many checks.

This host need have no KVM: the guest's emulated processor has SVM, AMD's virtualization.
kvm_in_guest.py runs there, and makes the checks that it is asked for by files of a shared folder.
Opening takes a minute, so experiments share a guest too:

    python -m tests.vm.kvm.rig FOLDER                  open one, until FOLDER/end exists
    python -m tests.vm.kvm.rig FOLDER CHECK ARGUMENT.. make a check in it, and print its result
    python -m tests.vm.kvm.rig FOLDER shell COMMAND    the same for a command of the shell
    KINST_TEST_RIG=FOLDER pytest ...                   make the tests in it

Make one check at a time: on a busy host, two checks at the same time have not ended in 20 minutes.

Once in some dozens of openings the guest with the emulated SVM freezes: no process of it runs any
more.  kvm_in_guest.py shows by the file "alive" that it runs.  Checks of a frozen guest are made
again in a new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinst.kernels.fetch import prepared
from tests import ROOT
from tests.vm.command import Running
from tools.kernel_headers import module_for
from tools.live_guest import set_up

# A processor with SVM on which a guest is fastest; "max" has more features, and takes longer.
PROCESSOR = "EPYC,+svm,+npt"
MODULE = Path(__file__).with_name("rig_module")
PROGRAMS = ROOT / "tests/programs"
SECONDS = 3600.0  # a check's, unless it says otherwise
# Without a change of the file "alive"; a busy host has not kept it as it is for more than some
# seconds.
FROZEN_SECONDS = 120.0
OPENINGS = 3  # of guests for one check
OPEN_SECONDS = 400.0  # a minute on an idle host
CLOSE_SECONDS = 200.0
SHOW_SECONDS = 10.0  # until the log has the stacks
# Files of the shared folder.
READY, END, LOG, PREPARE, ALIVE = "ready", "end", "log", "prepare-live", "alive"
# ASKED and a check; its ANSWERED has the result; SHOW asks for the stacks of the check's process.
ASKED, ANSWERED, SHOW = ".asked", ".answered", ".show"
KEPT = ("KINST_TEST_KILLS", "KINST_TEST_SEED", "KINST_TRACEBACK")


class FrozenError(Exception):
    """The guest runs no process any more."""


class OpenRig:
    """A guest that is open."""

    def __init__(self, folder: Path) -> None:
        """Use the guest of a shared folder, which another process has started."""
        self.folder = folder

    def check(self, *words: str, seconds: float = SECONDS) -> Any:
        """Make a check of kvm_in_guest.py, and return its result.

        Args:
            words: the check's name and its arguments.
            seconds: after which the check has failed; the guest's log then has the stacks of all
                threads of its process.

        Raises FrozenError.
        """
        answer = ask(self.folder, *words)
        self._wait_for(answer, seconds)
        result, taken = json.loads(answer.read_text())
        print(*words, result, f"{taken} s, load {os.getloadavg()}", sep="\n")
        assert not isinstance(result, str), f"{result}\n{self.log()}"
        return result

    def log(self) -> str:
        """Return what processes in the guest have printed."""
        return (self.folder / LOG).read_text(errors="replace")

    def _wait_for(self, answer: Path, seconds: float) -> None:
        """Wait until a file exists; raise FrozenError if the guest runs no process meanwhile."""
        late = time.monotonic() + seconds
        seen, frozen = 0, 0.0
        while not answer.exists():
            now = time.monotonic()
            if (alive := (self.folder / ALIVE).stat().st_mtime_ns) != seen:
                seen, frozen = alive, now + FROZEN_SECONDS
            if now > frozen:
                raise FrozenError(f"the guest with SVM has run nothing for {FROZEN_SECONDS:g} s")
            if now > late:
                answer.with_suffix(SHOW).touch()
                time.sleep(SHOW_SECONDS)
                raise AssertionError(f"no answer in {seconds:g} s\n{self.log()}")
            time.sleep(0.1)


class Rig(OpenRig):
    """A guest that this process starts."""

    def __init__(self, folder: Path) -> None:
        """Start the guest, without waiting for it.

        Args:
            folder: an empty folder, which is shared with the guest.
        """
        super().__init__(folder)
        kernel = prepared("amd64")
        assert kernel is not None, "no kernel is there to test with: run `make setup`"
        (module,) = module_for("amd64", kernel.release, MODULE, folder / "module")
        reads = folder / "reads"
        flags = ("-O2", "-static", "-o", str(reads))
        subprocess.run(["gcc", *flags, str(PROGRAMS / "reads.c")], check=True)
        (folder / PREPARE).write_text(set_up(kernel.release)[0])
        environment = f"PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1 PATH={os.environ['PATH']}"
        for name in KEPT:
            environment += f" {name}={os.environ[name]}" if name in os.environ else ""
        words = f"{sys.executable} -m tests.vm.kvm.kvm_in_guest '{module}' '{reads}' '{folder}'"
        script = f"cd {ROOT}\nexport {environment}\nexec {words} >'{folder}/{LOG}' 2>&1\n"
        (folder / "run").write_text(script)
        self._kinst = Running(
            "--root", "/", "--rw", str(folder), "--memory", "5g", "--module", "kvm_amd",
            "--accel", "tcg", "--append", "mitigations=off",
            "--qemu-arg", "-cpu", "--qemu-arg", PROCESSOR,
            "-qn", "END { }", "-c", f"sh {folder}/run",
        )  # fmt: skip

    def wait_open(self) -> None:
        """Wait until the guest takes checks; raise FrozenError if it does not come that far."""
        late = time.monotonic() + OPEN_SECONDS
        self._kinst.until(lambda _: self._is_ready or time.monotonic() > late, 2 * OPEN_SECONDS)
        if not self._is_ready:
            raise FrozenError(f"the guest with SVM has not opened in {OPEN_SECONDS:g} s")

    @property
    def _is_ready(self) -> bool:
        return (self.folder / READY).exists()

    def close(self) -> None:
        """End the guest; it may freeze even now."""
        (self.folder / END).touch()
        try:
            self._kinst.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"the guest with SVM has not ended in {CLOSE_SECONDS:g} s")
            self._kinst.stop()
        print(self._kinst.result())

    def kill(self) -> None:
        """End a guest that may be frozen."""
        self._kinst.stop()
        print(self._kinst.result())


class LastingRig:
    """A guest that is replaced by a new one when it freezes."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        """Start the first guest, and wait until it takes checks.

        Args:
            new_folder: makes a folder for each guest.
        """
        self._new_folder = new_folder
        self._open()

    def _open(self) -> None:
        """Open one of up to OPENINGS guests."""
        for opening in range(1, OPENINGS + 1):
            self._rig = Rig(self._new_folder())
            try:
                self._rig.wait_open()
                return
            except BaseException as error:
                self._rig.kill()
                if not isinstance(error, FrozenError) or opening == OPENINGS:
                    raise
                print(f"{error}: once more in a new one")

    def check(self, *words: str, seconds: float = SECONDS) -> Any:
        """Do what OpenRig.check() does, in up to OPENINGS guests as long as they freeze."""
        for _ in range(1, OPENINGS):
            try:
                return self._rig.check(*words, seconds=seconds)
            except FrozenError as frozen:
                print(f"{frozen}: once more in a new one")
                self._rig.kill()
                self._open()
        return self._rig.check(*words, seconds=seconds)

    def close(self) -> None:
        self._rig.close()


AnyRig = OpenRig | LastingRig


def ask(folder: Path, *words: str) -> Path:
    """Ask the guest of a folder for a check, and return the file that will have the answer."""
    asked = folder / f"{time.time():.6f}-{uuid.uuid4().hex}{ASKED}"
    partial = asked.with_suffix(".partial")
    partial.write_text(json.dumps(words))
    partial.rename(asked)
    return asked.with_suffix(ANSWERED)


def main() -> None:
    folder, words = Path(sys.argv[1]).absolute(), sys.argv[2:]
    if words:
        OpenRig(folder).check(*words)
        return
    folder.mkdir(parents=True)
    rig = Rig(folder)
    rig.wait_open()
    while not (folder / END).exists():
        time.sleep(0.5)
    rig.close()


if __name__ == "__main__":
    main()
