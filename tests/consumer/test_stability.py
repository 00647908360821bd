"""The reports of -v, as dtrace(1) prints them (Dynamic Tracing Guide, "Stability")."""

from __future__ import annotations

from kinst.consumer.stability import probe_report, program_report
from kinst.core.stability import CLASSES, LEVELS, Attributes


def attributes(name: str, data: str, dependency: str) -> Attributes:
    return Attributes(LEVELS.index(name), LEVELS.index(data), CLASSES.index(dependency))


EVOLVING = attributes("Evolving", "Evolving", "ISA")
STABLE = attributes("Stable", "Private", "Common")


def test_of_a_program() -> None:
    assert (
        program_report("description 'fbt:::'", EVOLVING, STABLE)
        == """
Stability attributes for description 'fbt:::':

	Minimum Probe Description Attributes
		Identifier Names: Evolving
		Data Semantics:   Evolving
		Dependency Class: ISA

	Minimum Statement Attributes
		Identifier Names: Stable
		Data Semantics:   Private
		Dependency Class: Common
"""
    )


def test_of_a_probe() -> None:
    text = probe_report(EVOLVING, STABLE, ("struct file *", "int"))
    assert (
        text
        == """
	Probe Description Attributes
		Identifier Names: Evolving
		Data Semantics:   Evolving
		Dependency Class: ISA

	Argument Attributes
		Identifier Names: Stable
		Data Semantics:   Private
		Dependency Class: Common

	Argument Types
		args[0]: struct file *
		args[1]: int

"""
    )
    assert probe_report(EVOLVING, STABLE, ()).endswith("\n\tArgument Types\n\t\tNone\n\n")
