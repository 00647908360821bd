"""docs/extending.md, word by word: what it shows is made in a temporary folder, and used."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinst.providers
import kinst.systems
from kinst.core.errors import DError
from tests import ROOT
from tests.contracts import missing
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import trace

TEXT = (ROOT / "docs/extending.md").read_text()
Add = Callable[[ModuleType, str], None]
CACHES = (
    kinst.systems.kinds, kinst.providers.load_all, kinst.providers.interfaces,
    kinst.providers.of_instructions, kinst.providers.of_functions,
    kinst.providers._kernel_probe,
)  # fmt: skip


def example(file: str) -> str:
    """The code that the page shows for a file."""
    found = re.search(rf"`{re.escape(file)}`[^`]*```python\n(.*?)^```$", TEXT, re.S | re.M)
    assert found, f"docs/extending.md shows no {file}"
    return found[1]


def forget() -> None:
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Puts the page's file of a package into a folder where kinst looks for members of that."""
    made: list[str] = []

    def put(package: ModuleType, name: str) -> None:
        kind = package.__name__.rpartition(".")[2]
        folder = tmp_path / kind
        folder.mkdir()
        (folder / f"{name}.py").write_text(example(f"kinst/{kind}/{name}.py"))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        made.append(f"{package.__name__}.{name}")
        forget()

    yield put
    monkeypatch.undo()
    for name in made:
        sys.modules.pop(name, None)
    forget()


def run(program: str, *calls: Call, **more: Any) -> str:
    """What a program prints of a kernel that keeps its current thread in tp."""
    return trace(FakeMachine("riscv64"), program, calls, unknown=True, **more).out


def test_a_system_names_its_current_thread_by_a_register(add: Add) -> None:
    """tests/fake/kernel.c has the tasks: that of CPU 1 is beta, thread 201 of process 200."""
    add(kinst.systems, "toy")
    kind = importlib.import_module("kinst.systems.toy").SYSTEM
    assert not missing(kinst.systems.SystemKind, kind)
    assert len(example("kinst/systems/toy.py").splitlines()) < 150
    body = """printf("%d %d %s %d %s %d %d;", pid, tid, execname, curpsinfo->pr_pid,
        curpsinfo->pr_fname, ((struct task *)curthread)->uid, EFAULT);"""
    out = run(f"fbt::leaf:entry {{ {body} }}", Call("leaf", (1, 2), 1), Call("leaf", (3, 4), 0))
    told = sorted(part.strip() for part in out.split(";") if part.strip())
    assert told == ["100 100 alpha 100 alpha 10 14", "200 201 beta 200 beta 11 14"]
    typed = run("fbt::leaf:entry { trace(curthread->comm); }", Call("leaf", (1, 2), 1))
    assert "beta" in typed


def test_what_such_a_system_does_not_know_is_refused_with_the_reason(add: Add) -> None:
    add(kinst.systems, "toy")
    for name, said in (
        ("gid", "gid is not known of the system toy"),
        ("ustack()", "ustack() is not known of the system toy"),
    ):
        with pytest.raises(DError) as found:
            run(f"fbt::leaf:entry {{ trace({name}); }}" if name == "gid"
                else f"fbt::leaf:entry {{ {name}; }}", Call("leaf", (1, 2), 1))  # fmt: skip
        assert found.value.message == said


def test_without_that_system_the_current_thread_is_refused_with_the_reason() -> None:
    with pytest.raises(DError, match="curthread needs a system that kinst knows"):
        run("fbt::leaf:entry { trace(curthread); }", Call("leaf", (1, 2), 1))


def test_a_provider_asks_the_system_for_its_system_calls(add: Add) -> None:
    add(kinst.systems, "toy")
    add(kinst.providers, "syscall")
    program = """
        syscall::work:entry { printf("%s %d %d;", probefunc, arg0, args[0]); }
        syscall::work:return { printf("syscall %d;", arg1); }
        fbt::work:return { printf("fbt %d;", arg1); }"""
    told = [part.strip() for part in run(program, Call("work", (3,), 0)).split(";")]
    results = {kind: value for kind, _, value in (one.partition(" ") for one in told if one)}
    assert results["work"] == "3 3"
    assert results["syscall"] == results["fbt"] != ""
    counted = run("syscall:::entry { @[probefunc] = count(); }",
                  *(Call("work", (n,), n % 2) for n in range(5)))  # fmt: skip
    assert counted.split() == ["work", "5"]


def test_a_system_without_system_calls_has_none_of_that_provider(add: Add) -> None:
    add(kinst.providers, "syscall")
    with pytest.raises(DError) as found:
        run("syscall::work:entry { trace(1); }", Call("work", (3,), 0))
    assert found.value.hint == "syscall::NAME:entry and syscall::NAME:return"
