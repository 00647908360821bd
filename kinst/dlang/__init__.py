"""Rank 1: the D language: lexer, parser, syntax tree, built-ins table, checker, typed tree."""
