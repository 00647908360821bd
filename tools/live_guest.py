"""A guest that has this machine's files, for kinst to run in (test_live.py, bench/live_cost.py)."""

from __future__ import annotations

# What numpy's packages need; and of a maker whose processors the kernel keeps no second page tables
# for, which would cost each system call a hundred times its time in a guest.
PROCESSOR = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"
# The kernel's headers are where a package would have put them; what it says is not lost.
SET_UP = """
ln -s {headers}/usr/src/linux-headers-* /usr/src/
ln -s {headers}/usr/lib/linux-kbuild-* /usr/lib/
mkdir -p /lib/modules
ln -sfn {headers}/lib/modules/$(uname -r) /lib/modules/$(uname -r)
mount -t securityfs none /sys/kernel/security
export XDG_CACHE_HOME={cache}
mkdir -p {cache}
"""
