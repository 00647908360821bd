"""The time of a guest is the time between QEMU's events RESUME and STOP."""

from __future__ import annotations

import json
import socket
import threading
import time

from kinst.machines.vm.run_clock import RunClock
from kinst.wire.qmp import OwnMonitor


def event(name: str, at: float) -> dict[str, object]:
    stamp = {"seconds": int(at), "microseconds": round(at % 1 * 1e6)}
    return {"event": name, "timestamp": stamp}


def monitor(events: list[dict[str, object]]) -> OwnMonitor:
    """Return a monitor that answers two commands, and sends the events before its second answer."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, theirs.makefile("rwb", buffering=0) as file:
            file.write(json.dumps({"QMP": {}}).encode() + b"\n")
            for before in ([], events):
                file.readline()
                for one in (*before, {"return": {}}):
                    file.write(json.dumps(one).encode() + b"\n")

    threading.Thread(target=serve, daemon=True).start()
    return OwnMonitor(ours)


def test_a_stopped_guest_has_run_between_its_events() -> None:
    """3 s, then 0.25 s; a guest that runs is resumed again by a step, which changes nothing."""
    events = [event("RESUME", 10.0), event("STOP", 13.0), event("POWERDOWN", 14.0),
              event("RESUME", 20.5), event("RESUME", 20.6), event("STOP", 20.75)]  # fmt: skip
    assert RunClock(monitor(events)).now() == 3_250_000_000


def test_a_guest_that_runs_has_run_since_it_was_resumed() -> None:
    began = time.time() - 5
    now = RunClock(monitor([event("RESUME", began)])).now()
    assert 5_000_000_000 - 2000 <= now < 65_000_000_000
