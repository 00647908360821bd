"""The documents match the code: commands, options, registers, links, module names, pictures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinst.cli.commands import command
from kinst.cli.commands import commands as named
from kinst.cli.options import options, parse
from kinst.core.paths import cache_folder
from kinst.dlang.vocabulary.d_options import NAMES, OWN_NAMES
from kinst.image.debug_info import DebugFiles
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.isa import load, names
from kinst.kernels import fetch
from kinst.session.compile import compile_request
from kinst.session.options import DUMP_STAGES
from kinst.systems import of_host
from tests import ROOT
from tools.decision_index import decisions, index
from tools.page_examples import page_examples
from tools.record_terminal import PICTURES

README = (ROOT / "README.md").read_text()
COMMAND = (ROOT / "docs/kinst.1").read_text()
PROVIDER = (ROOT / "docs/kinst.4").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
OPTIONS_OF_D = (ROOT / "docs/d.md").read_text().split("## Options")[1].split("## ")[0]
TARGET_PID = 100


def section(page: str, name: str) -> str:
    """Return the text of one section of a man page."""
    parts = re.split(r"^\.Sh (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


def kinst_words(command: str) -> list[str]:
    """Return the arguments of a kinst command, up to a pipe."""
    name, *words = shlex.split(command.replace("\\\n", " "), comments=True)
    assert name == "kinst", command
    return words[: words.index("|")] if "|" in words else words


def commands(document: str) -> list[list[str]]:
    """Return the arguments of every kinst command that a document shows."""
    shown = [c.text for one in page_examples() if one.document == document for c in one.commands]
    return [kinst_words(text) for text in shown]


DOCUMENTS = ("README.md", "docs/tutorial.md", "docs/kinst.1", "docs/kinst.4", "kinst --help")
PICTURED = [line for lines in PICTURES.values() for line in lines if line.startswith("kinst ")]
EXAMPLES = [
    *(words for document in DOCUMENTS for words in commands(document)),
    *map(kinst_words, PICTURED),
]


def test_readme_names_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for goal in ("trace", "test"):
        assert f"make {goal}" in README
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
    for goal in re.findall(r"`make ([\w-]+)`", README + TUTORIAL + CONTRIBUTING):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE), goal


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_readme_links_every_page_of_docs() -> None:
    """README links each page directly, or links a page that does."""
    reached, new = set(), [ROOT / "README.md"]
    while new:
        page = new.pop()
        if page not in reached and page.exists():
            reached.add(page)
            links = re.findall(r"\]\(([^)#]+)", page.read_text()) if page.suffix == ".md" else []
            new += [(page.parent / link).resolve() for link in links]
    assert set(PAGES) <= reached
    assert {path for path in ROOT.glob("docs/*") if path.is_file()} <= reached


def test_headings_that_links_name() -> None:
    for page in PAGES:
        for name, heading in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
            text = (page.parent / name if name else page).read_text()
            heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert heading in known, f"{page}: {name}#{heading}"


def listed_options() -> dict[str, bool]:
    """Return the options that kinst(1) lists, each with whether it takes a value."""
    listed: dict[str, bool] = {}
    for tag in re.findall(r"^\.It (Fl .*)$", section(COMMAND, "OPTIONS"), re.MULTILINE):
        for name, more in re.findall(r"Fl (-?[A-Za-z][a-z-]*)\b([^,]*)", tag):
            listed[f"-{name}"] = listed.get(f"-{name}", False) or bool(re.search("Ar|Cm", more))
    return listed


def test_options_of_the_man_page() -> None:
    """The page lists exactly the options of the table, with a value if they take one."""
    table = {name: bool(one.value) for name, one in options().items() if not one.refused}
    assert listed_options() == table


def test_long_options() -> None:
    """The man page's synopsis and other pages name only options that exist."""
    known = {name[2:] for name in options() if name.startswith("--")}
    synopsis = set(re.findall(r"Fl -([a-z-]+)", section(COMMAND, "SYNOPSIS")))
    assert synopsis == known - {"help", "version"}
    own = set(re.findall(r"--([a-z-]+)", "".join(command(name).HELP for name in named())))
    others = {"passes", "strict"} | own  # options of bench and mypy, and of kinst's commands
    for page in (README, TUTORIAL, CONTRIBUTING):
        assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", page)) <= known | others


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
    """kinst(4) names each register in regs[] of each ISA, and otherwise only those it says are
    missing.

    "R_X0 to R_X30" stands for all in between.
    """
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
    """Sections have the order that mdoc(7) prescribes, displays and lists are closed, and there
    are no blank lines."""
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
    least = {"README.md": 5, "docs/tutorial.md": 14, "docs/kinst.1": 5, "docs/kinst.4": 1}
    for document, number in least.items():
        assert len(commands(document)) >= number, document
    assert len(PICTURED) >= 4 and len(EXAMPLES) >= 30


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words,
            marks=pytest.mark.full if {f"--vm={isa}" for isa in names()} & {*words} else (),
            id=" ".join(words)[:60],
        )
        for words in EXAMPLES
    ],
)
def test_examples_compile(words: list[str]) -> None:
    """Every command in the documents parses, and its D compiles for its ISA."""
    if words[0] in named():
        return  # tests of that command compile its examples
    request = parse(words).request
    assert request.programs or request.list_probes
    isa = request.machine.isa or "amd64"
    kernel = fetch.prepared(isa)
    assert kernel is not None, "run `make setup`"
    places = ImagePaths(lambda: kernel.debug, dict, DebugFiles(cache_folder()))
    dialect = of_host().dialect()
    compiled = compile_request(
        request, load(isa), TARGET_PID, FileTypes(places, lambda: dialect.tracepoint_prototypes)
    )
    assert compiled.program.clauses or request.list_probes
    assert not request.command or not request.machine.initrd


