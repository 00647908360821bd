"""The jump tables of compiled functions, against the compiler's assembly.

The targets are the addresses that the linker gave to the labels of the compiler's tables; local
labels are kept in the symbol table for this.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.image.relocations import placed
from kinst.isa import load
from kinst.session.file_image import FileImage
from kinst.session.kernel import RunningKernel

TOOLS = {
    "amd64": ("", ("-fno-stack-protector",)),
    "arm64": ("aarch64-linux-gnu-", ()),
    "riscv64": ("riscv64-linux-gnu-", ()),
}
SOURCE = """
void g(long), h(long);
long one(long n, long m)
{
    switch (n) {
    case 0: g(1); break;
    case 1: g(m); return m;
    case 2: h(2); /* and on */
    case 3: h(m + 1); break;
    case 4: return m * 3;
    case 5: g(m); g(m + 5); break;
    case 6: h(m - 9); return 7;
    case 7: g(4); break;
    case 8: h(7); h(8); break;
    case 9: g(m * 5); return 4;
    case 10: g(1); break;
    case 12: h(2); /* and on */
    case 13: h(m + 1); break;
    case 14: return m * 3;
    case 15: g(m); g(m + 5); break;
    case 16: h(m - 9); return 7;
    case 17: g(4); break;
    case 18: h(7); h(8); break;
    case 19: g(m * 5); return 4;
    }
    for (long k = 0; k < m; k++)
        switch (k & 31) {
        case 3: g(k); break;
        case 4: h(k); break;
        case 5: g(k + 1); break;
        case 6: h(k - 1); n += 9; break;
        case 7: n *= k; break;
        case 8: h(k ^ 5); break;
        case 10: g(k); break;
        case 11: h(k); break;
        case 12: g(k + 1); break;
        case 13: h(k - 1); n += 9; break;
        case 14: n *= k; break;
        case 16: return k;
        case 17: g(k); break;
        case 18: h(k); break;
        case 19: g(k + 1); break;
        case 20: h(k - 1); n += 9; break;
        case 21: n *= k; break;
        case 22: h(k ^ 5); break;
        case 23: return k;
        }
    return n;
}
long labels(const unsigned char *code)
{
    static const void *const table[] = { &&add, &&twice, &&less, &&out };
    long n = 0;
    goto *table[*code & 3];
add: n += code[1]; goto *table[*++code & 3];
twice: n *= 2; goto *table[*++code & 3];
less: n -= code[2]; g(n); goto *table[*++code & 3];
out: return n;
}
long tail(long (*f)(long), long n)
{
    return n > 5 ? f(n) : n;
}
void g(long n) { __asm__ volatile("" : : "r"(n)); }
void h(long n) { __asm__ volatile("" : : "r"(n)); }
"""
_ENTRY = re.compile(r"\s*\.(?:word|long|quad|xword|dword|[248]?byte|hword)\s+\(?(\.L\w+)")


def compiled(isa: str, pie: bool, folder: Path) -> tuple[Path, str]:
    """Return (the program, its assembly)."""
    prefix, options = TOOLS[isa]
    (folder / "a.c").write_text(SOURCE)
    position = ("-fpie", "-static-pie") if pie else ("-fno-pie", "-no-pie")
    keep = ("-nostdlib", "-Wl,-e,one", "-Wa,-L", "-Wl,--discard-none")
    gcc = (f"{prefix}gcc", "-O2", "-fno-inline", *options, position[0])
    subprocess.run([*gcc, "-S", "-o", "a.s", "a.c"], cwd=folder, check=True)
    subprocess.run([*gcc, position[1], *keep, "-o", "a", "a.s"], cwd=folder, check=True)
    return folder / "a", (folder / "a.s").read_text()


@pytest.mark.parametrize("pie", [True, False])
@pytest.mark.parametrize("isa", TOOLS)
def test_targets_are_the_labels_in_the_tables(isa: str, pie: bool, tmp_path: Path) -> None:
    program, assembly = compiled(isa, pie, tmp_path)
    shown = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    labels = {w[2]: int(w[0], 16) for w in map(str.split, shown.splitlines()) if w[1] in "tT"}
    named = {labels[m[1]] for m in map(_ENTRY.match, assembly.splitlines()) if m and m[1] in labels}
    assert len(named) > 12
    image = FileImage(placed(open_elf(program)))
    kernel = RunningKernel(image, image, load(isa))
    for name in ("one", "labels", "tail"):
        (function,) = kernel.find("", name)
        expected = {a for a in named if function.address <= a < function.address + function.size}
        if name == "labels" and pie:
            continue  # a file that is not loaded yet has no addresses there
        found = set(kernel.computed((function,)))
        # A table of unknown length may be read too far, never too short.
        assert found >= expected and len(found) <= len(expected) + 4, name
        assert bool(expected) == (name != "tail")
