"""Exits of functions, by columns of many, against the flow of each instruction."""

from __future__ import annotations

from kinst.image.elf import open_elf
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.providers.fbt import ways_out
from kinst.session.file_image import FileImage
from kinst.session.kernel import RunningKernel

EACH = 40  # one of so many functions of a kernel is tested


def test_of_functions_of_a_kernel(prepared: Prepared) -> None:
    image = FileImage(open_elf(prepared.debug))
    kernel = RunningKernel(image, image, load("amd64"))
    functions = [f for f in kernel.find("", "*") if ".cold" not in f.name][::EACH]
    plain = 0
    for function, exits in zip(functions, kernel.plain_exits(functions), strict=True):
        if exits is None:
            continue
        plain += 1
        expected = []
        for part, index, condition, known in ways_out(function, kernel):
            one = kernel.instructions(part)[index]
            assert part.address == function.address and not condition
            expected.append((one.address, one.code, known))
        assert list(exits) == expected, function
    assert plain > len(functions) // 2 > 300
