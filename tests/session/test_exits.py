"""Exits of functions, by columns of many, against the flow of each instruction."""

from __future__ import annotations

from kinst.core.kernel import Exits
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
    functions += list(kernel.find("", "*.cold"))[::EACH]
    split = conditional = 0
    for function, exits in zip(functions, kernel.exits(functions), strict=True):
        parts = kernel.parts(function)
        assert list(exits.parts) == list(parts), function
        every = [
            (part, one, flow)
            for part in parts
            for one, flow in zip(kernel.instructions(part), kernel.flows(part), strict=True)
        ]
        found, expected = (
            [
                (part, one.address, one.code, condition, known)
                for part, one, condition, known in ways_out(leaving, kernel)
            ]
            for leaving in (exits, Exits(parts, every))
        )
        assert found == expected, function
        split += len(parts) > 1
        conditional += any(condition for *_, condition, _ in found)
    assert split > 50 and conditional > 10
