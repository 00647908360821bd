"""Option -x fail: exit statuses of a trace during which the kernel warned, data was dropped or the
like.
"""

from __future__ import annotations

from collections import Counter

from kinst.core.endings import STATUS_OF
from kinst.events import End, Event, Fault, Lost, Message

_SEEN = {
    "hang": ("the kernel hung", "the kernel reported {} hangs"),
    "oops": ("the kernel oopsed", "the kernel printed {} lines of oopses"),
    "warn": ("the kernel warned", "the kernel warned {} times"),
    "errors": ("an action failed", "{} actions failed"),
    "drops": ("data was dropped", "data was dropped {} times"),
}


class FailOption:
    """Watcher of a trace's events for the problems that -x fail names."""

    def __init__(self, fail: str) -> None:
        """Begin to watch.

        Args:
            fail: the value of -x fail, words with commas between them (vocabulary/d_options.py).
        """
        self._wanted = [word for word in fail.split(",") if word]
        self._seen: Counter[str] = Counter()

    def see(self, event: Event) -> None:
        match event:
            case Lost():
                self._seen["drops"] += 1
            case Fault():
                self._seen["errors"] += 1
            case Message() if event.kind:
                self._seen[event.kind] += 1

    def verdict(self, end: End) -> tuple[int, str]:
        """Return the exit status of a trace, and the sentence that explains it.

        The sentence is "" if the status is that of the trace itself: none of the problems occurred,
        or the trace ended with an error or with the end of the guest.
        """
        found = next((word for word in self._wanted if self._seen[word]), "")
        if not found or end.error:
            return end.status, ""
        once, often = _SEEN[found]
        count = self._seen[found]
        said = once if count == 1 else often.format(count)
        return STATUS_OF[found], f"kinst: exit status {STATUS_OF[found]}: {said} (fail={found})"
