"""Draw docs/pictures/chain.svg: the function for getppid(2), with every instruction counted.

    .venv/bin/python tools/chain_picture.py > docs/pictures/chain.svg

The picture has what `kinst -n 'kinst::__x64_sys_getppid: { @[probename] = count(); }' --dump plan`
prints for Debian's 6.1 kernel, without the code that saves flags.
"""

from __future__ import annotations

from html import escape

ROW, LEFT, MIDDLE, TOP = 26, 24, 520, 84
# For each instruction: offset, text, its patch ("" if the run above covers it), the counter of the
# basic block that begins there, and the trampoline's code in place of the instruction.
ROWS = (
    (0, "nop (ftrace's)", "jump", "A", "nop"),
    (5, "push rbx", "run of 6 bytes", "", "push rbx"),
    (6, "call __rcu_read_lock", "", "", "push f+11; jmp __rcu_read_lock"),
    (11, "xor edx, edx", "run of 7 bytes", "B", "xor edx, edx"),
    (13, "mov esi, 1", "", "", "mov esi, 1"),
    (18, "mov rax, gs:[current]", "jump", "", "mov rax, gs:[current]"),
    (27, "mov rdi, [rax + 0x980]", "jump", "", "mov rdi, [rax + 0x980]"),
    (34, "call __task_pid_nr_ns", "jump", "", "push f+39; jmp __task_pid_nr_ns"),
    (39, "mov ebx, eax", "run of 7 bytes", "C", "mov ebx, eax"),
    (41, "call __rcu_read_unlock", "", "", "push f+46; jmp __rcu_read_unlock"),
    (46, "movsxd rax, ebx", "run of 5 bytes", "D", "movsxd rax, ebx"),
    (49, "pop rbx", "", "", "pop rbx"),
    (50, "ret", "", "", "ret"),
)
INK, PALE, TEXT_FILL, CHAIN_FILL, COUNTER = "#1f2933", "#6b7785", "#eef2f7", "#e6f4ea", "#b3261e"


def text(x: int, y: int, words: str, fill: str = INK, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" fill="{fill}" {more}>{escape(words)}</text>'


def picture() -> str:
    height = TOP + (len(ROWS) + 4) * ROW + 70
    bold = 'font-weight="bold"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 {height}"'
        ' font-family="DejaVu Sans Mono, monospace" font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7"'
        f' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{PALE}"/></marker></defs>',
        text(LEFT, 34, "kernel text: f = __x64_sys_getppid", INK, bold),
        text(LEFT, 56, "each patch leads to its own trampoline", PALE),
        text(MIDDLE, 34, "scratch: the chain, in the order of the text", INK, bold),
        text(MIDDLE, 56, "one falls into the next; red counts a straight line", PALE),
    ]
    y, chain = TOP, TOP
    for offset, instruction, patch, counter, copy in ROWS:
        fill = TEXT_FILL if patch else "white"
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="390" height="{ROW - 2}" fill="{fill}"'
            f' stroke="{PALE}" stroke-width="{1 if patch else 0.4}"/>'
        )
        out.append(text(LEFT + 8, y + 17, f"f+{offset}"))
        out.append(text(LEFT + 62, y + 17, instruction, INK if patch else PALE))
        out.append(text(LEFT + 382, y + 17, patch, PALE, 'text-anchor="end" font-size="11"'))
        if counter:
            out.append(
                f'<rect x="{MIDDLE}" y="{chain}" width="430" height="{ROW - 2}" fill="#fdecea"/>'
            )
            out.append(text(MIDDLE + 8, chain + 17, f"inc gs:[{counter}]", COUNTER, bold))
            arrow_to, chain = chain, chain + ROW
        else:
            arrow_to = chain
        out.append(
            f'<rect x="{MIDDLE}" y="{chain}" width="430" height="{ROW - 2}" fill="{CHAIN_FILL}"/>'
        )
        out.append(text(MIDDLE + 8, chain + 17, copy))
        if patch:
            dashes = "" if counter else ' stroke-dasharray="4 4"'
            out.append(
                f'<path d="M{LEFT + 392} {y + 12} C {LEFT + 450} {y + 12} {MIDDLE - 50}'
                f' {arrow_to + 12} {MIDDLE - 3} {arrow_to + 12}" fill="none" stroke="{PALE}"'
                f'{dashes} marker-end="url(#tip)"/>'
            )
        y, chain = y + ROW, chain + ROW
    foot = height - 40
    out += [
        text(LEFT, foot, "solid: how a call goes on: once at f+0, and after each call's return"),
        text(LEFT, foot + 22, "dashed: control from elsewhere; by a stub that counts the entry",
             PALE),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(out)


if __name__ == "__main__":
    print(picture())
