"""A trace as the command follows it: every event to a renderer."""

from __future__ import annotations

import subprocess
from contextlib import closing

from kinst.events import End
from kinst.render import Destination, RendererFactory
from kinst.session.run import Trace


def follow_trace(
    make: RendererFactory, destination: Destination, trace: Trace, command: str
) -> int:
    """Trace until the end; the exit status.  Raises KinstError, when all is undone."""
    status = 0
    with closing(trace.events(command)) as events, closing(make(destination, trace.schema)) as out:
        for event in events:
            out.show(event)
            if isinstance(event, End):
                status = event.status
    return status


def run_shell(command: str, capture: bool) -> bytes:
    """system(): by the host's shell, to its end.  What it prints goes where kinst's output goes,
    or, with capture, is returned."""
    text = command.encode("utf-8", "surrogateescape")
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        check=False,
    )
    return done.stdout or b""
