"""Rank 6: the commands; the only code that prints or exits."""