def test_trace_script_shows_what_readme_says() -> None:
    """README shows the output of the programs that make trace runs."""
    script = (ROOT / "setup/trace.sh").read_text()
    assert "kinst::vfs_read:$1" in script and "one_instruction 19" in script
    for program in re.findall(r"-n '(.*?)'", script):
        assert f"-n '{program}'" in README


DECISIONS = decisions()


@pytest.mark.parametrize(
    "page", [ROOT / "docs/architecture.md", *DECISIONS], ids=lambda page: page.stem[:30]
)
def test_pages_name_modules_that_there_are(page: Path) -> None:
    """Modules that documents name, by path or by file name alone, exist."""
    named = set(re.findall(r"`((?:[\w*]+/)*\w+\.py)(?:`|,)", page.read_text()))
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("kinst/**/*.py")]
    files += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")]
    for name in named:
        plain = re.sub(r"/(ISA|NAME|\*)/", "/amd64/", name)
        if "NAME.py" not in name:
            assert any(f"/{file}".endswith(f"/{plain}") for file in files), name


def test_architecture_has_every_package() -> None:
    packages = re.findall(r"^\| `(\w+)` \| \d \|", ARCHITECTURE, re.MULTILINE)
    known = {path.parent.name for path in (ROOT / "kinst").glob("*/__init__.py")}
    assert len(packages) == len(set(packages))
    assert known - {"session", "cli"} <= set(packages)
    assert {"session", "cli"} < set(packages)
    assert set(packages) <= known | {"session", "cli"}
    assert len(re.findall(r"`\w+/[\w/]+\.py`", ARCHITECTURE)) > 20


def test_decisions_have_their_parts() -> None:
    """Each decision has a title, a place, and three headings with text; numbers have no gaps."""
    assert len(DECISIONS) >= 40
    for number, page in enumerate(DECISIONS, start=1):
        form = rf"# {number}\. .+\n\nWhere: `.+`\n" + "".join(
            rf"\n## {head}\n\n(?:(?!#).+\n(?:\n(?!#))?)+" for head in ("Context", "Decision", "Why")
        )
        assert page.name.startswith(f"{number:04}-")
        assert re.fullmatch(form, page.read_text()), page.name


def test_list_of_decisions_is_up_to_date() -> None:
    """Run python tools/decision_index.py if this fails."""
    assert (ROOT / "docs/decisions/README.md").read_text() == index()


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_picture_shows_its_commands(name: str) -> None:
    """Run python tools/record_terminal.py, which uses no network, if this fails."""
    picture = (ROOT / f"docs/pictures/{name}.svg").read_text()
    root = ElementTree.fromstring(picture)
    shown = " ".join("".join(root.itertext()).replace("\xa0", " ").split())
    for line in PICTURES[name]:
        # The picture splits typed text into pieces by style and by line.
        for part in line.split("\n"):
            assert " ".join(part.split()) in shown, part
    assert "@font-face" not in picture and "url(http" not in picture
    assert any(f"pictures/{name}.svg" in page.read_text() for page in PAGES)
