"""List the functions of kernels that have gaps (bytes that are not decoded), with the reasons.

    .venv/bin/python tools/undecoded.py VMLINUX ...
    .venv/bin/python tools/undecoded.py            every kernel in the cache

The code is read from the files; code that the kernel writes over it at boot (alternatives, static
calls) is not seen. Instructions whose length is known but not their meaning are counted as well:
kinst refuses each of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kinst.core.displaced import Refused
from kinst.core.paths import cache_folder
from kinst.core.probe import Function, Gap
from kinst.image.elf import open_elf
from kinst.image.relocations import placed
from kinst.session.file_image import FileImage
from kinst.session.kernel import RunningKernel
from kinst.session.kernel_files import isa_of_file

MOST = 20  # gaps to list for each kernel
NEAR = 1 << 24  # distance of a displaced instruction from the original one, in bytes


def examine(path: Path) -> tuple[int, int, Sequence[Gap], Counter[tuple[str, str]]]:
    """Return what kinst does not know of a kernel's code.

    Returns:
        Number of functions, number of instructions, the gaps, and the number of instructions that
            are refused because they are not known, by (bytes, reason).
    """
    isa = isa_of_file(str(path))
    image = FileImage(placed(open_elf(str(path))))
    kernel = RunningKernel(image, image, isa)
    functions = [one for one in kernel.find("", "*") if one.size]
    count, gaps, unknown = 0, list[Gap](), Counter[tuple[str, str]]()
    seen = dict[bytes, str]()
    for low in range(0, len(functions), 4096):
        some: Sequence[Function] = functions[low : low + 4096]
        columns = kernel.columns(some).columns
        count += len(columns)
        gaps += kernel.gaps(some)
        rows = columns.take(columns.marks == 0)
        for at, size, row in zip(rows.address.tolist(), rows.size.tolist(), rows.code, strict=True):
            code = row[:size].tobytes()
            if code not in seen:
                copy = isa.displace(code, at, at - NEAR)
                seen[code] = copy.reason if isinstance(copy, Refused) else ""
            if "not known" in seen[code] or "not one known" in seen[code]:
                unknown[code.hex(" "), seen[code]] += 1
    return len(functions), count, gaps, unknown


def main(arguments: Sequence[str]) -> int:
    kernels = Path(cache_folder()) / "kernels"
    paths = [Path(one) for one in arguments] or sorted(
        path
        for path in kernels.glob("*/*/**/vmlinux*")
        if path.is_file() and path.stat().st_size > 1 << 20
    )
    for path in paths:
        functions, count, gaps, unknown = examine(path)
        holders = {gap.function.address for gap in gaps}
        print(
            f"{path}: {functions} functions, {count} instructions;"
            f" {len(holders)} functions are not covered ({sum(g.size for g in gaps)} bytes);"
            f" {sum(unknown.values())} instructions are not known"
        )
        for gap in gaps[:MOST]:
            print(f"    {gap}")
        if len(gaps) > MOST:
            print(f"    and {len(gaps) - MOST} more")
        for (code, reason), times in unknown.most_common():
            print(f"    {times} times {code}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
