"""The GDB remote protocol, QEMU's machine protocol, other processes and native calls. Only this
package uses sockets and ctypes. Rank 1: it imports only packages of rank 0 (docs/architecture.md).
"""
