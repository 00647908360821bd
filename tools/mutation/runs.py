"""Run tests on mutants, each in a process of its own that was forked with its modules loaded.

A mutant of a function's body runs in a fork of a process that has collected the tests already:
there the function gets the changed code (warm). A mutant of code that importing runs needs kinst
imported afterwards: in a fork of a process that has loaded the heavy modules, but not kinst's
(fresh).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tools.mutation.mutants import Mutant, mutated

# Heavy modules that are not kinst's: imported once, here, so that every forked process has them.
HEAVY = (
    "capstone", "hypothesis", "iced_x86", "llvmlite.binding", "llvmlite.ir", "numba", "numpy",
    "rich.console", "unicorn",
)  # fmt: skip
COPIED = ("compiled",)  # parts of the cache that a mutant could spoil
EMPTY = ("guests", "planted")
OPENED = ("tests",)  # folders in which each file is a link
MEMORY = 4 << 30  # bytes that a run may use (an emulator reserves many more addresses)
OPTIONS = (
    "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not vm", "--tb=line",
    "-W", "ignore", "--capture=sys",
)  # fmt: skip
SLOWER, GRACE = 6.0, 4.0  # a test hangs if it takes so many times as long and seconds more
WAITS = 30.0  # wall-clock seconds for each CPU second, on a busy machine


@dataclass(frozen=True)
class Chosen:
    """A mutant and the tests to run on it.

    Attributes:
        mutant: a change.
        tests: (node id, seconds that it takes), in order.
        budget: CPU seconds after which no more tests are tried.
    """

    mutant: Mutant
    tests: tuple[tuple[str, float], ...]
    budget: float


@dataclass(frozen=True)
class Outcome:
    """Result of a mutant.

    Attributes:
        what: killed, crashed, too much (time or memory), survived.
        by: the test.
        ran: how many tests ran.
    """

    what: str
    by: str = ""
    ran: int = 0


Report = Callable[[Chosen, Outcome], None]


def run_warm(
    root: Path,
    folders: Sequence[str],
    paths: Iterable[str],
    chosen: Iterable[Chosen],
    report: Report,
    log: Path,
) -> None:
    """Report the outcome of each mutant; nothing for one whose function is not found.

    Args:
        paths: of the modules with mutants; some may be imported only by a test that runs.
    """

    def child() -> int:
        for path in sorted(paths):
            importlib.import_module(_module(path))
        return int(pytest.main([*OPTIONS, *folders], plugins=[_Warm(root, chosen, report)]))

    with _own_cache() as own:
        _ended(_forked(lambda: _prepared(own, log, child)))


def run_fresh(root: Path, chosen: Chosen, log: Path) -> Outcome:
    """Return the outcome of a mutant of code that importing runs."""
    path = root / chosen.mutant.path
    code = mutated(path.read_text(), chosen.mutant, str(path))
    files = sorted({test.partition("::")[0] for test, _ in chosen.tests})
    reader, writer = os.pipe()

    def child() -> int:
        _put(path, code)
        # Before pytest, which loads the modules of its plugins, and so kinst's.
        importlib.import_module(_module(chosen.mutant.path))
        return int(pytest.main([*OPTIONS, *files], plugins=[_Fresh(chosen, writer)]))

    with _own_cache() as own:
        pid = _forked(lambda: _prepared(own, log, child))
        os.close(writer)
        return _watched(pid, reader, dict(chosen.tests), start=15.0)


def in_fork(log: Path, child: Callable[[], int]) -> int:
    """Return the status of child() in a process with a cache folder of its own."""
    with _own_cache() as own:
        return _ended(_forked(lambda: _prepared(own, log, child)))


class _Warm:
    """A pytest plugin: instead of running the collected tests, forks for each mutant."""

    def __init__(self, root: Path, chosen: Iterable[Chosen], report: Report) -> None:
        self._root = root
        self._chosen = chosen
        self._report = report
        self._cache = _Cache()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        _find_no_smaller_examples(session.items)
        functions: dict[tuple[str, str, int], FunctionType] = {}
        for found in gc.get_objects():
            if type(found) is FunctionType:
                its = found.__code__
                functions[its.co_filename, its.co_qualname, its.co_firstlineno] = found
        gc.collect()
        gc.freeze()
        for chosen in self._chosen:
            mutant = chosen.mutant
            path = self._root / mutant.path
            function = functions.get((str(path), *mutant.function))
            if function is None:
                continue
            code = _code_of(mutated(path.read_text(), mutant, str(path)), mutant.function)
            if code is None or len(code.co_freevars) != len(function.__code__.co_freevars):
                continue
            self._report(chosen, self._run(session, items, chosen, function, code))
        self._cache.remove()
        return True

    def _run(
        self,
        session: pytest.Session,
        items: dict[str, pytest.Item],
        chosen: Chosen,
        function: FunctionType,
        code: CodeType,
    ) -> Outcome:
        tests = [items[test] for test, _ in chosen.tests if test in items]
        if not tests:
            return Outcome("survived")
        reader, writer = os.pipe()

        def child() -> int:
            getattr(session.config, "_tmp_path_factory")._basetemp = own / "tmp"  # noqa: B009
            function.__code__ = code
            _run_until_one_fails(session, tests, writer, chosen.budget)
            return 0

        own = self._cache.clean()
        pid = _forked(child)
        os.close(writer)
        return _watched(pid, reader, dict(chosen.tests), start=GRACE)


class _Cache:
    """The cache folder of mutants that run one after the other; replaced if one changed it."""

    def __init__(self) -> None:
        self._made = contextlib.ExitStack()
        self._state: list[int] = []
        self._own = Path()
        self._before = {name: os.environ[name] for name in ("XDG_CACHE_HOME", "TMPDIR")}

    def clean(self) -> Path:
        """Return the folder that has it, which the environment names, with an empty folder tmp."""
        if not self._state or self._state != self._now():
            self._made.close()
            os.environ.update(self._before)  # not the variables of the deleted folder
            tempfile.tempdir = None
            self._own = self._made.enter_context(_own_cache())
            self._state = self._now()
            os.environ.update(XDG_CACHE_HOME=str(self._own), TMPDIR=str(self._own / "tmp"))
            tempfile.tempdir = None
        for entry in (self._own / "tmp").iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        return self._own

    def remove(self) -> None:
        self._made.close()

    def _now(self) -> list[int]:
        every = [self._own / "kinst", *(self._own / "kinst").rglob("*/")]
        return [folder.stat().st_mtime_ns for folder in every if not folder.is_symlink()]


class _Fresh:
    """A pytest plugin: runs the chosen tests in their order."""

    def __init__(self, chosen: Chosen, writer: int) -> None:
        self._chosen = chosen
        self._writer = writer

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        _find_no_smaller_examples(session.items)
        tests = [items[test] for test, _ in self._chosen.tests if test in items]
        _run_until_one_fails(session, tests, self._writer, self._chosen.budget)
        return True


class _Failed:
    """A pytest plugin: tells the watching process of the first test that fails, and ends."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._writer, f"-{report.nodeid}\n".encode())
            os._exit(1)


