"""While LLVM compiles, a signal's handler runs immediately, and its exception ends the wait."""

from __future__ import annotations

import signal
import threading
import time

import llvmlite.binding as llvm
import pytest

from kinst.codegen.aside import aside

LINES = 3000  # of assembly, which LLVM optimises for some seconds


class ArrivedError(Exception):
    """The exception that the handler raises."""


def slow_assembly() -> str:
    """Return a function of many stores and branches that depend on one another."""
    lines = ["define i64 @f(i64 %v0, ptr %p) {", "  br label %b0"]
    for n in range(LINES):
        lines += [
            f"b{n}:",
            f"  %v{n + 1} = mul i64 %v{n}, {n * 2 + 3}",
            f"  %a{n} = getelementptr i64, ptr %p, i64 %v{n + 1}",
            f"  store i64 %v{n + 1}, ptr %a{n}",
            f"  %c{n} = icmp ult i64 %v{n + 1}, {n}",
            f"  br i1 %c{n}, label %end, label %b{n + 1}",
        ]
    incoming = ", ".join(f"[ %v{n}, %b{n} ]" for n in range(LINES))
    lines += [f"b{LINES}:", "  br label %end", "end:"]
    lines += [f"  %r = phi i64 {incoming}, [ 0, %b{LINES} ]", "  ret i64 %r", "}"]
    return "\n".join(lines)


def test_a_signal_does_not_wait_for_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    begun, over = threading.Event(), threading.Event()
    text = slow_assembly()

    def work() -> bytes:
        module = llvm.parse_assembly(text)
        target = llvm.Target.from_triple("x86_64-unknown-none").create_target_machine(opt=2)
        begun.set()
        try:
            code: bytes = target.emit_object(module)
        finally:
            over.set()
        return code

    def arrived(number: int, frame: object) -> None:
        raise ArrivedError

    def send() -> None:
        begun.wait()
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, arrived)
    try:
        threading.Thread(target=send, daemon=True).start()
        with pytest.raises(ArrivedError):
            aside(work)
        assert not over.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert over.wait(300)


def test_results_and_errors_are_those_of_the_work() -> None:
    assert aside(lambda: 17) == 17

    def fails() -> None:
        raise ArrivedError

    with pytest.raises(ArrivedError):
        aside(fails)


def test_elsewhere_it_is_a_plain_call() -> None:
    seen: list[int] = []

    def run() -> None:
        aside(lambda: seen.append(threading.get_ident()))

    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert seen == [other.ident]
