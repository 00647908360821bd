"""Rank 1: the GDB remote protocol and system calls; the only user of sockets and ctypes."""
