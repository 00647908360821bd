"""Number of CPUs of a guest, by QEMU's arguments, as in QEMU's own manual."""

from __future__ import annotations

import pytest

from kinst.machines.vm.cpus import CPUS, cpus_of


@pytest.mark.parametrize(
    ("arguments", "cpus"),
    [
        ("", CPUS),
        ("-smp 4", 4),
        ("-smp cpus=8,maxcpus=16", 16),
        ("-smp 3,sockets=1,cores=3,threads=1", 3),
        ("-smp sockets=2,cores=2,threads=2", 8),
        ("-smp 2 -m 4G -smp 1", 1),
        ("--smp 6", 6),
        ("-device smp -drive file=4", CPUS),
        ("-smp", CPUS),
        ("-smp maxcpus=4", 4),
    ],
)
def test_cpus_by_arguments(arguments: str, cpus: int) -> None:
    assert cpus_of(arguments.split()) == cpus