def _run_until_one_fails(
    session: pytest.Session, tests: list[pytest.Item], writer: int, budget: float
) -> None:
    """Report on a pipe: +TEST when it begins, -TEST when it fails, = at the end, or when the CPU
    seconds are used up."""

    def enough(signal_number: int, frame: Any) -> None:
        os.write(writer, b"=\n")
        os._exit(0)

    signal.signal(signal.SIGPROF, enough)
    signal.setitimer(signal.ITIMER_PROF, budget, 1.0)
    session.config.pluginmanager.register(_Failed(writer))
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        os.write(writer, f"+{item.nodeid}\n".encode())
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    os.write(writer, b"=\n")
    os._exit(0)


def _find_no_smaller_examples(items: Iterable[pytest.Item]) -> None:
    """Let hypothesis stop at the first example that fails, and remember none."""
    hypothesis = importlib.import_module("hypothesis")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    name = "_hypothesis_internal_use_settings"
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if getattr(function, "is_hypothesis_test", False):
            kept = getattr(function, name, None) or hypothesis.settings.default
            found = hypothesis.settings(
                kept, phases=phases, database=None, report_multiple_bugs=False
            )
            setattr(function, name, found)


def _code_of(module: CodeType, function: tuple[str, int]) -> CodeType | None:
    """Return a function's code from a module's."""
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == function:
                return constant
            if function[0].startswith(f"{constant.co_qualname}."):
                return _code_of(constant, function)
    return None


