"""What completion reads: made of the tables that kinst itself goes by, kept in the cache folder.

This is all of kinst, and takes a second or two; see kinst.cli.completion.

Tested by tests/cli/test_completion.py and tests/fuzz/test_caches.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from kinst.api import DUMP_STAGES, Request, kernel_names, vocabulary
from kinst.cli.commands import command, commands
from kinst.cli.completion.index import FORMAT
from kinst.cli.completion.places import ASKED, names_of, names_stamp
from kinst.cli.options import HELP, LONG, REFUSED, SHELLS, SHORT, STRICTNESS
from kinst.core.whole_files import write_whole
from kinst.errors import KinstError

# In a help text: two spaces, the options with what they take, two spaces or more, what they do.
_HELPED = re.compile(r"^ {2,6}(-[^ ].*?)(?: {2,}(\S.*))?$", re.MULTILINE)
_SPELLED = re.compile(
    r"(--?[A-Za-z][a-z-]*)(?:\[?[= ]?([A-Z]+[A-Za-z|.=\[\]]*|[a-z](?:\|[a-z])+)\]?)?"
)

Option = dict[str, Any]


def _helped(text: str) -> Iterator[Option]:
    """The options of a help text, one a row: name, takes (what, "" for nothing), help."""
    for spelled, what in _HELPED.findall(text):
        for part in spelled.split(", "):
            found = _SPELLED.fullmatch(part.strip())
            if found:
                name, takes = found.groups()
                yield {"name": name, "takes": takes or "", "help": what}


def options() -> list[Option]:
    """All that kinst takes; those with help as its help has them."""
    rows = [one for one in _helped(HELP) if one["name"] not in REFUSED]
    there = {one["name"] for one in rows}
    letters = re.findall(r"(\w)(:?)", SHORT)
    known = [(f"-{letter}", bool(colon)) for letter, colon in letters]
    known += [(f"--{name.rstrip('=')}", name.endswith("=")) for name in LONG]
    takes = dict(known)
    for one in rows:
        if takes.get(one["name"]) and not one["takes"]:
            one["takes"] = "VALUE"
    more = [n for n, _ in known if n not in there and n not in REFUSED]
    rows += [{"name": n, "takes": "VALUE" if takes[n] else "", "help": ""} for n in more]
    return rows


def _about(name: str) -> str:
    """What a command is for: the first line of its module."""
    said = (command(name).__doc__ or "").partition("\n")[0]
    return said.partition(": ")[2].rstrip(".")


def words() -> dict[str, Any]:
    """Everything that is the same for every kernel."""
    known = vocabulary()
    return {
        "options": options(),
        "commands": {
            name: {"help": _about(name), "options": list(_helped(command(name).HELP))}
            for name in commands()
        },
        "d_options": known.options,
        "words": known.words,
        "providers": known.providers,
        "of_kernel": known.of_kernel,
        "by_offset": known.by_offset,
        "probes": known.probes,
        "values": {"--dump": DUMP_STAGES, "-X": STRICTNESS, "--completion": SHELLS},
    }


def save_words(path: Path, stamp: object) -> dict[str, Any]:
    """Make the words, and keep them where that is possible."""
    made = {"stamp": stamp, **words()}
    text = json.dumps(made, separators=(",", ":")).encode()
    write_whole(path, (b"%08x" % crc32(text), text))
    return made


def save_names(path: Path, isa: str, release: str, file: str) -> bool:
    """Make the index of a kernel, and whether there is one; see places.names_of()."""
    try:
        found = kernel_names(Request(vm="" if file else isa, release=release, debug=file))
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
    """Write an index (completion.index), where that is possible."""
    text = "".join(f"{row}\n" for row in rows).encode()
    known = {"format": FORMAT, **about, "sum": crc32(text)}
    head = json.dumps(known, separators=(",", ":")).encode()
    write_whole(path, (b"%08x" % crc32(head), head, b"\n", text))


def prepare_names(request: Request) -> None:
    """The index of a kernel that was used, where there is none yet: the next TAB needs not wait."""
    given = {f"--{name}": getattr(request, name, "") for name in ASKED}
    given["--kernel"] = request.release or request.kernel
    path, made_of = names_of({name: value for name, value in given.items() if value})
    if not path.exists():
        save_names(path, *made_of)
