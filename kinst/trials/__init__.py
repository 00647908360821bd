"""Tries: runs of a command in guests. In each try, kinst makes another call in the kernel fail
(`kinst inject`), or delays the kernel at another instruction (`kinst race`).

A sweep is a D program in which each try has a number. A shell script in the guest runs the command
for each number. Before that, it tells the D program the number by a system call. So kinst plants
the probes once for many tries.
"""
