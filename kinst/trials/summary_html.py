"""Summary of a sweep as one self-contained HTML page.

Tested by tests/cli/commands/test_inject.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kinst.trials.outcomes import OUTCOMES, Try
from kinst.trials.summary import Summary, repeated

_STYLE = """
:root { color-scheme: light dark; --rule: #8886; --faint: #888; }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 2em; }
pre, code { font: 12px/1.4 ui-monospace, monospace; }
pre { overflow: auto; border: 1px solid var(--rule); border-radius: 4px; padding: .6em; }
details { border-top: 1px solid var(--rule); padding: .5em 0; }
summary { cursor: pointer; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: 2px 1em 2px 0; vertical-align: top; }
.faint { color: var(--faint); }
b.outcome { display: inline-block; min-width: 5em; border-radius: 3px; padding: 0 .4em; color: #fff;
  background: #777; text-align: center; }
b.panic, b.hang, b.oops { background: #b3261e; } b.warn, b.leak, b.broken { background: #b45309; }
b.errno { background: #6d4bb0; } b.survived, b.failed { background: #2e7d4f; }
"""


def summary_html(summary: Summary) -> str:
    """Return the page: the faults with stacks and logs, then all tries."""
    parts = [
        f"<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>{escape(summary.title)}</title>"
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(summary.title)}</h1>",
        f"<p>{escape(summary.figures)}. Linux {escape(summary.kernel)}.</p>"
        if summary.kernel
        else f"<p>{escape(summary.figures)}.</p>",
        f"<p>{escape(summary.left_out)}.</p>" if summary.left_out else "",
        "<h2>Faults</h2>",
    ]
    found = summary.found
    parts += [_fault(summary, one, count) for one, count in found] or ["<p>None were found.</p>"]
    parts += ["<h2>All tries</h2>", "".join(_table(summary))]
    parts += [f"<h2>The D program</h2><pre>{escape(summary.program)}</pre>"]
    return "\n".join(parts) + "\n"


def _outcome(name: str) -> str:
    told = escape(OUTCOMES.get(name, ""))
    return f'<b class="outcome {escape(name)}" title="{told}">{escape(name)}</b>'


def _fault(summary: Summary, one: Try, count: int) -> str:
    notes = [f"{summary.unit} {one.number}", repeated(one), f"{count} tries" * (count > 1)]
    faint = escape(", ".join(note for note in notes if note))
    parts = [
        f"<details open><summary>{_outcome(one.outcome)} <code>{escape(one.site)}</code>"
        f' {escape(one.title)} <span class="faint">{faint}</span></summary>',
    ]
    for heading, lines in (
        ("stack", one.stack), ("the kernel's log", one.log), ("output", one.output),
    ):  # fmt: skip
        if lines:
            text = escape("\n".join(lines))
            parts.append(f'<p class="faint">{heading}</p><pre>{text}</pre>')
    parts.append(f"<p>Repeat: <code>{escape(summary.repeat(one))}</code></p></details>")
    return "".join(parts)


def _table(summary: Summary) -> Iterator[str]:
    yield f"<table><tr><th>{escape(summary.unit)}<th>outcome<th>call site<th>function<th>returned"
    yield "<th>seconds</tr>"
    for one in sorted(summary.tries, key=lambda one: one.number):
        yield (
            f"<tr><td>{one.number}<td>{_outcome(one.outcome)}<td><code>{escape(one.site)}</code>"
            f"<td><code>{escape(one.function)}</code><td>{escape(one.returned)}"
            f"<td>{one.seconds:.1f}</tr>"
        )
    yield "</table>"
