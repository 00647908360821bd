"""How the work of one site is divided: what is done in line, and what needs a frame and a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kinst.core.isa import Body, CallBody, CountBody, IndexedBody, RecordBody, Snippet


@dataclass(frozen=True, slots=True)
class SiteWork:
    """inline: counting that needs no frame, done first.  Then either `frame`, calls and counting
    inside one frame, always; or `asked`, calls of which all are made, in one frame, where the
    guard of any of them holds; or `indexed`, where its own call is made when no counter is found;
    or `recorded`, where its own call is made when it cannot write its record.
    """

    inline: tuple[CountBody, ...] = ()
    frame: tuple[CallBody | CountBody, ...] = ()
    asked: tuple[CallBody, ...] = ()
    indexed: IndexedBody | None = None
    recorded: RecordBody | None = None

    @property
    def snippets(self) -> tuple[Snippet, ...]:
        """Every snippet that is run, in their order."""
        counts = [body.guard for body in self.inline if body.guard is not None]
        found = [*counts, *self.guards]
        if self.indexed is not None:
            found += [] if self.indexed.guard is None else [self.indexed.guard]
            found.append(self.indexed.index)
        if self.recorded is not None and self.recorded.guard is not None:
            found.append(self.recorded.guard)
        return tuple(found)

    @property
    def guards(self) -> tuple[Snippet, ...]:
        """Of the calls that are asked for."""
        return tuple(body.guard for body in self.asked if body.guard is not None)

    @property
    def calls(self) -> tuple[CallBody | CountBody, ...]:
        """What is done inside the frame, if there is one."""
        with_another_way = self.indexed or self.recorded
        return (
            self.frame or self.asked or ((with_another_way.otherwise,) if with_another_way else ())
        )


def divided(bodies: Sequence[Body]) -> SiteWork:
    """The work of a site's bodies.

    The order of several probes' counting and calls is kept only among the calls, and where
    everything is inside a frame: nothing that a call does can be seen in a counter, nor the other
    way round.  Only one call at a site can be the way out of an IndexedBody or a RecordBody, since
    the others would have to know whether it was taken; with others, it is a call like them.
    """
    lone = [body for body in bodies if not isinstance(body, CountBody)]
    if len(lone) == 1 and isinstance(lone[0], IndexedBody):
        return SiteWork(_counts(bodies), indexed=lone[0])
    if len(lone) == 1 and isinstance(lone[0], RecordBody):
        return SiteWork(_counts(bodies), recorded=lone[0])
    plain = [
        replace(body.otherwise, guard=body.guard)
        if isinstance(body, IndexedBody | RecordBody)
        else body
        for body in bodies
    ]
    calls = tuple(body for body in plain if isinstance(body, CallBody))
    if all(body.guard is not None for body in calls):
        return SiteWork(_counts(bodies), asked=calls)
    inline = tuple(body for body in _counts(bodies) if body.guard is not None)
    frame = tuple(body for body in plain if isinstance(body, CallBody) or body.guard is None)
    return SiteWork(inline, frame)


def _counts(bodies: Sequence[Body]) -> tuple[CountBody, ...]:
    return tuple(body for body in bodies if isinstance(body, CountBody) and body.offsets)
