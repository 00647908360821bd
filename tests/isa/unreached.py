"""Finds instructions of displaced code that control cannot reach."""

from __future__ import annotations

from kinst.core.isa import Isa


def unreached(isa: Isa, code: bytes, at: int) -> list[str]:
    """Return the unreached instructions of code that is entered at its start."""
    known = {one.address: one for one in isa.decode(code, at)}
    assert sum(one.size for one in known.values()) == len(code)
    found, open_ = set[int](), [at]
    while open_:
        here = open_.pop()
        if here in found or here not in known:
            continue
        found.add(here)
        flow = isa.flow(known[here].code, here)
        if flow.falls_through:
            open_.append(known[here].end)
        if flow.target is not None:
            open_.append(flow.target)
    return [one.text for address, one in known.items() if address not in found]
