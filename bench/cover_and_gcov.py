"""Compare kinst cover with gcov in one run: a kernel that is built with GCOV_PROFILE for fs/ and
fs/ext2/ counts its lines itself while kinst counts its instructions.

    python bench/cover_and_gcov.py BUILD-FOLDER

BUILD-FOLDER has a kernel with CONFIG_GCOV_KERNEL, CONFIG_EXT2_FS=m, CONFIG_BLK_DEV_LOOP, debugfs,
the options that kinst needs (docs/your-files.md), and `GCOV_PROFILE := y` in fs/Makefile and
fs/ext2/Makefile.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KINST = Path(sys.executable).with_name("kinst")
FILES = ("fs/read_write.c", "fs/namei.c", "fs/ext2")
WORK = """
mkdir /tmp/w; cd /tmp/w
dd if=/dev/zero of=img bs=1k count=9000; losetup /dev/loop0 img; mke2fs /dev/loop0
mkdir m; mount -t ext2 /dev/loop0 m; cd m
for n in 1 2 3; do
    mkdir d$n; cp /bin/busybox f$n; ln f$n l$n; ln -s f$n s$n; mv f$n d$n/g$n; cat d$n/g$n s$n
    echo more >>l$n; head -c 100 l$n; dd if=l$n of=x bs=512 skip=3 count=20; ls -lR .
    rm -f x s$n l$n
    rmdir nothing; mv nothing no; cat nothing; touch a; chmod 600 a; mknod p p; rm a p
done
sync; cd /tmp/w; umount m; losetup -d /dev/loop0; cd /; rm -r /tmp/w
"""
COMMAND = f"""
G=/sys/kernel/debug/gcov
echo 1 >>$G/reset
{{ {WORK} }} >/dev/null 2>&1
F=$(find $G -name 'read_write.gcda' -o -name namei.gcda -o -path '*/fs/ext2/*.gcda')
cat $F >/dev/null; cat $F >/dev/null
for f in $F; do echo "FILE $f"; base64 $f; done; echo "FILE end"
"""

Counts = dict[tuple[str, int], int]


def by_gcov(build: Path, dump: str) -> Counts:
    """Return the counts of gcov(1) by (file, line)."""
    found: Counts = {}
    pieces = re.findall(r"FILE (\S+)\r?\n(.*?)(?=FILE )", dump, re.S)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in pieces:
            relative = re.search(r"fs/(?:ext2/)?\w+\.gcda$", name)
            assert relative, name
            notes = (build / relative[0]).with_suffix(".gcno")
            stem = relative[0].replace("/", "_").removesuffix(".gcda")
            Path(folder, f"{stem}.gcda").write_bytes(base64.b64decode(data))
            shutil.copy(notes, Path(folder, f"{stem}.gcno"))
            subprocess.run(["gcov", "--json-format", f"{stem}.gcda"], cwd=folder, check=True,
                           capture_output=True)  # fmt: skip
        for path in Path(folder).glob("*.json.gz"):
            for file in json.loads(gzip.decompress(path.read_bytes()))["files"]:
                for line in file["lines"]:
                    key = file["file"], line["line_number"]
                    found[key] = found.get(key, 0) + line["count"]
    return found


def by_kinst(path: Path, build: Path) -> Counts:
    found, file = {}, ""
    for line in path.read_text().splitlines():
        if line.startswith("SF:"):
            file = line[3:]
        elif line.startswith("DA:"):
            number, count = line[3:].split(",")
            found[file.removeprefix(f"{build}/"), int(number)] = int(count)
    return found


def main() -> None:
    build = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "kinst.info")
        done = subprocess.run(
            [KINST, "cover", *FILES, "-o", info, "--build", build, "--module", "ext2",
             "-c", COMMAND],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr)
        print(done.stdout.rpartition("FILE end")[2])
        gcov, own = by_gcov(build, done.stdout), by_kinst(info, build)
    report(gcov, own, build)


def report(gcov: Counts, own: Counts, build: Path) -> None:
    sources: dict[str, list[str]] = {}
    for name in sorted({file for file, _ in gcov} & {file for file, _ in own}):
        theirs, ours = ({n: c for (f, n), c in one.items() if f == name} for one in (gcov, own))
        if not name.startswith("fs/") or name.endswith(".h"):
            continue
        both = theirs.keys() & ours.keys()
        hit = [n for n in both if theirs[n] and ours[n]]
        none = [n for n in both if not theirs[n] and not ours[n]]
        only_gcov = sorted(n for n in both if theirs[n] and not ours[n])
        only_kinst = sorted(n for n in both if ours[n] and not theirs[n])
        equal = sum(theirs[n] == ours[n] for n in hit)
        print(f"{name}: {len(hit)} lines hit in both ({equal} with one count), {len(none)} in"
              f" neither; gcov alone {len(only_gcov)}, kinst alone {len(only_kinst)};"
              f" without code {len(theirs.keys() - ours.keys())}, unknown to gcov"
              f" {len(ours.keys() - theirs.keys())}")  # fmt: skip
        text = sources.setdefault(name, (build / name).read_text().splitlines())
        for what, numbers in (("gcov alone", only_gcov), ("kinst alone", only_kinst)):
            for n in numbers:
                print(f"  {what}: {n} ({theirs[n]}, {ours[n]}): {text[n - 1].strip()}")


if __name__ == "__main__":
    main()
