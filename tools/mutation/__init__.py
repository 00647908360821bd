"""Mutation testing: it shows whether the tests of a folder fail after a small change of the
folder's code."""
