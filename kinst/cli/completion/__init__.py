"""Completion of command lines: what may stand where the cursor is.

A shell's function (kinst.bash, _kinst) asks `kinst --complete` at each press of TAB, and has an
answer in a tenth of a second.  So `answer` and what it needs at once (`line`, `program`, `index`)
import the standard library alone, and little of it.  They read what `prepare` has kept in the cache
folder: the words of kinst, which are taken from the tables of options, commands and D, and an index
of each kernel that was used.  What is missing or out of date is made on the spot, once.
"""
