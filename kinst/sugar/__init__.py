"""Expansions of the syntax tree: inline functions, source lines and local variables become plain
probes and expressions over regs[]."""
