"""Messages and questions of --live before it is in a kernel: missing tools, the module's
structures, the command.

No test here loads a module.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kinst.core.errors import KinstError, TargetError
from kinst.kernels import host_kernel
from kinst.machines.live import command, device, set_up
from tests.host_processes import wait_until_ended

NUMBERS = {0: "INFO", 1: "READ", 2: "SCRATCH", 3: "SEAL", 4: "PLANT", 5: "UNPLANT", 6: "BEAT",
           7: "TIMER", 8: "COUNTERS", 9: "GATHER", 10: "EMPTY", 11: "MISSED"}  # fmt: skip


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate root on amd64, with no module loaded and no lockdown."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(set_up, "_LOADED", tmp_path / "absent")
    monkeypatch.setattr(set_up, "_LOCKDOWN", tmp_path / "lockdown")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_structures_and_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    """Structures are as a C compiler sees kinst.h."""
    source = tmp_path / "sizes.c"
    lines = "".join(f'printf("%lu\\n", (unsigned long)KINST_{n});' for n in NUMBERS.values())
    source.write_text(
        '#include <stdio.h>\n#include <stddef.h>\n#include <sys/ioctl.h>\n#include "kinst.h"\n'
        f"int main(void) {{ {lines}"
        'printf("%zu\\n%zu\\n%zu\\n%zu\\n%d\\n%d\\n", sizeof(struct kinst_site),'
        " offsetof(struct kinst_site, old), offsetof(struct kinst_site, new),"
        " offsetof(struct kinst_site, several), KINST_VERSION, KINST_JUMP); return 0; }\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(["gcc", "-I", set_up.SOURCES, "-o", program, source], check=True)
    said = [int(line) for line in subprocess.check_output([program], text=True).split()]
    read, write = device._READ, device._WRITE
    wanted = [
        (0, read, device._INFO), (1, write, device._MEMORY), (2, read | write, device._SCRATCH),
        (3, write, device._SCRATCH), (4, read | write, device._PLANT), (5, read, device._WORD),
        (6, read, device._WORD), (7, write, device._TIMER), (8, read | write, device._SCRATCH),
        (9, write, device._SCRATCH),
    ]  # fmt: skip
    asked = [device._command(n, way, form.size) for n, way, form in wanted]
    missed = device._command(11, read | write, device._SCRATCH.size)
    assert said[:12] == [*asked, device._command(10, 0, 0), missed]
    row = device._SITE.pack(0, 1, b"old", b"new", True)
    places = [row.index(b"old"), row.index(b"new"), row.index(b"\1", row.index(b"new"))]
    assert said[12:16] == [len(row), *places]
    assert said[16:] == [device.VERSION, device.JUMP]


def test_every_reason_of_the_modules_has_words() -> None:
    header = (set_up.SOURCES / "kinst.h").read_text()
    names = re.search(r"enum kinst_why \{(.*?)\};", header, re.S)
    assert names
    count = len(re.findall(r"^\tKINST_\w+,", names[1], re.M))
    assert sorted(device._WHY) == list(range(1, count))


def test_the_module_is_of_this_package() -> None:
    """The package has exactly the sources that the module's Kbuild names."""
    objects = re.findall(r"(\w+)\.o\b", (set_up.SOURCES / "Kbuild").read_text())
    made_of = {f"{name}.c" for name in objects} - {"kinst.c"}
    assert {"Kbuild", "kinst.h", "parts.h", *made_of} == set(set_up._sources())
    assert 'MODULE_LICENSE("Dual BSD/GPL")' in (set_up.SOURCES / "device.c").read_text()


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TargetError, match=r"needs root.*sudo"):
        set_up.load()


def test_another_processor_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(TargetError, match=r"aarch64.*--vm"):
        set_up.load()


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_lockdown_is_told(root: Path, mode: str) -> None:
    (root / "lockdown").write_text(f"none {mode}\n".replace(mode, f"[{mode}]"))
    with pytest.raises(TargetError, match=f"locked down \\({mode}\\)"):
        set_up.load()


