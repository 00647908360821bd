"""Everything that can happen to kinst's module, at random, for a given time.

Runs as root in a guest (live_in_guest.py), best in one whose kernel checks itself
(checked_kernel.config).  In a round a process (live_replay.py) plants and unplants a recorded
trace again and again, and one thing happens to it, drawn by a seed.  After each round the kernel's
text is compared with the original.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kinst.errors import KinstError
from kinst.machines.live.device import Device
from kinst.machines.live.set_up import load
from kinst.wire.kernel_module import load_module, unload_module
from tests.vm.live.live_replay import Kcore, Recorded, replayed
from tests.vm.live.other_probes import FunctionTracer, KprobeEvent

TRACED_AGAIN = 20  # rounds until kinst itself traces again


class Soak:
    """A soak test of the module.

    Attributes:
        record: traces with kinst, which is closed afterwards, and returns its requests to the
            module.
        module: another module to load and unload, if there is one.
        requests: live_requests.c, compiled.
    """

    def __init__(
        self, record: Callable[[], Recorded], kcore: Kcore, requests: str, module: str, seed: int
    ) -> None:
        self._chance = random.Random(seed)
        self._record = record
        self._requests = requests
        self._module = module
        self._kcore = kcore
        self._what = record()
        self._places = [site.address for site in self._what.sites]
        self._pages = kcore.pages(self._places)
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        ways = [
            self.kill, self.want_of_memory, self.silence, self.malformed, self.reload,
            self.kprobe, self.function_tracer,
        ]  # fmt: skip
        if self._module:
            ways.append(self.other_module)
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            way = self.traced if number % TRACED_AGAIN == 0 else self._chance.choice(ways)
            try:
                way()
            except (KinstError, OSError, AssertionError) as error:
                self.wrong.append(f"round {number}: {way.__name__}: {error!r}")
            self.done[way.__name__] += 1
            print(f"{number} {way.__name__}", file=sys.stderr, flush=True)
            self._wait_until_unstuck()
            if self._kcore.pages(self._places) != self._pages:
                self.wrong.append(f"round {number}: {way.__name__}")

    def _wait_until_unstuck(self) -> None:
        """Wait until the device can be opened again.

        Bytes that a kprobe covered are restored a second or two after the kprobe's end.
        """
        for _ in range(20):
            try:
                device = Device()
            except KinstError:
                time.sleep(0.5)
            else:
                device.close()
                return

    def _pause(self, most: float = 2.0) -> None:
        time.sleep(self._chance.uniform(0.0, most))

    def kill(self) -> None:
        with replayed(self._what):
            self._pause()
            with suppress(OSError):
                unload_module("kinst")
                self.wrong.append("it was taken out while it was used")

    def want_of_memory(self) -> None:
        with replayed(self._what) as child:
            self._pause()
            Path(f"/proc/{child}/oom_score_adj").write_text("1000")
            Path("/proc/sysrq-trigger").write_text("f")
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

    def silence(self) -> None:
        with replayed(self._what, 1, 0.3) as child:
            self._pause()
            os.kill(child, signal.SIGSTOP)
            for _ in range(30):
                time.sleep(1.0)
                if self._kcore.pages(self._places) == self._pages:
                    return
            self.wrong.append("nothing was taken out of a process that stands still")

    def malformed(self) -> None:
        asked = [self._requests, "1000", str(self._chance.randrange(1 << 30))]
        said = subprocess.run(asked, capture_output=True, text=True, check=True)
        if int(said.stdout.split()[1]):
            self.wrong.append(f"accepted: {' '.join(asked)}")

    def reload(self) -> None:
        self._unloaded("kinst")
        load()
        device = Device()
        address, view = device.map_scratch(self._what.size)
        del view
        device.close()
        if address != self._what.address:
            self.traced()

    def traced(self) -> None:
        self._what = self._record()

    def other_module(self) -> None:
        with replayed(self._what):
            for _ in range(3):
                load_module(Path(self._module))
                self._pause(0.3)
                if Path("/sys/kernel/livepatch/patched").exists():
                    self._livepatch_off()
                self._unloaded("patched")

    def _livepatch_off(self) -> None:
        state = Path("/sys/kernel/livepatch/patched")
        with suppress(OSError):
            (state / "enabled").write_text("0\n")
        for _ in range(100):
            if not state.exists():
                return
            time.sleep(0.2)

    def _unloaded(self, name: str) -> None:
        for _ in range(100):
            try:
                unload_module(name)
            except OSError:
                time.sleep(0.1)
            else:
                return
        self.wrong.append(f"{name} is not to be taken out")

    def kprobe(self) -> None:
        self._beside(KprobeEvent("vfs_read"))

    def function_tracer(self) -> None:
        self._beside(FunctionTracer("vfs_read"))

    def _beside(self, other: KprobeEvent | FunctionTracer) -> None:
        """Attach another probe before a trace is planted, or while it is.

        The kernel may refuse it where kinst is, and kinst where the probe is.
        """
        for _ in range(3):
            first = self._chance.random() < 0.5
            if first:
                other.on()
            with replayed(self._what):
                self._pause(0.3)
                with suppress(OSError):
                    if not first:
                        other.on()
                self._pause(0.3)
                with suppress(OSError):
                    other.off()
                self._pause(0.3)
