"""Mutation testing: do the tests of a folder notice a small change of its code?"""
