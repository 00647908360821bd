"""Checker that converts the syntax tree of a D program to its typed tree: names, types, actions."""
