"""A program under ptrace: its start, its end, its threads' registers, signals and children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.wire.ptrace import can_trace
from kinst.wire.traced_program import TracedProgram
from tests.host_processes import fields, wait_until_ended

pytestmark = pytest.mark.skipif(bool(can_trace()), reason="hosts of other instruction sets")
SECONDS = 120.0  # long enough for a busy machine
STEP = 1 << 12
# arch_prctl(ARCH_GET_GS) of each of several threads, one after another and at once, and of a child.
BASES = r"""
#include <asm/prctl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_barrier_t all;
static unsigned long base(void) {
  unsigned long value;
  syscall(SYS_arch_prctl, ARCH_GET_GS, &value);
  return value;
}
static void *once(void *to) { *(unsigned long *)to = base(); return 0; }
static void *together(void *to) { once(to); pthread_barrier_wait(&all); return 0; }
int main(void) {
  unsigned long found[4];
  pthread_t threads[4];
  printf("%lu\n", base());
  for (int k = 0; k < 20; k++) {
    pthread_create(threads, 0, once, found);
    pthread_join(threads[0], 0);
    printf("%lu\n", *found);
  }
  pthread_barrier_init(&all, 0, 4);
  for (int k = 0; k < 4; k++) pthread_create(threads + k, 0, together, found + k);
  for (int k = 0; k < 4; k++) pthread_join(threads[k], 0);
  for (int k = 0; k < 4; k++) printf("together %lu\n", found[k]);
  fflush(stdout);
  if (!fork()) { printf("child %lu\n", base()); fflush(stdout); _exit(0); }
  wait(0);
  return 5;
}
"""


# Its tracer is killed before it traces it.
KILLED = """
import os, signal
from kinst.wire import traced_program
def killed(request, pid, *more):
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
traced_program.ptrace_request = killed
traced_program.TracedProgram(("/bin/true",), "/bin/true", {})
"""


@contextmanager
def program(*words: str) -> Iterator[TracedProgram]:
    one = TracedProgram(words, words[0], dict(os.environ))
    try:
        yield one
    finally:
        one.close()


def test_a_program_waits_at_its_start_and_ends_with_its_status() -> None:
    with program("/bin/sh", "-c", "exit 7") as one:
        assert one.wait(0.1) is None
        one.resume()
        assert one.wait(SECONDS) == 7
        assert one.has_ended


def test_a_signal_that_kills_the_program_is_its_status() -> None:
    with program("/bin/sh", "-c", "kill -USR1 $$") as one:
        one.resume()
        assert one.wait(SECONDS) == 128 + 10


def test_what_cannot_be_executed_is_told() -> None:
    with pytest.raises(TargetError, match="cannot be executed"):
        TracedProgram(("none",), "/nowhere/none", {})


def test_each_thread_has_a_base_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bases.c"
    source.write_text(BASES)
    subprocess.run(["gcc", "-pthread", "-o", tmp_path / "bases", source], check=True)
    with program(str(tmp_path / "bases")) as one:
        one.give_bases(range(0, 8 * STEP, STEP))
        one.resume()
        assert one.wait(SECONDS) == 5
        assert not one.trouble
    lines = capfd.readouterr().out.splitlines()
    first, serial, last = lines[0], lines[1:21], lines[-1]
    together = [line.split()[1] for line in lines[21:25]]
    assert first == "0" and set(serial) <= {str(k * STEP) for k in range(1, 8)}
    assert len({first, *together}) == 5
    assert last.startswith("child ") and last.split()[1] != first


def test_a_thread_that_has_ended_has_no_base(tmp_path: Path) -> None:
    """One thread after another: the first thread's base and another one are enough."""
    source = tmp_path / "serial.c"
    source.write_text(
        "#include <pthread.h>\nstatic void *nothing(void *to) { return to; }\n"
        "int main(void) { pthread_t one; for (int k = 0; k < 2000; k++) {"
        " pthread_create(&one, 0, nothing, 0); pthread_join(one, 0); } return 5; }\n"
    )
    subprocess.run(["gcc", "-pthread", "-o", tmp_path / "serial", source], check=True)
    with program(str(tmp_path / "serial")) as one:
        one.give_bases((0, STEP))
        one.resume()
        assert one.wait(SECONDS) == 5
        assert not one.trouble


def test_too_many_threads_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "bases.c"
    source.write_text(BASES)
    subprocess.run(["gcc", "-pthread", "-o", tmp_path / "bases", source], check=True)
    with program(str(tmp_path / "bases")) as one:
        one.give_bases((0, STEP))
        one.resume()
        assert one.wait(SECONDS) == 5
        assert "more than 2 threads" in one.trouble


def test_a_program_is_stopped_and_goes_on() -> None:
    script = "import time\nfor n in range(10**9): time.sleep(0.001)"
    with program(sys.executable, "-c", script) as one:
        one.resume()
        time.sleep(0.3)
        one.stop()
        assert fields(one.pid)[0] == "t"
        assert one.registers()[0]["rip"]
        one.resume()
        assert one.wait(0.1) is None


def test_a_stopped_job_stays_stopped_until_it_is_continued() -> None:
    with program("/bin/sh", "-c", "kill -STOP $$; exit 3") as one:
        one.resume()
        assert one.wait(0.5) is None
        # It may not have stopped yet, on a busy machine.
        deadline, status = time.monotonic() + SECONDS, None
        while status is None and time.monotonic() < deadline:
            os.kill(one.pid, signal.SIGCONT)
            status = one.wait(0.1)
        assert status == 3


def test_a_stopped_program_ends_when_it_is_killed() -> None:
    """A killed thread stops once more, before it ends: kinst lets it go on there."""
    with program("/bin/sleep", "1000") as traced:
        traced.close()
        assert traced.has_ended


def test_a_program_whose_tracer_is_killed_first_does_not_stay_stopped() -> None:
    """The new program stops itself, and waits until its tracer seizes it."""
    ran = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran
    assert wait_until_ended(int(ran.stdout))
