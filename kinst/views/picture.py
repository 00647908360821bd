"""Parts that all SVG pictures share: colours for the light and the dark theme, a heading, texts and
the document around them.

Horizontal lengths are percentages and vertical lengths are pixels, so that a picture is as wide as
its window while its letters keep their size. An element of class `wide` is shown only in a wide
window, an element of class `narrow` only in a narrow window.

Tested by tests/views/test_distributions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kinst.core.dataclass import dataclass

NARROW = 640  # pixels; a window of at most this width shows the narrow picture
WIDE_LETTERS, NARROW_LETTERS = 138, 55  # number of letters of 12 pixels in a line
MARGIN = 16  # pixels
# Colours, light and dark, by the name of a CSS variable.
_COLOURS = {
    "paper": ("#ffffff", "#17191c"),
    "ink": ("#1d2126", "#e8eaed"),
    "soft": ("#5c6570", "#a3abb5"),
    "rule": ("#e3e6ea", "#30353b"),
    "axis": ("#98a1ab", "#69727c"),
    "bar": ("#2f6db5", "#6aa5e8"),
    "s1": ("#fbe08d", "#3a1a52"),
    "s2": ("#fbcb6b", "#5b1f63"),
    "s3": ("#f8b154", "#84286a"),
    "s4": ("#f19143", "#ab3566"),
    "s5": ("#e36a3c", "#cf4a57"),
    "s6": ("#cb4545", "#e86a47"),
    "s7": ("#a52a52", "#f68f46"),
    "s8": ("#741a58", "#fbb961"),
    "s9": ("#420e4c", "#fde69b"),
}
SHADES = 9  # s1 to s9


def palette() -> str:
    """Return the colours of both themes as CSS variables."""
    light, dark = (
        " ".join(f"--{name}: {both[k]};" for name, both in _COLOURS.items()) for k in (0, 1)
    )
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )


STYLE = (
    palette()
    + f"""\
svg.picture {{ background: var(--paper); max-width: 100%; }}
svg.picture text {{ font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; fill: var(--soft); }}
svg.picture .title {{ font-size: 17px; font-weight: 600; fill: var(--ink); }}
svg.picture .code {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: 11.5px; }}
svg.picture .name {{ font-weight: 600; fill: var(--ink); }}
.paper {{ fill: var(--paper); }}
.narrow {{ display: none; }}
@media (max-width: {NARROW}px) {{ .narrow {{ display: inline; }} .wide {{ display: none; }} }}
"""
)


@dataclass(frozen=True, slots=True)
class Heading:
    """The text above a picture.

    Attributes:
        title: what was traced: a command, or a title that the user gave.
        program: D text; "" if it is not known.
        notes: figures, such as the number of values.
    """

    title: str
    program: str = ""
    notes: Sequence[str] = ()

    @property
    def height(self) -> int:
        return 46 + 20 * bool(self._program) + 18 * bool(self.notes)

    @property
    def _program(self) -> str:
        shown = " ".join(self.program.split())
        return "" if shown == " ".join(self.title.split()) else shown

    def svg(self) -> str:
        """Return the heading as SVG text: a line each for title, program and notes, with the whole
        text as a tooltip."""
        lines, y = [_line("title", self.title, 28, 1.75)], 28
        if self._program:
            y += 20
            lines.append(_line("code", self._program, y, 1.06))
        if self.notes:
            y += 18
            lines.append(_line("note", " · ".join(self.notes), y, 0.95))
        return "\n".join(lines)


def _line(kind: str, whole: str, y: int, size: float) -> str:
    """Return a line of the heading as SVG text, cut to fit wide and narrow windows.

    Args:
        kind: CSS class.
        whole: the text, of any length.
        y: position of the line from the top, in pixels.
        size: size of the letters, relative to 12 pixels.
    """
    whole = " ".join(whole.split())
    wide, narrow = (cut(whole, round(most / size)) for most in (WIDE_LETTERS, NARROW_LETTERS))
    both = [(wide, "")] if wide == narrow else [(wide, " wide"), (narrow, " narrow")]
    return "".join(
        f'<text class="{kind}{width}" x="{MARGIN}" y="{y}">'
        f"<title>{escape(whole)}</title>{escape(shown)}</text>"
        for shown, width in both
    )


def cut(line: str, letters: int) -> str:
    """Return a text, cut to a number of letters, with an ellipsis if it is longer."""
    return line if len(line) <= letters else f"{line[: letters - 1].rstrip()}…"


def text(
    x: str, y: float, shown: str, *, anchor: str = "start", kind: str = "", dx: int = 0
) -> str:
    """Return an SVG text element.

    Args:
        x: horizontal position with its unit, such as 12%.
        y: vertical position of the base line, in pixels.
        shown: the text.
        anchor: value of text-anchor.
        kind: CSS class.
        dx: pixels to move the text to the right.
    """
    more = f' class="{kind}"' if kind else ""
    more += f' dx="{dx}"' if dx else ""
    return f'<text{more} x="{x}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'


def svg_document(
    parts: Sequence[str], heading: Heading, width: int, height: int, style: str
) -> str:
    """Return an SVG document that a browser shows on its own. The picture is as wide as the window,
    but not wider than `width`.

    Args:
        parts: elements of the picture.
        heading: text above the picture.
        width: greatest width, in pixels.
        height: height, in pixels.
        style: CSS rules in addition to STYLE.
    """
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" width="{width}" '
        f'height="{height}">\n<title>{escape(heading.title)}</title>\n<style>\n{STYLE}'
        f"@media (max-width: {width}px) {{ svg.picture {{ width: 100%; }} }}\n{style}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{heading.svg()}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
