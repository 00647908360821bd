"""The GDB remote protocol, QEMU's machine protocol, other processes and native calls (rank 1 of the
import order). Only this package uses sockets and ctypes."""
