"""The scripts of examples/ without a kernel: first lines, index, and that they compile."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kinst.cli.options import parse
from kinst.core.paths import cache_folder
from kinst.image.debug_info import DebugFiles
from kinst.image.type_files import FileTypes, ImagePaths
from kinst.isa import load
from kinst.kernels import fetch
from kinst.session.compile import compile_request
from kinst.systems.linux.dialect import dialect
from tools.example_index import EXAMPLES, Script, index, read_script, scripts

SCRIPTS = scripts()
TARGET_PID = 100


def test_index_is_up_to_date() -> None:
    """Run python tools/example_index.py if this fails."""
    assert (EXAMPLES / "README.md").read_text() == index()


def test_each_asks_a_question() -> None:
    assert len(SCRIPTS) >= 100
    for script in SCRIPTS.values():
        assert "?" in script.question, script
    questions = [script.question for script in SCRIPTS.values()]
    assert len(set(questions)) == len(questions)


def test_first_lines_that_say_nothing_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.d"
    for text in ("BEGIN { exit(0); }\n", "/*\n * What?\n * Run: kinst -s examples/y.d\n */\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"x\.d"):
            read_script(file)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_compiles_as_its_first_lines_say(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script compiles with the options of its first lines, and uses all of them."""
    monkeypatch.chdir(EXAMPLES.parent)
    words = shlex.split(script.command)[1:]
    request = parse(words).request
    assert "deeds" not in script.command and "COMMAND" not in script.command
    kernel = fetch.prepared("amd64")
    assert kernel is not None, "run `make setup`"
    places = ImagePaths(lambda: kernel.debug, dict, DebugFiles(cache_folder()))
    types = FileTypes(places, lambda: dialect().tracepoint_prototypes)
    assert compile_request(request, load("amd64"), TARGET_PID, types).program.clauses
