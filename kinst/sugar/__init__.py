"""Expansions of the syntax tree that replace descriptions of inline functions and source lines by
plain probe descriptions, and local variables by expressions over regs[] and memory.
"""
