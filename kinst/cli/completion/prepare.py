"""Makers of the files that completion reads: the words of kinst and D, and the index of a kernel's
names, saved in the cache folder.

This module loads all of kinst and takes a second or two. So completion imports it only if a file is
missing or outdated.

Tested by tests/cli/test_completion.py and tests/fuzz/test_caches.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from kinst.api import MachineOptions, Option, Request, kernel_names, vocabulary
from kinst.cli.commands import command, commands
from kinst.cli.completion.index import FORMAT
from kinst.cli.completion.places import names_of, names_stamp
from kinst.cli.options import options
from kinst.core.whole_files import write_whole
from kinst.errors import KinstError


def described(options: Iterable[Option]) -> list[dict[str, Any]]:
    """Return options as objects for completion, without those that kinst refuses. An object has the
    members name, takes (name of the value, "" for an option without a value), help, and optional
    (whether the value may be left out)."""
    return [
        {"name": o.name, "takes": o.value, "help": o.help, "optional": o.optional}
        for o in options
        if not o.refused
    ]


def _about(name: str) -> str:
    """Return what a command is for: the text after the colon in the first line of its module's
    docstring."""
    said = (command(name).__doc__ or "").partition("\n")[0]
    return said.partition(": ")[2].rstrip(".")


def words() -> dict[str, Any]:
    """Return the words of kinst and D, which do not depend on the kernel."""
    of_d, table = vocabulary(), options()
    return {
        "options": described(table.values()),
        "commands": {
            name: {"help": _about(name), "options": described(command(name).OPTIONS)}
            for name in commands()
        },
        "d_options": of_d.options,
        "words": of_d.words,
        "providers": of_d.providers,
        "of_kernel": of_d.of_kernel,
        "by_offset": of_d.by_offset,
        "probes": of_d.probes,
        "values": {o.name: o.words for o in table.values() if o.words},
    }


def save_words(path: Path, stamp: object) -> dict[str, Any]:
    """Make the words, save them if the cache folder can be written, and return them.

    Args:
        path: file for the words.
        stamp: result of words_stamp().
    """
    made = {"stamp": stamp, **words()}
    text = json.dumps(made, separators=(",", ":")).encode()
    write_whole(path, (b"%08x" % crc32(text), text))
    return made


def save_names(path: Path, isa: str, release: str, file: str) -> bool:
    """Make the index of a kernel's names. Return whether it was made: False if the kernel's files
    are not on this host.

    Args:
        path: file for the index.
        isa: name of the instruction set; "" for amd64.
        release: release of the Debian kernel (--kernel); "" for the kernel that kinst takes without
            --kernel.
        file: path of the kernel's file if the user gave one; "" for a Debian kernel.
    """
    machine = MachineOptions(isa="" if file else isa, release=release, debug=file)
    try:
        found = kernel_names(Request(machine))
    except KinstError:
        return False
    if found is None:
        return False
    about = {
        "isa": found.isa, "debug": str(found.debug),
        "stamp": names_stamp(found.debug, found.isa, found.inlined), "inlined": found.inlined,
        "disassembly": dict(found.disassembly),
        "registers": found.registers, "modules": found.modules,
    }  # fmt: skip
    rows = []
    for one in found.functions:
        kind = "i" if not one.size else "b" if one.inlined else "f"
        rows.append(f"{one.name}\t{kind}\t{one.offset}\t{one.size}\t{one.address:x}")
    write_names(path, about, rows)
    return True


def write_names(path: Path, about: dict[str, Any], rows: Sequence[str]) -> None:
    """Write an index (format: kinst.cli.completion.index), if the cache folder can be written.

    Args:
        path: file for the index.
        about: JSON about the kernel.
        rows: lines of the functions, sorted.
    """
    text = "".join(f"{row}\n" for row in rows).encode()
    known = {"format": FORMAT, **about, "sum": crc32(text)}
    head = json.dumps(known, separators=(",", ":")).encode()
    write_whole(path, (b"%08x" % crc32(head), head, b"\n", text))


def prepare_names(request: Request) -> None:
    """Make the index of a kernel's names if it is missing, so that the next TAB need not wait.

    Args:
        request: a request that has just used the kernel.
    """
    machine = request.machine
    given = {
        request.kind.option.name: machine.isa or machine.address,
        "--kernel": machine.release or machine.kernel,
        "--debug": machine.debug,
        "--build": machine.build,
    }
    path, made_of = names_of({name: value for name, value in given.items() if value})
    if not path.exists():
        save_names(path, *made_of)
