"""Tries of a command in guests, each with a different fault in the kernel: a call that
fails (`kinst inject`), or a delay at an instruction (`kinst race`).

A sweep is a D program in which each try has a number. A shell script in the guest runs the command
once for each number, and tells the D program the number by a system call. So kinst plants the
probes once for many tries.
"""
