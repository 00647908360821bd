"""Every machine, system, provider and output format is found by name and fulfils its protocol.

Whatever can be checked without a running machine is checked for all of them.  ISAs have their own
tests in tests/isa.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import kinst
from kinst import machines, providers, render, systems
from kinst.core.errors import KinstError
from kinst.core.kernel import Found, Provider
from kinst.core.machine import Abilities, Target
from kinst.core.machine_kind import MachineKind
from kinst.core.probe import ProbePattern
from kinst.core.system import System, VirtualLayout
from kinst.dlang.vocabulary.builtins import VARIABLES
from kinst.image.elf import Elf, open_elf
from kinst.isa import load as load_isa
from kinst.isa import names as isas
from tests.contracts import missing

ROOT = Path(kinst.__file__).parent


def in_folder(folder: str) -> set[str]:
    """Return the names of the Python files and packages in kinst/FOLDER."""
    entries = [
        p for p in (ROOT / folder).iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    ]
    return {p.stem for p in entries} - {"__init__"}


def classes_with(package: str, *methods: str) -> list[type]:
    """Return the classes of kinst.PACKAGE that have these methods, without protocols."""
    found: dict[str, type] = {}
    root = importlib.import_module(f"kinst.{package}")
    for info in pkgutil.walk_packages(root.__path__, f"kinst.{package}."):
        module = importlib.import_module(info.name)
        for _, one in inspect.getmembers(module, inspect.isclass):
            own = one.__module__.startswith(f"kinst.{package}")
            if (
                own
                and not getattr(one, "_is_protocol", False)
                and all(hasattr(one, m) for m in methods)
            ):
                found[f"{one.__module__}.{one.__name__}"] = one
    return [found[name] for name in sorted(found)]


@pytest.fixture(scope="session")
def plain_elf(tmp_path_factory: pytest.TempPathFactory) -> Elf:
    """Return an ELF file of no system that kinst knows."""
    folder = tmp_path_factory.mktemp("contract")
    source = folder / "plain.c"
    source.write_text("long first(long a) { return a + 1; }\n")
    command = ["gcc", "-g", "-nostdlib", "-static", "-Wl,-e,first", "-o", "plain", "plain.c"]
    subprocess.run(command, cwd=folder, check=True)
    return open_elf(folder / "plain")


# Machines.


def test_machines_are_found_by_name() -> None:
    assert set(machines.names()) <= in_folder("machines")
    assert {machines.load(name).name for name in machines.names()} == set(machines.names())
    with pytest.raises(KinstError, match="abacus"):
        machines.load("abacus")


@pytest.mark.parametrize("name", machines.names())
def test_a_kind_of_machine_is_what_is_asked(name: str) -> None:
    kind = machines.load(name)
    assert not missing(MachineKind, kind)
    assert isinstance(kind.abilities, Abilities)
    assert kind.cpus(()) >= 1


def test_one_machine_is_taken_without_an_option_and_each_other_by_its_own() -> None:
    kinds = [machines.load(name) for name in machines.names()]
    assert machines.kinds()[0].name == machines.DEFAULT and {*machines.kinds()} == {*kinds}
    assert [kind.option.name for kind in kinds] == [f"--{kind.name}" for kind in kinds]
    own = [option.name for kind in kinds for option in (kind.option, *kind.options)]
    assert sorted(own) == sorted(set(own))


def test_every_machine_has_every_method() -> None:
    found = classes_with("machines", "map_scratch", "wait")
    assert len(found) >= len(machines.names())
    wrong = {one.__qualname__: missing(Target, one, methods_only=True) for one in found}
    assert not any(wrong.values()), wrong


STOPPING = (
    "stop", "resume", "wait", "registers", "read_user", "insert_breakpoint", "remove_breakpoint",
    "step_over",
)  # fmt: skip
PLANTING = ("write_text", "map_scratch", "map_alias", "scratch_view")
PLANTING_RUNNING = ("planter", "map_scratch", "scratch_view")
COMMANDS = ("prepare_command", "start_command", "end_command")


def test_every_machine_has_each_part_whole_or_refuses_it_with_a_reason_of_its_own() -> None:
    """A machine that has a part must override all of Target's defaults for it."""
    wrong = []
    for one in classes_with("machines", "map_scratch", "wait"):
        if not hasattr(one, "abilities"):  # a base class
            continue

        def has(*names: str, one: type = one) -> bool:
            return all(getattr(one, name) is not getattr(Target, name) for name in names)

        parts = {
            "read": has("read"),
            "stop": has(*STOPPING) or has("cannot_stop"),
            "plant": has(*PLANTING) or has(*PLANTING_RUNNING) or has("cannot_plant"),
            "move": has("move") == has("pointers"),
            "commands": has(*COMMANDS) or has("cannot_run_commands"),
            "close": has("close") or has("cannot_stop"),
        }
        wrong += [f"{one.__qualname__}: {part}" for part, whole in parts.items() if not whole]
    assert not wrong


# Systems.


def test_systems_are_found_by_name_and_one_is_for_all_others() -> None:
    kinds = systems.kinds()
    assert {kind.name for kind in kinds} == in_folder("systems")
    assert [kind.fallback for kind in kinds].count(True) == 1
    assert kinds[-1].fallback


@pytest.mark.parametrize("kind", systems.kinds(), ids=lambda kind: str(kind.name))
def test_a_kind_of_system_is_what_is_asked(kind: systems.SystemKind, plain_elf: Elf) -> None:
    assert not missing(systems.SystemKind, kind)
    assert kind.knows(plain_elf) == kind.fallback
    for isa in isas():
        where = kind.virtual_layout(load_isa(isa))
        assert where is None or isinstance(where, VirtualLayout)
        if where is not None:
            for low, high in (where.image, where.scratch, *where.reserved):
                assert 0 < low < high <= 1 << 64
    for name in VARIABLES:
        why = kind.lacks(name, plain_elf)
        assert not why or name in why


def test_a_file_of_no_known_system_is_for_the_fallback(plain_elf: Elf) -> None:
    assert systems.of_image(plain_elf).fallback


def test_every_system_has_every_method() -> None:
    found = classes_with("systems", "site_refusals", "frame_rule", "functions")
    assert len(found) >= len(systems.kinds())
    wrong = {one.__qualname__: missing(System, one, methods_only=True) for one in found}
    assert not any(wrong.values()), wrong


# Providers.


@pytest.mark.parametrize("name", sorted(in_folder("providers")))
def test_a_provider_is_found_by_its_name_and_is_what_is_asked(name: str) -> None:
    found = providers.load_all()
    offered = importlib.import_module(f"kinst.providers.{name}").PROVIDER
    assert found[offered.name] is offered
    assert not missing(Provider, offered)
    assert offered.usage


def test_probes_that_are_there_without_being_asked_for_match_their_own_names() -> None:
    for provider in providers.load_all().values():
        listed: Sequence[Found] = provider.listed()
        for one in listed:
            probe = one.name
            assert probe.provider == provider.name
            pattern = ProbePattern(probe.provider, probe.module, probe.function, probe.name)
            assert probe in [found.name for found in provider.match(pattern, None)]


# Output formats.


def test_formats_are_found_by_name() -> None:
    assert set(render.formats()) == in_folder("render")
    with pytest.raises(KinstError, match="runes"):
        render.renderer("runes")


@pytest.mark.parametrize("name", sorted(in_folder("render")))
def test_a_format_offers_what_is_asked(name: str) -> None:
    factory = render.renderer(name)
    assert not missing(render.Renderer, factory, methods_only=True)
    parameters = list(inspect.signature(factory).parameters)
    assert len(parameters) >= 2
