"""Syntax of D: tokens, the syntax tree, and the parsers that make it."""
