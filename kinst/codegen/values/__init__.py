"""Lowering of expressions: what a value is made of."""