def test_dkms_builds_this_version() -> None:
    said = dict(
        line.split("=", 1) for line in (set_up.SOURCES / "dkms.conf").read_text().splitlines()
    )
    assert said["PACKAGE_VERSION"] == f'"{device.VERSION}"'
    assert said["PACKAGE_NAME"] == said["BUILT_MODULE_NAME[0]"] == f'"{set_up.NAME}"'


@pytest.mark.parametrize(
    ("by_name", "by_file", "asked", "told"),
    [
        ("", "never asked", "modprobe kinst", ""),
        ("no key", "never asked", "modprobe kinst", "DKMS has built: no key"),
        ("kinst not found in directory /lib", "", "insmod {file}", ""),
        ("kinst not found in directory /lib", "damaged", "insmod {file}", "has built: damaged"),
    ],
)
def test_what_dkms_has_built_is_loaded(
    root: Path, monkeypatch: pytest.MonkeyPatch, by_name: str, by_file: str, asked: str, told: str
) -> None:
    """A module that dkms built is loaded by name.

    modprobe knows compressed modules and checks signatures; insmod knows the former, and needs no
    list of modules.
    """
    there = root / platform.release() / "updates/dkms"
    there.mkdir(parents=True)
    (there / "kinst.ko.xz").write_bytes(b"")
    tools = root / "tools"
    tools.mkdir()
    for name, says in (("modprobe", by_name), ("insmod", by_file)):
        tool = tools / name
        tool.write_text(
            f'#!/bin/sh\necho {name} "$@" >{root}/asked\necho {says} >&2\ntest -z "{says}"\n'
        )
        tool.chmod(0o755)
    monkeypatch.setattr(set_up, "_MODULES", root)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    if told:
        with pytest.raises(TargetError, match=told):
            set_up.load()
    else:
        assert set_up.load()
    assert (root / "asked").read_text() == asked.format(file=there / "kinst.ko.xz") + "\n"


def test_missing_headers_are_told_with_their_package(root: Path) -> None:
    with pytest.raises(
        TargetError, match=r"headers of kernel 1\.2\.3-no.*linux-headers-1\.2\.3-no"
    ):
        set_up.built("1.2.3-no")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPERM, "not permitted.*locked down"),
        (errno.EKEYREJECTED, "signed modules only"),
        (errno.ENOEXEC, "Exec format.*dmesg"),
    ],
)
def test_a_kernel_that_takes_no_module_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(set_up, "built", lambda release: root / "kinst.ko")
    monkeypatch.setattr(set_up, "load_module", refuse)
    with pytest.raises(TargetError, match=words):
        set_up.load()


def test_who_has_the_device_open_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "DEVICE", tmp_path / "kinst")
    with device.DEVICE.open("w"):
        name = Path("/proc/self/comm").read_text().strip()
        assert device._holder() == f"{name} (process {os.getpid()})"
    assert device._holder() == "another process"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EBUSY, "another process .*one at a time"),
        (errno.ETXTBSY, "kprobe"),
        (errno.EPERM, "for root"),
        (errno.ENOENT, "No such file.*devtmpfs"),
    ],
)
def test_a_device_that_cannot_be_opened_is_told(number: int, words: str) -> None:
    message, hint = device._not_opened(OSError(number, os.strerror(number)))
    assert re.search(words, f"{message} {hint}")


def test_what_is_not_the_modules_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thing in (tmp_path / "file", Path("/dev/null")):
        if thing.parent == tmp_path:
            thing.touch()
        monkeypatch.setattr(device, "DEVICE", thing)
        with pytest.raises(TargetError, match="not the device of kinst's module"):
            device.Device()


