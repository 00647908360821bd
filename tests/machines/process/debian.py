"""Commands of Debian's programs, with their input, for runs with every instruction counted.

    python -m tests.machines.process.debian [--callgrind] [NAME...]

prints a table of such runs; without NAME, of all programs that are installed.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import kinst
from tests import ROOT
from tests.machines.process.stepped import COUNT, unrandomized

GCC = "/usr/lib/gcc/x86_64-linux-gnu/12"
UUID = "01234567-89ab-cdef-0123-456789abcdef"
# Each command runs in a folder with the files of prepare().  {folder} is its path.
COMMANDS = {
    "ar": "ar rcD out.a source.o other.o",
    "as": "as -o out.o source.s",
    "awk": "mawk -f script.awk text",
    "b2sum": "b2sum text archive.tar",
    "bash": "bash script.sh",
    "bc": "bc -lq script.bc",
    "bzip2": "bzip2 -k text",
    "cc1": f"{GCC}/cc1 -quiet -O1 small.c -o out.s",
    "chromedriver": "chromedriver --version",
    "cmake": "cmake -P script.cmake",
    "cmp": "cmp -l text other",
    "ctags": "ctags-universal -R -f out.tags tree source.c",
    "curl": "curl -s -o out file://{folder}/text",
    "dash": "dash script.sh",
    "debugfs": "debugfs -R 'ls -l /' disk.img",
    "diff": "diff -u text other",
    "diff3": "diff3 text other text",
    "dpkg-deb": "dpkg-deb --root-owner-group --build package out.deb",
    "dpkg-query": "dpkg-query -W",
    "dwz": "dwz -o out program",
    "e2fsck": "e2fsck -f -n disk.img",
    "ed": "ed -s text",
    "factor": "factor 1000000007 18446744073709551557 340282366920938463463374607431768211297",
    "find": "find tree -size +1k -name *.md -newer source.c".replace("*", "\\*"),
    "gcc": "x86_64-linux-gnu-gcc-12 -c -O1 -o out.o small.c",
    "gdb": "gdb -nx -batch -ex 'info line main' -ex 'disassemble main' program",
    "git": "git -C repository log --stat -p",
    "grep": "grep -rnE '(instruction|kernel)s? [a-z]*ing' tree",
    "gzip": "gzip -k -n text",
    "hexdump": "hexdump -C program",
    "jq": "jq '[.[] | select(.even) | .square] | add' table.json",
    "ld": "x86_64-linux-gnu-ld.bfd -shared -o out.so other.o",
    "ld.gold": "x86_64-linux-gnu-ld.gold -shared -o out.so other.o",
    "less": "less text",
    "localedef": "localedef --no-archive -i de_DE -f ISO-8859-1 {folder}/out",
    "ls": "ls -R tree",
    "lz4": "lz4 -9 -q text text.lz4",
    "make": "make -f makefile all",
    "ninja": "ninja -f build.ninja",
    "node": "node --jitless -e 'let s = 0; for (let i = 0; i < 1e5; i++) s += i; console.log(s)'",
    "nm": "nm -C program",
    "objcopy": "objcopy --compress-debug-sections=zlib program out",
    "objdump": "objdump -d program",
    "od": "od -c text",
    "openssl": "openssl asn1parse -genstr UTF8:text -out out",
    "pahole": "pahole program",
    "patch": "patch -s -o out text change.diff",
    "perl": "perl script.pl",
    "ptx": "ptx source.c",
    "python3": "/usr/bin/python3.11 -S -E script.py",
    "pzstd": "pzstd -q -p 2 -k text",
    "qemu": "qemu-system-avr -machine help",
    "readelf": "readelf -aw program",
    "sdiff": "sdiff text other",
    "sed": "sed -E -f script.sed text",
    "sha256sum": "sha256sum text program",
    "sort": "sort -n numbers",
    "split": "split -l 500 text",
    "sqlite3": "sqlite3 data.db '.read queries.sql'",
    "strip": "strip -o out program",
    "ssh-keygen": "ssh-keygen -y -f key",
    "stat": "stat -c '%n %s' text other",
    "systemd-analyze": "systemd-analyze calendar --base-time=2026-01-01 --iterations=5 '*-*-1'",
    "tar": "tar -cf out.tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner tree",
    "tic": "tic -o {folder}/terminals terminals.ti",
    "troff": "troff -man -Tascii page.1",
    "unzip": "unzip -q archive.zip -d out",
    "vim": "vim.basic -es -n -i NONE -u NONE -S script.vim text",
    "wget": "wget --version",
    "xz": "xz -k -3 text",
    "zic": "zic -d {folder}/compiled zones",
    "zip": "zip -q -X -r out.zip tree",
    "zsh": "zsh -f script.sh",
    "zstd": "zstd -q -12 -k text",
}
CALLGRIND = "valgrind -q --tool=callgrind '--dump-before=*fork*'"
# Programs of more than 5 MB of code: minutes of planning each.
LARGE = ("cc1", "chromedriver", "cmake", "gdb", "node")
SCRIPTS = {
    "script.awk": """\
        { for (n = 1; n <= NF; n++) seen[tolower($n)]++ }
        END { for (word in seen) if (seen[word] > 50) total += seen[word] * length(word)
              print NR, total; printf "%.6f %s\\n", sqrt(total), substr("abcdef", 2, 3) }
        """,
    "script.bc": "scale=60\ns=0\nfor (n=1; n<2000; n++) s += 1/n^2\ns\n4*a(1)\nquit\n",
    "script.cmake": """\
        set(total 0)
        foreach(n RANGE 1 3000)
          math(EXPR total "${total} * 31 % 65521 + ${n}")
          string(REGEX REPLACE "1+" "x" text "${total}")
          list(APPEND all ${text})
        endforeach()
        list(LENGTH all size)
        message("${total} ${size}")
        """,
    "script.sh": """\
        total=0
        double() { echo $(($1 * 2)); }
        for n in 1 2 3 4 5 6 7 8 9 10; do
          total=$((total + $(double $n)))  # a child process each
          case $n in [13579]) odd="$odd $n";; esac
        done
        n=0
        while [ $n -lt 20000 ]; do n=$((n + 1)); total=$((total * 31 % 65521 + n)); done
        trap 'echo signal' USR1
        kill -USR1 $$
        (exit 7) || echo "child: $?"
        echo "$total$odd" | while read line; do echo "[$line]"; done
        cat text | sort | uniq -c | wc -l
        sleep 0.01 & wait
        exit 3
        """,
    "script.sed": "s/([a-z]+) ([a-z]+)/\\2 \\1/g\n/kernel/!d\ny/abc/ABC/\n",
    "script.vim": "%s/\\v(\\w+) (\\w+)/\\2 \\1/ge\nsort\nw! out\nqa!\n",
    "script.pl": """\
        my %seen; open my $file, '<', 'text' or die;
        while (<$file>) { $seen{lc $1}++ while /(\\w+)/g }
        my @most = sort { $seen{$b} <=> $seen{$a} || $a cmp $b } keys %seen;
        print "$_ $seen{$_}\\n" for @most[0 .. 9];
        my $text = join ',', map { sprintf '%x', $_ ** 2 } 1 .. 20000;
        $text =~ s/(\\d+)([a-f]+)/$2$1/g;
        print unpack('%32C*', $text), "\\n";
        eval { die { code => 5 } }; print $@->{code}, "\\n";
        exit 9;
        """,
    "script.py": """\
        import itertools, sys, threading
        def fail(n):
            if n % 7 == 0: raise ValueError(n)
            return n * n
        def walk(n): yield from (n,) if n == 0 else itertools.chain((n,), walk(n - 1))
        total = 0
        for n in range(60000):
            try: total += fail(n)
            except ValueError as error: total ^= error.args[0]
        words = sorted(open("text").read().split(), key=lambda word: (len(word), word))
        seen = {}
        for word in words: seen[word] = seen.get(word, 0) + 1
        found = []
        threads = [threading.Thread(target=lambda k=k: found.append(sum(range(k * 1000))))
                   for k in range(20)]
        for one in threads: one.start()
        for one in threads: one.join()
        print(total, words[-1], len(seen), sum(found), sum(walk(200)), 7 ** 4000 % 10 ** 30)
        sys.exit(4)
        """,
    "makefile": """\
        words := $(foreach a,1 2 3 4 5 6 7 8 9,$(foreach b,1 2 3 4 5 6 7 8 9,$(a)$(b)))
        all: $(words:%=out.%)
        \t@echo $(words)
        out.%:
        \t@echo $* > $@
        .PHONY: all
        """,
    "build.ninja": "rule copy\n  command = cp $in $out\n"
    + "".join(f"build out.{n}: copy source.c\n" for n in range(20)),
    "queries.sql": """\
        create table numbers(n integer primary key, square integer, name text);
        with recursive counter(n) as (select 1 union all select n + 1 from counter where n < 20000)
        insert into numbers select n, n * n, printf('%05x', n * 7919 % 65521) from counter;
        create index names on numbers(name);
        select name, count(*), max(square) from numbers group by substr(name, 1, 2)
          having count(*) > 80 order by 3 desc limit 5;
        select sum(a.n * b.n) from numbers a join numbers b on a.name = b.name where a.n < 5000;
        delete from numbers where n % 3 = 0; select count(*), avg(square) from numbers; vacuum;
        """,
    "terminals.ti": "small|a small terminal,\n\tam, cols#80, lines#24, bel=^G, clear=\\E[H,\n",
    "zones": "Zone Test/Here 1:00 - HERE 2000 Jan 1\n 2:00 - THERE\n",
    "small.c": """\
        struct pair { int first; double second; };
        static int power(int base, unsigned n) { return n ? base * power(base, n - 1) : 1; }
        int main(int count, char **words)
        {
            struct pair all[10];
            for (int n = 0; n < 10; n++)
                all[n] = (struct pair){power(n, 3), n / 2.0};
            switch (count) { case 1: return all[3].first; case 2: return (int)all[4].second; }
            return words[0][0];
        }
        """,
    "package/DEBIAN/control": """\
        Package: small
        Version: 1
        Architecture: all
        Maintainer: A Test <test@example.org>
        Description: a small package
        """,
}
VARIABLES = {
    "LC_ALL": "C", "TZ": "UTC", "TERM": "xterm", "PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0",
    "SOURCE_DATE_EPOCH": "1700000000", "E2FSPROGS_FAKE_TIME": "1700000000",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000", "GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_PAGER": "cat", "DEBUGINFOD_URLS": "",
}  # fmt: skip


def installed() -> list[str]:
    """Return the names of the commands whose programs this machine has."""
    return [name for name, words in COMMANDS.items() if shutil.which(words.split()[0])]


def prepare(folder: Path) -> None:
    """Make the files that the commands read."""
    folder.mkdir()
    draw = random.Random(3)
    pages = sorted((ROOT / "docs").glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    (folder / "text").write_text(text)
    (folder / "other").write_text(text.replace("kernel", "program"))
    (folder / "page.1").write_bytes((ROOT / "docs" / "kinst.1").read_bytes())
    (folder / "numbers").write_text("".join(f"{draw.randrange(10**9)}\n" for _ in range(100_000)))
    rows = [{"n": n, "even": n % 2 == 0, "square": n * n} for n in range(20_000)]
    (folder / "table.json").write_text(json.dumps(rows))
    for name, script in SCRIPTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(script))
    os.chmod(folder / "package" / "DEBIAN", 0o755)
    programs = ROOT / "tests" / "programs"
    shutil.copy(programs / "variety.c", folder / "source.c")
    shutil.copytree(ROOT / "docs", folder / "tree")
    with tarfile.open(folder / "archive.tar", "w") as archive:
        archive.add(folder / "tree", "tree")
    (folder / "text.gz.in").write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "text.bz2.in").write_bytes(bz2.compress(text.encode()))
    shutil.make_archive(str(folder / "archive"), "zip", folder / "tree")
    lines = [
        "gcc -O1 -S -o source.s source.c",
        "gcc -O1 -c -o source.o source.c",
        f"gcc -O1 -fPIC -c -o other.o {programs / 'shapes.c'}",
        f"g++ -O1 -g -o program {programs / 'thrown.cc'}",
        f"mke2fs -q -F -t ext2 -U {UUID} -d tree disk.img 8M",
        "ssh-keygen -q -t ed25519 -N '' -f key",
        "diff -u text other > change.diff || true",
        "git init -q repository && cd repository && for n in 1 2 3; do"
        " head -n ${n}000 ../text > text && git add text && git commit -q -m $n; done",
    ]
    for line in lines:
        subprocess.run(line, shell=True, cwd=folder, env=environment(folder), check=True)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, **VARIABLES, "HOME": str(folder)}


@dataclass(frozen=True)
class Run:
    """What a program has left.

    Attributes:
        status: its exit status, as a shell reports it.
        output: its standard output and error output.
        files: contents of the files in its folder, by path.
    """

    status: int
    output: tuple[bytes, bytes]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Measured:
    """What kinst says of a counted run.

    Attributes:
        sites: number of planted instructions.
        hits: their hits, added up.
        left_out: number of the instructions that are not planted, by reason.
        seconds: user seconds of the program.
        preparation: seconds from kinst's start to that of the program.
    """

    sites: int
    hits: int
    left_out: Mapping[str, int]
    seconds: float
    preparation: float


class Runner:
    """Runs commands, each in a new copy of a folder of input, at the same path."""

    def __init__(self, folder: Path) -> None:
        self._input = folder / "input"
        self._run = folder / "run"
        self._result = folder / "result"
        folder.mkdir(exist_ok=True)
        prepare(self._input)

    def words(self, name: str) -> str:
        return COMMANDS[name].replace("{folder}", str(self._run))

    def untraced(self, name: str) -> tuple[Run, float]:
        """Run a command, and return what it leaves, and its user seconds."""
        with unrandomized():
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            run = self._run_in_copy(["sh", "-c", f"exec {self.words(name)}"])
            spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        return run, spent

    def counted(self, name: str) -> tuple[Run, Measured]:
        """Run a command with every instruction of its program planted."""
        module = "tests.machines.process.debian"
        words = [sys.executable, "-m", module, "--result", str(self._result), self.words(name)]
        self._result.unlink(missing_ok=True)
        with unrandomized():
            run = self._run_in_copy(words)
        return run, Measured(**json.loads(self._result.read_text()))

    def callgrind(self, name: str) -> tuple[Run, float, int]:
        """Run a command under valgrind's callgrind.

        callgrind writes and zeroes its counts before each fork: otherwise the profile of the child
        would include what the parent has executed.

        Returns what it leaves, its user seconds, and how many instructions of the program's file
        were executed.
        """
        folder = self._result.parent / "callgrind"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        grind = f"{CALLGRIND} --callgrind-out-file={folder}/%p"
        with unrandomized():
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            run = self._run_in_copy(["sh", "-c", f"exec {grind} {self.words(name)}"])
            spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        program = os.path.realpath(shutil.which(COMMANDS[name].split()[0]) or "")
        return run, spent, sum(executed(file, program) for file in folder.iterdir())

    def _run_in_copy(self, words: Sequence[str]) -> Run:
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self._input, self._run)
        variables = environment(self._run)
        variables["PYTHONPATH"] = str(ROOT) if words[0] == sys.executable else ""
        done = subprocess.run(
            words, cwd=self._run, env=variables, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=1200, check=False,
        )  # fmt: skip
        files = {
            str(path.relative_to(self._run)): path.read_bytes()
            for path in sorted(self._run.rglob("*"))
            if path.is_file()
        }
        return Run(done.returncode, (done.stdout, done.stderr), files)


def executed(profile: Path, program: str) -> int:
    """Return how many instructions of a program's file callgrind has counted, from the profile it
    has written (the manual's "Callgrind Format Specification")."""
    names: dict[str, str] = {}
    total, inside, inclusive = 0, False, False
    for line in profile.read_text(errors="replace").splitlines():
        if line.startswith("ob="):
            number, _, path = line[3:].partition(" ")
            names.setdefault(number, path)
            inside = names[number] == program
        elif line.startswith("cob=") or line.startswith("cobj="):
            number, _, path = line.partition("=")[2].partition(" ")
            if path:
                names[number] = path
        elif line.startswith("calls="):
            inclusive = True
        elif line[:1] in "0123456789+-*" and line:
            total += int(line.split()[1]) if inside and not inclusive else 0
            inclusive = False
    return total


def count(command: str, result: Path) -> int:
    """Run a command here, with every instruction of its program planted; write what kinst says of
    the run, and return the command's exit status."""
    began = sum(os.times()[:2])
    with kinst.process(command) as machine:
        trace = machine.trace(COUNT, command)
        preparation = sum(os.times()[:2]) - began
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        events = list(trace.events())
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        tables = [one.aggregation.rows for one in trace.aggregations().values()]
        hits = sum(v for rows in tables for v in rows.values() if isinstance(v, int))
        sites = sum(not site.reason for site in trace.sites)
        left_out = Counter(trace.left_out.values())
        trace.close()
    result.write_text(
        json.dumps(
            {"sites": sites, "hits": hits, "left_out": left_out, "seconds": spent,
             "preparation": preparation}
        )
    )  # fmt: skip
    return int(events[-1].status)  # type: ignore[union-attr]


def row(runner: Runner, name: str, *, callgrind: bool) -> str:
    """Run a command untraced and counted, and return a row of the table."""
    plain, seconds = runner.untraced(name)
    again, more = runner.untraced(name)
    found, measured = runner.counted(name)
    least = min(seconds, more)
    same = "as untraced" if found == plain else difference(plain, found)
    if plain != again:
        same += " (untraced runs differ: " + difference(plain, again) + ")"
    left = sum(measured.left_out.values())
    times = f"{measured.seconds / least:.2f}" if least >= 0.02 else "-"
    grind = ground = "-"
    if callgrind:
        _, slow, instructions = runner.callgrind(name)
        grind = f"{slow / least:.0f}" if least >= 0.02 else "-"
        ground = f"{measured.hits / instructions:.5f}" if instructions else "-"
    return (
        f"| {name} | {measured.sites:,} | {left:,} ({left / max(measured.sites + left, 1):.1%})"
        f" | {measured.hits:,} | {least:.2f} | {times} | {grind} | {ground}"
        f" | {measured.preparation:.1f} | {same} |"
    )


def difference(one: Run, other: Run) -> str:
    """Return what differs between two runs."""
    found = [f"status {one.status}, {other.status}"] if one.status != other.status else []
    found += [f"output {k}" for k in range(2) if one.output[k] != other.output[k]]
    paths = sorted({*one.files, *other.files})
    found += [path for path in paths if one.files.get(path) != other.files.get(path)]
    return ", ".join(found)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.machines.process.debian")
    parser.add_argument("--callgrind", action="store_true")
    parser.add_argument("--result", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    if given.result:
        return count(given.names[0], given.result)
    print("| program | instructions | left out | hits | s | times | callgrind | hits/callgrind")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder) / "programs")
        for name in given.names or [one for one in installed() if one not in LARGE]:
            try:
                print(row(runner, name, callgrind=given.callgrind), flush=True)
            except Exception as error:
                print(f"| {name} | {type(error).__name__}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
