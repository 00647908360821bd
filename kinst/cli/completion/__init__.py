"""Completion of command lines: what can be inserted at the cursor.

A shell's function (kinst.bash, _kinst) asks `kinst --complete` at each press of TAB, and has an
answer in a tenth of a second.  So `answer` and what it needs at once (`line`, `program`, `index`)
import little, and only from the standard library.  They read what `prepare` has saved in the cache
folder: the words of kinst, which come from the tables of options, commands and D, and an index of
each kernel that was used.  Missing and outdated files are made at once.
"""
