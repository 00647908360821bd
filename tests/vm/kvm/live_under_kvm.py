"""Counts of --live in a guest under KVM, where this runs as root (kvm_in_guest.py).

live_under_kvm.py VMLINUX READS N: runs the program READS, which reads N times, and prints a line of
JSON: by way of planting, the number of reads, the counts, and the number of lost firings.
"""

from __future__ import annotations

import json
import sys

import kinst

VMLINUX, READS, MANY = sys.argv[1], sys.argv[2], int(sys.argv[3])
EVERY = 'kinst::vfs_read: /execname == "reads"/ { @[probename] = count(); }'


def main() -> None:
    counts = {}
    with kinst.live(debug=VMLINUX) as machine:
        for way in ("auto", "jump", "trap"):
            options = {"plant": way, "quiet": True}
            print(way, flush=True)
            found = machine.run(EVERY, f"{READS} {MANY}", options=options)
            rows = sorted([str(name), n] for (name,), n in found.aggregations[""].items())
            counts[way] = [MANY, rows, len(found.lost)]
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
