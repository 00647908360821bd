"""Rank 1: the GDB remote protocol, QEMU's machine protocol, other processes and native calls. Only
this package uses sockets and ctypes."""
