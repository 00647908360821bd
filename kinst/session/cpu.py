"""-x cpu=N: what happens on one CPU only (Dynamic Tracing Guide, "Options and Tunables").

dtrace(1) gives the other CPUs no buffer, so that clauses do not even begin there.  Here the probes
of the traced kernel get a condition (session/conditions.py); BEGIN, END, ERROR and tick-N run on
none of its CPUs, and always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinst.core.errors import KinstError
from kinst.session.probes import Enabled


def check_cpu(cpu: int, cpus: int) -> None:
    """Raises KinstError for a CPU that the traced machine has not; cpu: -1 for all."""
    if cpu >= cpus:
        message = f"could not enable tracing: there is no CPU {cpu}"
        raise KinstError(message, f"the traced machine has {cpus}, 0 to {cpus - 1}")


def on_one_cpu(enabled: Sequence[Enabled], cpu: int) -> tuple[Enabled, ...]:
    """The probes, with those of the traced kernel limited to one CPU; cpu: -1 for all."""
    if cpu < 0:
        return tuple(enabled)
    return tuple(_limited(one, f"cpu == {cpu}") if _on_a_cpu(one) else one for one in enabled)


def _on_a_cpu(enabled: Enabled) -> bool:
    """Whether it fires on CPUs of the traced kernel: an instruction, or profile-N."""
    return enabled.probe.site is not None or (enabled.timer is not None and enabled.timer.each_cpu)


def _limited(enabled: Enabled, condition: str) -> Enabled:
    own = f" && ({enabled.condition})" if enabled.condition else ""
    return replace(enabled, condition=condition + own)
