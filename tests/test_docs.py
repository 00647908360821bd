"""README and the man pages say what is so: options, registers, -x options and examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kinst.cli.options import LONG, REFUSED, SHORT, parse
from kinst.core.paths import cache_folder
from kinst.dlang.vocabulary.d_options import NAMES, OWN_NAMES
from kinst.image.type_files import FileTypes, Places
from kinst.isa import load, names
from kinst.kernels import fetch
from kinst.session.program import compile_request
from kinst.session.values import DUMP_STAGES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMAND = (ROOT / "docs/kinst.1").read_text()
PROVIDER = (ROOT / "docs/kinst.4").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
OPTIONS_OF_D = (ROOT / "docs/d.md").read_text().split("## Options")[1].split("## ")[0]
TARGET_PID = 100


def section(page: str, name: str) -> str:
    """The text of one section of a man page."""
    parts = re.split(r"^\.Sh (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


def commands(text: str) -> list[list[str]]:
    """The arguments of every kinst command that is shown after a `$ `, or in an sh block."""
    joined = text.replace("\\e\n", " ").replace("\\\n", " ")
    found = re.findall(r"^(?:\$ (?:\.venv/bin/)?|\.venv/bin/)kinst (.*)$", joined, re.MULTILINE)
    return [shlex.split(line) for line in found]


EXAMPLES = commands(README) + commands(COMMAND) + commands(PROVIDER)


def test_readme_names_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for goal in ("trace", "test"):
        assert f"make {goal}" in README
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
    for goal in re.findall(r"`make ([\w-]+)`", README):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE), goal


def test_links_of_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_long_options() -> None:
    """Those that kinst(1) lists are those that there are, in synopsis and in the list."""
    known = {name.rstrip("=") for name in LONG}
    listed = set(re.findall(r"^\.It .*Fl -([a-z-]+)", section(COMMAND, "OPTIONS"), re.MULTILINE))
    assert listed == known
    synopsis = set(re.findall(r"Fl -([a-z-]+)", section(COMMAND, "SYNOPSIS")))
    assert synopsis == known - {"help", "version"}
    others = {"passes", "refresh", "strict"}  # of bench, setup/fetch_kernel.py and mypy
    assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", README)) <= known | others


def test_short_options() -> None:
    tags = re.findall(r"^\.It (Fl .*)$", section(COMMAND, "OPTIONS"), re.MULTILINE)
    listed = {letter for tag in tags for letter in re.findall(r"Fl ([A-Za-z])\b", tag)}
    assert listed == set(SHORT.replace(":", "")) - {letter for o in REFUSED for letter in o[1:]}


def test_x_options() -> None:
    described = COMMAND.split('.Ss "-x OPTIONS"')[1].split(".Sh ")[0]
    tags = " ".join(re.findall(r"^\.It (Cm .*)$", described, re.MULTILINE))
    assert set(re.findall(r"[a-z]+", tags)) >= NAMES | set(OWN_NAMES)
    assert set(re.findall(r"[a-z]+", OPTIONS_OF_D)) >= NAMES | set(OWN_NAMES)


def test_stages_of_dump() -> None:
    text = section(COMMAND, "OPTIONS").split(".It Fl -dump")[1].split(".El")[0]
    assert set(re.findall(r"[a-z]+", text)) >= set(DUMP_STAGES)


@pytest.mark.parametrize("name", names())
def test_registers(name: str) -> None:
    """kinst(4) names every register of each ISA's regs[], and no other but those it says are not
    there; "R_X0 to R_X30" names all between."""
    parts = re.split(r"^\.Ss (\w+)$", section(PROVIDER, "REGISTERS"), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[name].replace("\n", " ")
    named = set(re.findall(r"\bR_[A-Z0-9]+\b", text))
    for stem, first, last in re.findall(r"(R_[A-Z]+)(\d+) to \.Li \1(\d+)", text):
        named |= {f"{stem}{number}" for number in range(int(first), int(last))}
    isa = load(name)
    assert named == {r.d_name for r in isa.registers} | set(isa.unavailable_registers)


@pytest.mark.parametrize(
    ("page", "name", "number"), [(COMMAND, "KINST", 1), (PROVIDER, "KINST", 4)]
)
def test_structure_of_man_pages(page: str, name: str, number: int) -> None:
    """The order that mdoc(7) prescribes; displays and lists are closed; no blank lines."""
    macros = re.findall(r"^\.(\w+) ?(.*)$", page, re.MULTILINE)
    assert [m for m, _ in macros[:6]] == ["Dd", "Dt", "Os", "Sh", "Nm", "Nd"]
    assert re.fullmatch(r"[A-Z][a-z]+ \d{1,2}, \d{4}", macros[0][1])
    assert macros[1][1] == f"{name} {number}"
    heads = [text for macro, text in macros if macro == "Sh"]
    assert heads[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert len(heads) == len(set(heads))
    order = ["DESCRIPTION", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "DIAGNOSTICS",
             "SEE ALSO", "BUGS"]  # fmt: skip
    places = [heads.index(head) for head in order if head in heads]
    assert places == sorted(places)
    open_blocks: list[str] = []
    for macro, _ in macros:
        if macro in ("Bl", "Bd"):
            open_blocks.append(macro)
        elif macro in ("El", "Ed"):
            assert open_blocks.pop() == {"El": "Bl", "Ed": "Bd"}[macro]
        elif macro == "Sh":
            assert not open_blocks
    assert not open_blocks
    assert not re.search(r"[ \t]$", page, re.MULTILINE)
    assert "\n\n" not in page


def test_every_page_has_examples() -> None:
    assert len(commands(README)) >= 8
    assert len(commands(COMMAND)) >= 5
    assert len(commands(PROVIDER)) >= 1


@pytest.mark.parametrize("words", EXAMPLES, ids=lambda words: " ".join(words)[:60])
def test_examples_compile(words: list[str]) -> None:
    """Each command shown is understood, and its D compiles for its ISA."""
    request = parse(words).request
    assert request.programs or request.list_probes
    isa = request.vm or "amd64"
    kernel = fetch.prepared(isa)
    assert kernel is not None, "run `make setup`"
    places = Places(lambda: kernel.debug, dict, cache_folder(), lambda part: None)
    compiled = compile_request(request, load(isa), TARGET_PID, FileTypes(places))
    assert compiled.program.clauses or request.list_probes
    assert not request.command or not request.initrd


def test_trace_script_shows_what_readme_says() -> None:
    """The programs of make trace are the ones whose output README has."""
    script = (ROOT / "setup/trace.sh").read_text()
    assert "kinst::vfs_read:$1" in script and "one_instruction 19" in script
    for program in re.findall(r"-n '(.*?)'", script):
        assert f"-n '{program}'" in README


def test_architecture_names_modules_that_there_are() -> None:
    """With their folder, or by their name alone behind one that has it."""
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)(?:`|,)", ARCHITECTURE))
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("kinst/**/*.py")]
    files += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*.py")]
    assert len(named) > 30
    for name in named:
        plain = name.replace("isa/ISA/", "isa/amd64/")
        assert any(f"/{file}".endswith(f"/{plain}") for file in files), name
    packages = re.findall(r"^\| `(\w+)` \| \d \|", ARCHITECTURE, re.MULTILINE)
    assert {"session", "cli"} < set(packages)
    assert set(packages) - {"session", "cli"} == {
        path.parent.name for path in (ROOT / "kinst").glob("*/__init__.py")
    }
