"""A script that gdb runs: answer gdb_rig.py's questions about a stopped program in lines of JSON.

kinst's answers about variables are compared with gdb's, so this script uses nothing of kinst.
"""

import json
import os
import re
import socket

import gdb

MASK = (1 << 64) - 1
INTEGER = re.compile(r"\b(u?)int(8|16|32|64)_t\b")
WORDS = {"8": "char", "16": "short", "32": "int", "64": "long"}


def in_c(text):
    """Return a D expression over regs[] as gdb's own C."""
    text = re.sub(r"regs\[R_(\w+)\]", lambda m: f"((unsigned long)${m[1].lower()})", text)
    return INTEGER.sub(lambda m: f"{'unsigned' if m[1] else 'signed'} {WORDS[m[2]]}", text)


def evaluated(text):
    return int(gdb.parse_and_eval(in_c(text))) & MASK


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address & MASK, size))


def scopes(pc):
    """Yield the blocks that hold an instruction, innermost first, up to the function itself."""
    block = gdb.block_for_pc(pc)
    while block is not None and not block.is_global and not block.is_static:
        yield block
        block = block.superblock


def visible(pc):
    """Return the variables that can be named at an instruction: name -> symbol."""
    found = {}
    for block in scopes(pc):
        for symbol in block:
            if symbol.is_variable or symbol.is_argument:
                found.setdefault(symbol.name, symbol)
    return found


def bits_of(value, known):
    """Return the bits of a value that is not in memory, and which of them gdb knows."""
    kind = value.type.strip_typedefs()
    size = kind.sizeof
    if value.is_optimized_out and kind.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return 0, 0
    if kind.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        bits = mask = 0
        for field in kind.fields():
            if not hasattr(field, "bitpos"):
                continue
            try:
                one, own = bits_of(value[field], known)
            except gdb.error:
                continue
            width = field.bitsize or 8 * field.type.sizeof
            one, own = one & (1 << width) - 1, own & (1 << width) - 1
            bits |= (one & own) << field.bitpos
            mask |= own << field.bitpos
        return bits, mask
    if kind.code == gdb.TYPE_CODE_ARRAY:
        bits = mask = 0
        low, high = kind.range()
        step = 8 * kind.target().sizeof
        for at in range(low, high + 1):
            one, own = bits_of(value[at], known)
            bits |= one << (at - low) * step
            mask |= own << (at - low) * step
        return bits, mask
    whole = (1 << 8 * size) - 1
    return int(value) & whole, whole


def not_inline(frame):
    """Return the frame of the function that was called, of which this frame may be an inlined
    part.

    Both have the same registers.  But when gdb (13.1) evaluates a value at entry in an inlined
    frame, it takes the registers of the next frame for the caller's, and the next frame is the
    same function again: gdb's own backtrace prints order@entry=0 and, one frame further in,
    order=1050900352.
    """
    while frame.type() == gdb.INLINE_FRAME:
        frame = frame.older()
    return frame


def gdb_says(symbol, frame):
    """Return gdb's view of a variable: its size, its address in memory, its bits as hexadecimal."""
    try:
        value = symbol.value(frame) if symbol.needs_frame else symbol.value()
        size = value.type.strip_typedefs().sizeof
        answer = {"size": size, "type": str(value.type)}
        if value.is_optimized_out:
            return answer | {"none": "optimized out"}
        address = None if value.address is None else int(value.address) & MASK
        if address is not None:
            data = read(address, min(size, 256))
            bits, known = int.from_bytes(data, "little"), (1 << 8 * len(data)) - 1
        else:
            bits, known = bits_of(value, None)
            if not known:
                return answer | {"none": "optimized out"}
        return answer | {"address": address, "bits": f"{bits:x}", "known": f"{known:x}"}
    except (gdb.error, gdb.MemoryError, RuntimeError) as error:
        return {"none": str(error)}


def kinst_says(pieces, size):
    """Return the value by pieces of (kind, text, size) over regs[], in the form of gdb_says()."""
    bits = known = at = 0
    address = None
    try:
        for kind, text, length in pieces:
            length = length or size
            if kind:
                word = evaluated(text)
                if kind == "memory":
                    address = word if len(pieces) == 1 else None
                    length = length if len(pieces) > 1 else min(length, 256)
                    word = int.from_bytes(read(word, length), "little")
                mask = (1 << 8 * length) - 1
                bits |= (word & mask) << 8 * at
                known |= mask << 8 * at
            at += length
        told = {"address": address, "bits": f"{bits:x}", "known": f"{known:x}"}
        # Bits after the last piece are unknown; gdb shows zeros there.
        return told | {"covered": f"{(1 << 8 * at) - 1:x}"}
    except (gdb.error, gdb.MemoryError) as error:
        return {"none": str(error)}


class Server:
    def code(self, low, size):
        """Return live instructions and the names that are visible at each."""
        architecture = gdb.selected_inferior().architecture()
        found = []
        for one in architecture.disassemble(low, low + size - 1):
            pc = one["addr"]
            found.append((pc, sorted(visible(pc))))
        return found

    def run(self, wanted, marker, rounds):
        """Run until each instruction was reached, or the marker was reached `rounds` times.

        Args:
            wanted: [address, name, pieces or None] of each variable.

        Returns:
            The answer for each variable whose instruction was reached.
        """
        gdb.execute("set breakpoint always-inserted on")
        by_address = {}
        for address, name, pieces in wanted:
            by_address.setdefault(address, []).append((name, pieces))
        planted = {a: gdb.Breakpoint(f"*{a:#x}", internal=True) for a in by_address}
        mark = gdb.Breakpoint(marker, internal=True)
        for one in (*planted.values(), mark):
            one.silent = True
        answers = []
        while by_address and rounds:
            said = gdb.execute("continue", to_string=True)
            if not gdb.selected_thread():
                raise RuntimeError(f"nothing is left to trace: {said}")
            frame = not_inline(gdb.newest_frame())
            pc = frame.pc()
            if pc not in by_address:
                rounds -= 1
                continue
            symbols = visible(pc)
            for name, pieces in by_address.pop(pc):
                says = gdb_says(symbols[name], frame)
                own = None if pieces is None else kinst_says(pieces, says.get("size", 8))
                answers.append((pc, name, says, own))
            planted[pc].delete()
        for address in by_address:
            planted[address].delete()
        mark.delete()
        return answers


def serve():
    for line in ("pagination off", "confirm off", "print elements 4"):
        gdb.execute(f"set {line}")
    server = Server()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ["LOCALS_SOCKET"])
    stream = sock.makefile("rw")
    for line in stream:
        name, *arguments = json.loads(line)
        try:
            if name == "gdb":
                answer = gdb.execute(arguments[0], to_string=True)
            else:
                answer = getattr(server, name)(*arguments)
        except Exception as error:  # shown by the test
            answer = {"error": f"{type(error).__name__}: {error}"}
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


serve()
