"""Run by gdb itself: where it would put breakpoints on source lines, a line of JSON.

LINES_WANTED has FILE:LINE words.  For each: [address, name and start of the innermost function,
inlined or not, that holds it].
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