def _put(path: Path, code: CodeType) -> None:
    """Make this code run when the module of this file is imported."""
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.get_filename(fullname)) == path:
            return code
        return usual(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def load_heavy_modules(*, jit: bool) -> None:
    """Import heavy modules; to be called before anything is forked.

    Args:
        jit: whether numba compiles.
    """
    for name in HEAVY:
        importlib.import_module(name)
    numba: Any = importlib.import_module("numba")
    if not jit:
        numba.config.DISABLE_JIT = True
        numba.njit = _interpreted
    assert not any(name.partition(".")[0] == "kinst" for name in sys.modules)


def _interpreted(**_options: object) -> Callable[[Any], Any]:
    """Replace numba.njit(): a decorated function stays unchanged, and is its own py_func."""

    def decorate(function: Any) -> Any:
        function.py_func = function
        return function

    return decorate


def _forked(child: Callable[[], int]) -> int:
    """Start a process that runs child(), in a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        os.setsid()
        status = child()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _ended(pid: int) -> int:
    """Return the status of a process, after ending everything that it started."""
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _prepared(own: Path, log: Path, child: Callable[[], int]) -> int:
    """Run child(), with output to a file."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(XDG_CACHE_HOME=str(own), TMPDIR=str(own / "tmp"))
    tempfile.tempdir = None
    return child()


@contextlib.contextmanager
def _own_cache() -> Iterator[Path]:
    """Return a folder for temporary files that has a cache folder: links to the files of the real
    one."""
    real = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinst"
    with tempfile.TemporaryDirectory(prefix="kinst-mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        cache = folder / "kinst"
        cache.mkdir()
        (folder / "tmp").mkdir()
        for entry in real.iterdir():
            if entry.name in COPIED:
                # Writers rename new files into place: the original stays.
                shutil.copytree(entry, cache / entry.name, copy_function=os.link)
            elif entry.name in OPENED:
                (cache / entry.name).mkdir()
                for file in entry.iterdir():
                    (cache / entry.name / file.name).symlink_to(file)
            elif entry.name not in EMPTY:
                (cache / entry.name).symlink_to(entry)
        yield folder


def _watched(pid: int, reader: int, seconds: dict[str, float], start: float) -> Outcome:
    """Follow a process that reports which test it runs, and end it if that takes too long.

    Args:
        start: seconds that it may take to begin.
    """
    ran, test, told = 0, "", b""
    may, began = start, 0.0
    ends = time.monotonic() + WAITS * may
    outcome = None
    while outcome is None:
        ready, _, _ = select.select([reader], [], [], 0.5)
        data = os.read(reader, 1 << 16) if ready else b""
        *lines, told = (told + data).split(b"\n")
        for line in lines:
            kind, test = line[:1], line[1:].decode() or test
            if kind == b"+":
                ran += 1
                may, began = SLOWER * seconds.get(test, 1.0) + GRACE, _computed(pid)
                ends = time.monotonic() + WAITS * may
            else:
                outcome = Outcome("survived" if kind == b"=" else "killed", test, ran)
        if outcome is None and ready and not data:
            outcome = Outcome("crashed", test, ran)
        elif outcome is None and (
            _computed(pid) - began > may or time.monotonic() > ends or _resident(pid) > MEMORY
        ):
            outcome = Outcome("too much", test, ran)
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return outcome


def _computed(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0
