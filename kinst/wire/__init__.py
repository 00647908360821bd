"""Rank 1: the GDB remote protocol, QEMU's machine protocol, other processes and native calls; the
only user of sockets and ctypes."""
