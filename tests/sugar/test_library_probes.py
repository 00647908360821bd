"""Probes that D libraries declare over other probes, expanded as -d prints them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.dialect import Dialect, Library, with_libraries
from kinst.core.dtypes import INT, UINT64, DType, FunctionType
from kinst.core.errors import DError, KinstError
from kinst.core.types import TypeSource
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_programs, parse_text
from kinst.dlang.syntax.unparse import unparse
from kinst.kernels.fetch import Prepared
from kinst.providers import load_all
from kinst.session.enable import enable
from kinst.sugar.library_probes import LibraryProbes, probe_names
from kinst.systems import of_host
from tests.fake_kernel import FakeKernel

POINT = Library(
    "point.d",
    """
typedef struct point { int x; int y; } point_t;
translator point_t < int N > { x = N + 1; y = refuse("points of this system are flat"); };
""",
)
MINE = Library(
    "mine.d",
    """
#pragma D depends_on library point.d
inline int LEAST = 3;

provider mine {
    probe first__step(int n, char *path) : (point_t *n, string = stringof(path), int n) =
        fbt::first_step:entry, fbt::second_step:entry / n > 2 /;
    probe plain() = kinst::step:0;
    probe same(int n, bool yes) = fbt::same:entry / yes /;
    probe absent() = refuse("nothing here steps back");
};
""",
)
LIBRARIES = (POINT, MINE)


def expanded(
    text: str, libraries: Sequence[Library] = LIBRARIES, types: TypeSource | None = None
) -> str:
    program = parse_text(text, "t.d")
    return unparse(LibraryProbes([program], lambda: libraries, types).expand(program))


def error(text: str, libraries: Sequence[Library] = LIBRARIES) -> DError:
    with pytest.raises(DError) as found:
        expanded(text, libraries)
    return found.value


def test_the_clause_of_a_library_s_probe_is_one_of_the_probes_below() -> None:
    text = "mine:::first-step /args[2] == 4/ { trace(args[0]->x); trace(args[1]); trace(arg2); }"
    assert expanded(text) == (
        "fbt::first_step:entry,\nfbt::second_step:entry\n"
        "/(int)arg0 > 2 && (int)arg0 == 4/\n{\n"
        "\ttrace(xlate < point_t * > ((int)arg0)->x);\n"
        "\ttrace(stringof ((char *)arg1));\n"
        "\ttrace((int64_t)(int)arg0);\n}\n"
    )


def test_arguments_without_translation_are_the_inputs() -> None:
    assert expanded("mine:::same { trace(args[0]); trace(args[1]); }") == (
        "fbt::same:entry\n/(bool)(uint8_t)arg1/\n{\n"
        "\ttrace((int)arg0);\n\ttrace((bool)(uint8_t)arg1);\n}\n"
    )


def test_a_glob_means_every_probe_that_there_is() -> None:
    text = "mine::: { @ = count(); }"
    probes = [line for line in expanded(text).splitlines() if ":" in line]
    assert probes == [
        "fbt::first_step:entry,", "fbt::second_step:entry", "kinst::step:0", "fbt::same:entry",
    ]  # fmt: skip
    assert expanded("min*:::pl* { }") == "kinst::step:0\n{\n}\n"
    assert expanded("plain { }") == "kinst::step:0\n{\n}\n"
    # The clause stays one clause for the probes that are not a library's.
    assert expanded("BEGIN, mine:::plain, END { }") == (
        ":::BEGIN,\n:::END\n{\n}\n\nkinst::step:0\n{\n}\n"
    )


def test_probes_keep_the_library_s_name() -> None:
    program = parse_text("mine:::first-step { }", "t.d")
    done = LibraryProbes([program], lambda: LIBRARIES, None).expand(program)
    patterns = [one.pattern for one in done.clauses[0].descriptions]
    assert [one.text for one in patterns] == ["fbt::first_step:entry", "fbt::second_step:entry"]
    assert {str(one) for one in patterns} == {"mine:vmlinux::first-step"}
    # A second expansion changes nothing: a program is parsed again when $target is known.
    assert LibraryProbes([done], lambda: LIBRARIES, None).expand(done) is done


@pytest.mark.parametrize(
    ("text", "tag", "message"),
    [
        ("mine:::back { }", "D_PDESC_ZERO", "probe description mine:::back does not match any"),
        ("mine:::absent { }", "D_PDESC_ZERO", "there is no mine:vmlinux::absent: nothing here"),
        ("mine:::abs* { }", "D_PDESC_ZERO", "there is no mine:vmlinux::absent: nothing here"),
        ("mine:::plain { trace(arg0); }", "D_ARGS_NONE", "arg0 means nothing at mine:vmlinux::pl"),
        ("mine:::same { trace(args[2]); }", "D_ARGS_IDX", "args[2] means nothing at mine:vmlinux"),
    ],
)
def test_what_there_is_not_is_told(text: str, tag: str, message: str) -> None:
    found = error(text)
    assert found.tag == tag and found.message.startswith(message), found


def test_a_misspelt_probe_is_told() -> None:
    assert error("mine:::plane { }").hint == "did you mean mine:::plain?"
    assert error("mine:nfs::plain { }").hint == (
        "probes of mine have no module but vmlinux: mine:::plain"
    )
    assert error("mine:nfs:read:plain { }").hint.endswith("vmlinux: mine::read:plain")
    assert expanded("min*:nfs::plain { }") == "min*:nfs::plain\n{\n}\n"
    assert error("mine:::back { }").hint == "probes of mine: first-step, plain, same, absent"


def checked(text: str, libraries: Sequence[Library] = LIBRARIES) -> typed.TypedProgram:
    program = parse_text(text, "t.d")
    done = LibraryProbes([program], lambda: libraries, None).expand(program)
    environment = Environment(dialect=lambda: Dialect(system="toy", libraries=tuple(libraries)))
    return compile_programs([done], environment)


def test_a_translation_of_an_argument_is_the_library_s() -> None:
    action = checked("mine:::first-step { trace(args[0]->x); }").clauses[0].actions[0]
    assert isinstance(action, typed.TraceAction) and str(action.expr.type) == "int"
    # Names of the file that declares the provider, and of those that it requires.
    assert checked("mine:::plain { trace(LEAST); trace(sizeof(struct point)); }").clauses


def test_a_member_that_the_system_lacks_is_refused_with_the_reason() -> None:
    with pytest.raises(DError) as found:
        checked("mine:::first-step { trace(args[0]->y); }")
    assert found.value.tag == "D_XLATE_NOCONV"
    assert found.value.message.endswith("has no y: points of this system are flat")


def test_a_missing_requirement_is_named() -> None:
    needy = Library("needy.d", "#pragma D depends_on module gears\n" + MINE.text.replace(
        "provider mine", "provider needy"))  # fmt: skip
    with pytest.raises(DError) as found:
        checked("needy:::plain { trace(LEAST); }", (POINT, needy))
    assert found.value.tag == "D_PRAGMA_DEPEND"
    assert found.value.message == "library needy.d requires module gears"
    assert checked("#pragma D depends_on provider mine\nmine:::plain { }").clauses


def test_a_program_declares_such_a_provider_too() -> None:
    text = "provider own { probe go() = mine_too:::go; };\nown:::go { trace(1); }"
    assert expanded(text, ()) == "mine_too:::go\n{\n\ttrace(1);\n}\n"


class Types:
    """Types of a kernel with two functions."""

    PARAMETERS: dict[str, Sequence[DType]] = {"step": (INT, UINT64), "new_step": (INT,)}  # noqa: RUF012

    def function(self, name: str, module: str = "") -> FunctionType | None:
        known = self.PARAMETERS.get(name)
        return None if known is None else FunctionType(INT, tuple(known), False)


@pytest.mark.parametrize(
    ("declarations", "chosen"),
    [
        ("probe go(int n) = fbt::old_step:entry; probe go(int n) = fbt::step:entry;", "step"),
        ("probe go(int n, int m) = fbt::step:entry; probe go(int n) = fbt::new_step:entry;",
         "new_step"),
        ("probe go(int n, int m) = fbt::new_step:entry; probe go(int n) = fbt::step:entry;",
         "step"),
        ("probe go(int n, uint64_t m) = fbt::step:entry; probe go(int n) = fbt::step:entry;",
         "step"),
        ("probe go() = refuse(\"no\"); probe go() = fbt::new_step:entry;", "new_step"),
    ],
)  # fmt: skip
def test_the_first_declaration_that_fits_the_kernel_counts(declarations: str, chosen: str) -> None:
    library = Library("new.d", f"provider new {{ {declarations} }};")
    shown = expanded("new:::go { }", [library], Types())  # type: ignore[arg-type]
    assert shown == f"fbt::{chosen}:entry\n{{\n}}\n"


def test_each_declaration_that_fits_counts_for_what_no_other_has_before() -> None:
    text = """provider new {
        probe go(int n, uint64_t m) : (int n, uint64_t m) = fbt::step:entry;
        probe go(int n) : (int = 7, uint64_t = n) = fbt::step:entry, fbt::new_step:entry;
        probe go(int n, int m) = fbt::new_step:entry;
    };"""
    shown = expanded("new:::go { trace(args[0]); }", [Library("new.d", text)], Types())  # type: ignore[arg-type]
    assert shown == (
        "fbt::step:entry\n{\n\ttrace((int)arg0);\n}\n\nfbt::new_step:entry\n{\n\ttrace((int)7);\n}\n"
    )
    # Nothing is known of a kernel: the first declaration stands for all.
    assert expanded("new:::go { }", [Library("new.d", text)]) == "fbt::step:entry\n{\n}\n"


def test_if_none_fits_the_first_reason_is_told() -> None:
    declarations = "probe go() = fbt::old:entry; probe go(int n, int m) = fbt::step:entry;"
    text = f"provider new {{ {declarations} }};"
    program = parse_text("new:::go { }", "t.d")
    probes = LibraryProbes([program], lambda: [Library("new.d", text)], Types())  # type: ignore[arg-type]
    with pytest.raises(DError) as found:
        probes.expand(program)
    assert found.value.message == (
        "there is no new:vmlinux::go: the kernel's types have no function old"
    )


def test_a_user_s_file_goes_before_the_system_s(tmp_path: Path) -> None:
    (tmp_path / "mine.d").write_text("provider mine { probe plain() = BEGIN; };\n")
    (tmp_path / "other.d").write_text("provider other { probe go() = END; };\n")
    both = with_libraries(Dialect(libraries=LIBRARIES), [str(tmp_path)]).libraries
    assert [one.name for one in both] == ["mine.d", "other.d", "point.d"]
    assert expanded("mine:::plain, other:::go { }", both) == ":::BEGIN\n{\n}\n\n:::END\n{\n}\n"
    with pytest.raises(KinstError, match="no such folder"):
        with_libraries(Dialect(), [str(tmp_path / "nowhere")])


def test_every_library_of_a_system_parses() -> None:
    """Whether their probes fire is tested in guests (tests/vm/counts/test_d_libraries.py)."""
    libraries = of_host().dialect().libraries
    names = [one.provider for one in libraries if one.by_provider]
    assert {"sched", "proc"} <= {*names}
    for name in names:
        assert "{" in expanded(f"{name}::: {{ @[probename] = count(); }}", libraries)


REPORT = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from kinst.cli import start
status = start.main()
print(*[path for path in opened if path.endswith(".d")], sep="\\n", file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("BEGIN { exit(0); }", set()),
        ('fbt::vfs_read:entry /execname == "sh"/ { self->n = 1; @[pid] = count(); }', set()),
        ("sdt:sched::sched_switch { n = 1; n++; }", set()),
        ("sched:::on-cpu { @ = count(); }", {"sched.d", "psinfo.d", "lwpsinfo.d", "cpuinfo.d"}),
    ],
)
def test_libraries_are_read_only_if_they_are_named(
    program: str, files: set[str], prepared: Prepared
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REPORT, "-e", "-n", program],
        env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {Path(line).name for line in ran.stderr.splitlines() if line.endswith(".d")} == files


def test_the_clause_runs_once_at_each_place_of_the_probe() -> None:
    code = [("first_step", 0x1000, ["90", "c3"]), ("second_step", 0x2000, ["90", "c3"])]
    program = checked("mine:::first-step { trace(1); } mine:::first-step { trace(2); }")
    sites, counts = enable(program, load_all(), FakeKernel(code), zero=False)
    assert [(str(one.probe.name), one.probe.site.address) for one in sites if one.probe.site] == [
        ("mine:vmlinux:first_step:first-step", 0x1000),
        ("mine:vmlinux:second_step:first-step", 0x2000),
    ]
    assert len({one.probe.id for one in sites}) == 2
    assert [one.clauses for one in sites] == [(0, 1), (0, 1)] and set(counts) == {0, 1}


def test_a_function_in_a_description_is_the_one_in_which_the_probe_fires() -> None:
    code = [("first_step", 0x1000, ["90", "c3"]), ("second_step", 0x2000, ["90", "c3"])]
    kernel, providers = FakeKernel(code), load_all()
    for text in ("mine::second_step:first-step { }", "second*:first-step { }",
                 "mine:::same, mine::sec*:first* { }"):  # fmt: skip
        sites, _ = enable(checked(text), providers, FakeKernel([*code, ("same", 9, ["90", "c3"])]),
                          zero=False)  # fmt: skip
        names = [str(one.probe.name) for one in sites]
        assert names[-1] == "mine:vmlinux:second_step:first-step", text
        assert len(names) == 1 + text.count("same"), text
    for text in ("mine::third:first-step { }", "mine:::first-step, mine::third:first-step { }"):
        with pytest.raises(DError) as found:
            enable(checked(text), providers, kernel, zero=False)
        wanted = "probe description mine:vmlinux:third:first-step does not match any probes"
        assert found.value.message == wanted and found.value.tag == "D_PDESC_ZERO"


def test_a_misspelt_name_without_provider_gets_the_library_s_probe_as_hint() -> None:
    kernel = FakeKernel([("same", 0x1000, ["90", "c3"])])
    for text, hint in (("first-stepp { }", "did you mean mine:::first-step?"),
                       ("zzz { }", "kinst::")):  # fmt: skip
        with pytest.raises(DError) as found:
            enable(checked(text), load_all(), kernel, zero=False,
                   of_libraries=lambda: probe_names(LIBRARIES))  # fmt: skip
        assert hint in found.value.hint, found.value


def test_a_probe_that_the_kernel_refuses_is_left_out_of_a_glob() -> None:
    kernel = FakeKernel([("same", 0x1000, ["90", "c3"])])
    some = checked("mine::: { @ = count(); }")
    sites, _ = enable(some, load_all(), kernel, zero=False)
    assert [str(one.probe.name) for one in sites] == ["mine:vmlinux:same:same"]
    for text, named in (("mine:::pl* { }", "plain"), ("mine:::plain { }", "plain")):
        with pytest.raises(DError) as found:
            enable(checked(text), load_all(), kernel, zero=False)
        assert found.value.message.startswith(f"mine:vmlinux::{named}: no function named")


def test_a_declaration_s_clause_runs_only_at_its_own_places() -> None:
    """Each of two declarations of one probe has its own arguments."""
    code = [(name, at, ["90", "c3"]) for name, at in (("step", 0x1000), ("new_step", 0x2000))]
    text = """provider new {
        probe go(int n, uint64_t m) : (int n) = fbt::step:entry;
        probe go(int n) : (int = n + 1) = fbt::new_step:entry;
    };"""
    library = Library("new.d", text)
    program = parse_text("new:::go { trace(args[0]); } new:::go { trace(2); }", "t.d")
    done = LibraryProbes([program], lambda: [library], Types()).expand(program)  # type: ignore[arg-type]
    environment = Environment(dialect=lambda: Dialect(system="toy", libraries=(library,)))
    typed_program = compile_programs([done], environment)
    sites, counts = enable(typed_program, load_all(), FakeKernel(code), zero=False)
    assert [(one.probe.site.address, one.clauses) for one in sites if one.probe.site] == [
        (0x1000, (0, 2)), (0x2000, (1, 3)),
    ]  # fmt: skip
    assert [one.probe.name.function for one in sites] == ["step", "new_step"]
    assert counts == dict.fromkeys(range(4), 1) and [one.epid for one in sites] == [1, 3]
