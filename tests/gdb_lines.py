"""A script that gdb runs: print as JSON where gdb puts breakpoints on source lines.

LINES_WANTED has FILE:LINE words.  For each, the script prints [address, name and start of the
innermost function at the address, whether it is inlined].
"""

import json
import os

import gdb


def function_at(pc):
    block = gdb.block_for_pc(pc)
    while block is not None and block.function is None:
        block = block.superblock
    return None if block is None else [block.function.name, block.start, block.end]


found = {}
for where in os.environ["LINES_WANTED"].split():
    try:
        places = gdb.decode_line(where)[1] or ()
    except gdb.error:
        places = ()
    name, _, line = where.rpartition(":")
    exact = [one for one in places if one.line == int(line)]
    found[where] = [[one.pc, function_at(one.pc)] for one in exact]
print("LINES " + json.dumps(found))
