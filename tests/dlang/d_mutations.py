"""Random byte strings and mutated programs, through the whole compiler.

Its answer must be a program or a DError, within 5 seconds of CPU time and without an allocation of
256 MiB.  To search for long, on all processors:

    python -m tests.dlang.d_mutations COUNT [SEED]
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import kinst
from kinst.api import ProgramText
from kinst.codegen.subroutines import prototypes
from kinst.core.errors import DError, KinstError
from kinst.dlang.api import Environment, Macros, compile_text
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.source import to_text
from kinst.dlang.syntax.unparse import unparse
from kinst.providers import interfaces
from kinst.systems import of_host
from tests import ROOT

LIMIT = 5.0  # seconds of CPU time that one text may take
GROWTH = 256 << 10  # KiB by which one text may raise the process's peak memory
ENVIRONMENT = Environment(
    {"R_RAX": 14, "R_RDI": 8, "R_RSI": 9, "R_RSP": 20},
    256,
    providers=interfaces(),
    dialect=of_host().dialect,
    subroutines=prototypes(),
)
MACROS = Macros(("k", "12", "name", "a b"), {"pid": 5, "target": 6}, defaultargs=True)
_TOKEN = re.compile(r'[A-Za-z_]\w*|\d\w*|"[^"\n]*"|\s+|.', re.S)
_KINDS = (
    (r"[A-Za-z_]", "name"),
    (r"\d", "number"),
    (r'"', "string"),
    (r"[-+*/%&|^<>=!]", "operator"),
)
_LETTERS = "(){}[]/*,;:@$\"'\\%#0x1a \n-+&|=<>!?.\x00\x7fé"
_LINE_ZERO = re.compile(r"#\s*(line\s*)?[0xXbBoO]*0")
# Programs of these probes need no kernel, so they can be compiled to the end.
_HERE = re.compile(r"(dtrace)?:{0,3}(BEGIN|END|ERROR)|(profile)?:{0,3}tick-\d+m?s")


@cache
def _kind(token: str) -> str:
    return next((kind for first, kind in _KINDS if re.match(first, token)), "")


def seeds() -> list[str]:
    """Return the programs to start from: of the conformance suite, the examples and the manual."""
    texts = []
    for path in sorted((ROOT / "tests" / "d").glob("*.cases")):
        for part in re.split(r"^== .*$", path.read_text(), flags=re.M)[1:]:
            texts.append(re.split(r"^-- ", part, maxsplit=1, flags=re.M)[0].strip())
    texts += [path.read_text() for path in sorted((ROOT / "examples").glob("*.d"))]
    texts += re.findall(r"^```d.*?\n(.*?)^```", (ROOT / "docs" / "d.md").read_text(), re.M | re.S)
    return [text[:1500] for text in texts if text]


@dataclass
class Mutator:
    """Makes mutations; `seed` determines everything random in them."""

    seed: int
    texts: list[str] = field(default_factory=seeds)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.tokens = [_TOKEN.findall(text) for text in self.texts]
        self.kinds: dict[str, list[str]] = {}
        for word in (word for words in self.tokens for word in words):
            self.kinds.setdefault(_kind(word), []).append(word)
        self.words = [word for words in self.tokens for word in words if word.strip()]

    def __iter__(self) -> Iterator[str]:
        while True:
            kind = self.chance.random()
            if kind < 0.1:
                yield to_text(self.chance.randbytes(self.chance.randrange(1, 80)))
            elif kind < 0.2:
                words = self.chance.choices(self.words, k=self.chance.randrange(1, 30))
                yield "BEGIN { " + " ".join(words) + " }"
            elif kind < 0.3:
                yield self.by_letters(self.chance.choice(self.texts))
            elif kind < 0.8:
                yield self.by_kind(self.chance.choice(self.tokens))
            else:
                yield self.by_tokens(self.chance.choice(self.tokens))

    def by_kind(self, tokens: list[str]) -> str:
        """Return tokens exchanged for others of their kind, so that most programs parse."""
        words = list(tokens)
        places = [n for n, word in enumerate(words) if _kind(word)]
        for at in self.chance.choices(places, k=self.chance.randint(1, 3)) if places else ():
            words[at] = self.chance.choice(self.kinds[_kind(words[at])])
        return "".join(words)

    def by_letters(self, text: str) -> str:
        letters = list(text)
        for _ in range(self.chance.randint(1, 4)):
            at = self.chance.randrange(len(letters) + 1)
            change = self.chance.randrange(4)
            if change == 0:
                del letters[at : at + self.chance.randint(1, 8)]
            elif change == 1:
                letters.insert(at, self.chance.choice(_LETTERS))
            elif change == 2 and at < len(letters):
                letters[at] = self.chance.choice(_LETTERS)
            else:
                other = self.chance.choice(self.texts)
                start = self.chance.randrange(len(other) + 1)
                letters[at:at] = other[start : start + self.chance.randint(1, 30)]
        return "".join(letters)

    def by_tokens(self, tokens: list[str]) -> str:
        words = list(tokens)
        for _ in range(self.chance.randint(1, 4)):
            at = self.chance.randrange(len(words) + 1)
            change = self.chance.randrange(5)
            if change == 0:
                del words[at : at + self.chance.randint(1, 3)]
            elif change == 1 and at < len(words):
                words[at] = self.chance.choice(self.words)
            elif change == 2:
                words.insert(at, self.chance.choice(self.words))
            elif change == 3:
                other = self.chance.choice(self.tokens)
                start = self.chance.randrange(len(other) + 1)
                words[at:at] = other[start : start + self.chance.randint(1, 12)]
            elif len(words) > 1:
                other_at = self.chance.randrange(len(words))
                at = min(at, len(words) - 1)
                words[at], words[other_at] = words[other_at], words[at]
        return "".join(words)


class TooLongError(Exception):
    """A text that took longer than LIMIT."""


def compiles(text: str) -> tree.ProgramNode | None:
    """Return the tree of a text that compiles, None for a DError; other exceptions are faults."""
    try:
        program, _ = compile_text(text, "t.d", MACROS, ENVIRONMENT)
    except DError as error:
        # A text with a line marker ("# 0", as cpp writes) has a line 0.
        assert error.span.line >= 1 or _LINE_ZERO.search(text)
        assert error.span.column >= 1
        assert error.tag.startswith("D_")
        assert "\n" not in error.message
        error.caret()
        return None
    unparse(program)
    return program


def needs_no_kernel(program: tree.ProgramNode) -> bool:
    clauses = [item for item in program.items if isinstance(item, tree.ClauseNode)]
    return all(_HERE.fullmatch(str(d.pattern)) for c in clauses for d in c.descriptions)


def compile_to_the_end(text: str) -> None:
    """Compile a program that needs no kernel down to machine code, as `kinst -e` does."""
    if "`" in text or "curthread" in text:
        return
    settings = {"errtags": None, "defaultargs": None}
    try:
        with kinst.host() as machine:
            program = machine.compile(ProgramText("s", text, "t.d"), settings, MACROS.arguments[1:])
            if program.descriptions:
                machine.build(program)
    except KinstError as error:
        assert "\n" not in error.message


def _alarm(number: int, frame: object) -> None:
    raise TooLongError


def try_one(text: str, whole: bool) -> str:
    """Return a traceback, or "" if nothing is wrong.

    Args:
        whole: compile down to machine code.
    """
    signal.signal(signal.SIGPROF, _alarm)
    before = _most_memory()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        program = compiles(text)
        if program and whole and needs_no_kernel(program):
            compile_to_the_end(text)
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = _most_memory() - before
    return f"{grown} KiB of memory\n" if grown > GROWTH else ""


def _most_memory() -> int:
    """Return the peak memory of this process, in KiB (getrusage(2), ru_maxrss)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def search(seed: int, count: int, every: int = 40) -> list[tuple[str, str]]:
    """Return (text, traceback) of faults in `count` texts.

    One in `every` texts that compile is compiled down to machine code.
    """
    wrong = []
    for number, text in zip(range(count), Mutator(seed), strict=False):
        found = try_one(text, number % every == 0)
        if found:
            wrong.append((text, found))
    return wrong


def _job(work: tuple[int, int]) -> tuple[int, list[tuple[str, str]]]:
    return work[1], search(*work)


def in_parallel(seed: int, count: int) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Search on all processors; yield (number of texts, faults in them), part by part."""
    processes = len(os.sched_getaffinity(0))
    step = min(2000, max(1, count // processes))
    jobs = [(seed + k, min(step, count - k * step)) for k in range(-(-count // step))]
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(_job, jobs)


def main() -> None:
    count = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    print(f"{count} texts, seed {seed}", flush=True)
    done, seen = 0, set()
    for texts, wrong in in_parallel(seed, count):
        done += texts
        for text, found in wrong:
            last = "".join(found.strip().splitlines()[-4:])
            if last not in seen:
                seen.add(last)
                print(f"--- {text!r}\n{found}", flush=True)
        print(f"{done} texts, {len(seen)} kinds of failure", flush=True)


if __name__ == "__main__":
    main()
