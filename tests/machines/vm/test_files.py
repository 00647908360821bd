"""The host's folders in a guest: which are shared, how commands are told where they are, and the
server itself, with QEMU's requests."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.machines.vm import files
from kinst.machines.vm.files import FileServer, Share, Surroundings, in_surroundings, shares
from tests.machines.booted import wait_for

FEATURES, ANSWER = struct.Struct("<3I"), struct.Struct("<3IQ")  # vhost-user: request, flags, size


def test_which_folders_are_shared() -> None:
    root, inside, beside = Path("/srv/tree"), Path("/srv/tree/home/me"), Path("/work")
    assert shares(None, []) == ()
    assert shares(Path("/"), [beside]) == (Share("root", Path("/")), Share("rw0", beside, "/work"))
    assert shares(root, [inside, beside]) == (
        Share("root", root), Share("rw0", inside, "/home/me"), Share("rw1", beside, "/work"),
    )  # fmt: skip
    assert [share.writable for share in shares(root, [beside])] == [False, True]
    assert shares(None, [beside]) == (Share("rw0", beside, "/work"),)


def test_the_working_folder_within_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert files.surroundings(Path("/")).folder == str(tmp_path / "a/b")
    assert files.surroundings(tmp_path).folder == "/a/b"
    assert files.surroundings(tmp_path / "other").folder == "/"


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    return folder


def test_the_surroundings_reach_the_command(awkward: Path) -> None:
    """The environment reaches the command through a shell that has none, as in the guest."""
    environment = {
        "PATH": os.environ["PATH"], "QUOTED": "a 'b' \"c\" $d `e` \\", "LINES_": "one\ntwo\n",
        "BASH_FUNC_f%%": "() { :; }", "EMPTY": "", "ODD": b"\xff".decode(errors="surrogateescape"),
        "PWD": "/elsewhere",
    }  # fmt: skip
    text = in_surroundings("pwd; env -0; exit 7", Surroundings(str(awkward), environment))
    done = subprocess.run(
        ["/bin/sh", "-c", text.encode(errors="surrogateescape")], env={}, capture_output=True
    )
    assert done.returncode == 7 and not done.stderr
    where, _, variables = done.stdout.partition(b"\n")
    assert where == os.fsencode(awkward)
    found = dict(line.split(b"=", 1) for line in variables.split(b"\0") if line)
    for name in ("QUOTED", "LINES_", "EMPTY", "ODD"):
        assert found[name.encode()] == environment[name].encode(errors="surrogateescape")
    assert found[b"PWD"] == os.fsencode(awkward) and b"BASH_FUNC_f%%" not in found


@pytest.mark.parametrize("name", ["./pids", "pids"])
def test_a_simple_command_runs_in_the_shell_s_process(name: str, awkward: Path) -> None:
    """Its id is $target: dash would start another process for it."""
    program = awkward / "pids"
    program.write_text("#!/bin/sh\necho $$ $@\n")
    program.chmod(0o755)
    for root in (Path("/"), awkward):
        folder = str(awkward) if root == Path("/") else "/"
        around = Surroundings(folder, {"PATH": f"/nothing:{folder}"}, root)
        assert around.has_program(name) and not around.has_program(f"{name}.c")
    text = in_surroundings(f" {name} a b=c", Surroundings(str(awkward), {"PATH": str(awkward)}))
    with subprocess.Popen(["/bin/sh", "-c", text], env={}, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read().decode().split() == [str(child.pid), "a", "b=c"]
    # A command of the shell itself stays one.
    text = in_surroundings("exit 7", Surroundings(str(awkward), {"PATH": str(awkward)}))
    assert subprocess.run(["/bin/sh", "-c", text], env={}).returncode == 7


def test_without_its_folder_the_command_does_not_run(tmp_path: Path) -> None:
    text = in_surroundings("echo ran", Surroundings(str(tmp_path / "not there"), {}))
    done = subprocess.run(["/bin/sh", "-c", text], env={}, capture_output=True)
    assert done.returncode != 0 and b"ran" not in done.stdout and b"not there" in done.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    made = FileServer(Share("data", tmp_path))
    yield made
    made.close()


def test_the_server_answers_its_only_client(server: FileServer) -> None:
    server.socket.settimeout(60)
    server.socket.sendall(FEATURES.pack(1, 1, 0))
    answer = b""
    while len(answer) < ANSWER.size:
        part = server.socket.recv(ANSWER.size - len(answer))
        assert part, server.trouble()
        answer += part
    request, flags, size, features = ANSWER.unpack(answer)
    assert (request, flags, size) == (1, 5, 8) and features
    assert server.trouble() == ""
    chardev = server.arguments()[1]
    assert chardev == f"socket,id=fs-data,fd={server.socket.fileno()}"


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    made = FileServer(Share("data", tmp_path / "not there"))
    try:
        assert wait_for(lambda: made.trouble() != "")
        assert "virtiofsd ended: " in made.trouble() and "not there" in made.trouble()
    finally:
        made.close()


def test_no_server_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(files, "_PLACES", ())
    with pytest.raises(TargetError, match=r"virtiofsd not found.*qemu-system-common"):
        FileServer(Share("data", tmp_path))