def test_files_of_the_running_kernel_are_where_packages_put_them(tmp_path: Path) -> None:
    with pytest.raises(KinstError, match=r"linux-image-9\.9-dbg"):
        host_kernel.vmlinux(host_kernel.files(tmp_path, "9.9"), lambda what, part: None)
    debug = tmp_path / "usr/lib/debug/boot/vmlinux-9.9"
    modules = tmp_path / "usr/lib/debug/lib/modules/9.9"
    modules.mkdir(parents=True)
    debug.parent.mkdir()
    debug.touch()
    found = host_kernel.files(tmp_path, "9.9")
    assert host_kernel.vmlinux(found, lambda what, part: None) == debug
    assert found.folders == (modules,)


def test_a_kernel_of_a_debuginfod_server_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = tmp_path / "fetched"
    monkeypatch.setattr(host_kernel.debuginfod, "is_set", lambda: True)
    monkeypatch.setattr(host_kernel.debuginfod, "find_debuginfo", lambda build_id, say: fetched)
    found = host_kernel.files(tmp_path, "9.9")
    assert host_kernel.vmlinux(found, lambda what, part: None) == fetched


def held(text: str) -> tuple[command.StoppedCommand, list[bytes]]:
    output: list[bytes] = []
    return command.StoppedCommand(text, output.append), output


def test_a_command_waits_until_it_may_begin(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    one, output = held(f"touch {mark}; echo out; echo err >&2; echo $$; exit 3")
    assert one.wait(0.2) is None
    assert not mark.exists()
    one.start()
    assert one.wait(20.0) == 3
    assert mark.exists()
    assert b"".join(output).split() == [b"out", b"err", str(one.pid).encode()]
    one.end()


@pytest.mark.parametrize("text", ["sleep 3", " sleep  3"])
def test_a_plain_command_is_the_process_that_was_prepared(text: str) -> None:
    one, _ = held(text)
    one.start()
    deadline, name = time.monotonic() + 10, ""
    while name != "sleep" and time.monotonic() < deadline:
        name = Path(f"/proc/{one.pid}/comm").read_text().strip()
    one.end()
    assert name == "sleep"


def test_a_command_that_dies_has_the_status_of_a_shell() -> None:
    one, _ = held("kill -SEGV $$")
    one.start()
    assert one.wait(20.0) == 128 + signal.SIGSEGV
    one.end()


def test_a_command_and_what_it_has_started_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    one, _ = held(f"sleep 1000 & echo $! >{pids}; wait")
    one.start()
    deadline = time.monotonic() + 20
    while not (pids.exists() and pids.read_text().strip()) and time.monotonic() < deadline:
        one.wait(0.05)
    started = time.monotonic()
    one.end()
    assert time.monotonic() - started < 10
    assert wait_until_ended(int(pids.read_text()))


def test_a_command_that_leaves_a_writer_behind_ends_all_the_same(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    writer = f"(echo x; touch {begun}; while :; do echo x; sleep 0.01; done)"
    one, output = held(f"{writer} & until [ -e {begun} ]; do sleep 0.01; done; exit 5")
    one.start()
    assert one.wait(20.0) == 5
    one.end()
    assert output


def test_a_process_is_followed_to_its_end() -> None:
    child = subprocess.Popen(["sleep", "100"])
    one = command.FollowedProcess(child.pid)
    try:
        assert not one.wait(0.05)
        child.kill()
        assert one.wait(20.0)  # before its first wait
        assert one.wait(0.0)
    finally:
        one.close()
        child.wait()


def test_a_process_that_is_not_there_is_told() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(TargetError, match=f"-p {child.pid}: no such process"):
        command.FollowedProcess(child.pid)


def test_a_thread_is_not_followed() -> None:
    started, over = threading.Event(), threading.Event()
    number: list[int] = []

    def stay() -> None:
        number.append(threading.get_native_id())
        started.set()
        over.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    started.wait()
    try:
        with pytest.raises(TargetError, match="a thread of a process"):
            command.FollowedProcess(number[0])
    finally:
        over.set()
        thread.join()
