"""Source lines of instructions, from .debug_line; the line table of a unit is read when it is
needed.

Format: DWARF 5, section 6.2. The line-number programs of DWARF 2 to 4 differ only in
their headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.dwarf.index import Index
from kinst.image.dwarf.numbers import (
    FORM_BLOCK,
    FORM_DATA1,
    FORM_DATA2,
    FORM_DATA4,
    FORM_DATA8,
    FORM_DATA16,
    FORM_LINE_STRP,
    FORM_STRING,
    FORM_STRP,
    FORM_UDATA,
    LNCT_DIRECTORY_INDEX,
    LNCT_PATH,
)
from kinst.image.dwarf.reader import Reader, source_path
from kinst.image.dwarf.sections import DebugSections

# Standard and extended opcodes (DWARF 5, tables 7.25 and 7.26).
(
    LNS_COPY, LNS_ADVANCE_PC, LNS_ADVANCE_LINE, LNS_SET_FILE, LNS_SET_COLUMN, LNS_NEGATE_STMT,
    LNS_BASIC_BLOCK, LNS_CONST_ADD_PC, LNS_FIXED_ADVANCE_PC,
) = range(1, 10)  # fmt: skip
LNE_END_SEQUENCE, LNE_SET_ADDRESS = 1, 2
FIXED_FORMS = {FORM_DATA1: 1, FORM_DATA2: 2, FORM_DATA4: 4, FORM_DATA8: 8, FORM_DATA16: 16}


@dataclass(frozen=True, slots=True)
class LineSpan:
    """Consecutive instructions of one source line.

    Attributes:
        low: first address, as linked.
        high: address after the last byte.
        file: path of the source file.
        line: line number.
        statement: whether `low` is a good address for a breakpoint on the line (is_stmt).
    """

    low: int
    high: int
    file: str
    line: int
    statement: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """Address for a breakpoint on a source line. A line without instructions of its own has the
    address of the first instruction that follows the line."""

    address: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class _Table:
    """A unit's line table: result of the line number program."""

    spans: Sequence[LineSpan] = ()
    statements: Sequence[Statement] = ()


@dataclass(frozen=True, slots=True)
class _Header:
    program: int
    end: int
    step: int
    default_statement: bool
    line_base: int
    line_range: int
    opcode_lengths: Sequence[int]
    files: Sequence[str]


class Lines:
    """The line tables of one debug file, by unit (the unit's offset in .debug_info)."""

    def __init__(self, sections: DebugSections, index: Index) -> None:
        self._sections = sections
        self._index = index
        self._tables: dict[int, _Table] = {}

    def spans(self, unit: int) -> Sequence[LineSpan]:
        """Return all spans of a unit's line table, sorted by address; () if the unit has no line
        table. Raises KinstError if the table is damaged."""
        return self._table(unit).spans

    def statements_of_line(
        self, unit: int, file: str, line: int, within: Sequence[tuple[int, int]]
    ) -> Sequence[Statement]:
        """Return the statements (breakpoint addresses) of a source line inside some address ranges,
        sorted by address.

        Args:
            unit: offset in .debug_info.
            file: the path or its last parts ("fork.c", "kernel/fork.c"); "" for any file.
            line: line number.
            within: (low, high) of each range.
        """
        tail = "/" + file.lstrip("/")
        return [
            statement
            for statement in self._table(unit).statements
            if statement.line == line
            and any(low <= statement.address < high for low, high in within)
            and (not file or ("/" + statement.file).endswith(tail))
        ]

    def _table(self, unit: int) -> _Table:
        if unit not in self._tables:
            where = self._index.lines_of(unit)
            table = _Table()
            if where.offset >= 0:
                try:
                    table = _read(self._sections, where.offset, where.home)
                except (IndexError, ValueError):
                    raise KinstError(
                        f"{self._sections.where}: damaged debug information: line table at"
                        f" {where.offset:#x} of the unit at {unit:#x}"
                    ) from None
            self._tables[unit] = table
        return self._tables[unit]

    def at(self, unit: int, address: int) -> LineSpan | None:
        """Return the span of a unit's line table that contains an address; None if no span does."""
        spans = self.spans(unit)
        at = bisect_right(spans, address, key=lambda span: span.low) - 1
        # Spans of discarded code may start at 0 and have a wrong end.
        while at >= 0 and spans[at].high <= address and spans[at].low + 0x1000 > address:
            at -= 1
        return spans[at] if at >= 0 and spans[at].low <= address < spans[at].high else None

    def of_line(
        self, unit: int, file: str, line: int, within: Sequence[tuple[int, int]]
    ) -> Sequence[LineSpan]:
        """Return the spans of a source line inside some address ranges (a function's), sorted by
        address.

        Args:
            unit: offset in .debug_info.
            file: the path or its last parts ("fork.c", "kernel/fork.c"); "" for any file.
            line: line number.
            within: (low, high) of each range.
        """
        return [span for span in self.of_file(unit, file, within) if span.line == line]

    def of_file(
        self, unit: int, file: str, within: Sequence[tuple[int, int]]
    ) -> Sequence[LineSpan]:
        """Return the spans of all lines of a source file inside some address ranges, sorted by
        address.

        Args:
            unit: offset in .debug_info.
            file: the path or its last parts ("fork.c", "kernel/fork.c"); "" for any file.
            within: (low, high) of each range.
        """
        tail = "/" + file.lstrip("/")
        return [
            span
            for span in self.spans(unit)
            if any(low <= span.low < high for low, high in within)
            and (not file or ("/" + span.file).endswith(tail))
        ]


class _Program(Reader):
    """Reader of a line number program and its header."""

    def text(self) -> bytes:
        """Read a NUL-terminated string and return it without the NUL. Raises ValueError if there is
        no NUL."""
        end = bytes(self.data).index(b"\0", self.at)
        text = bytes(self.data[self.at : end])
        self.at = end + 1
        return text


def _read(sections: DebugSections, offset: int, home: str) -> _Table:
    array = sections.array("line")
    length = int.from_bytes(array[offset : offset + 4].tobytes(), "little")
    wide = length == 0xFFFFFFFF
    if wide:
        length = int.from_bytes(array[offset + 4 : offset + 12].tobytes(), "little")
    start = offset + (12 if wide else 4)
    if start + length > len(array):
        raise IndexError
    data = array[start : start + length].tobytes()
    header = _header(sections, _Program(data), home.encode("utf-8", "surrogateescape"), wide)
    return _run(data, header)


def _header(sections: DebugSections, r: _Program, home: bytes, wide: bool) -> _Header:
    size = 8 if wide else 4
    version = r.number(2)
    if not 2 <= version <= 5:
        raise ValueError
    if version == 5:
        r.at += 2
    length = r.number(size)
    program = r.at + length
    step = r.number(1)
    if version >= 4:
        r.at += 1
    statement = bool(r.number(1))
    base = r.number(1)
    line_range = r.number(1)
    lengths = [r.number(1) for _ in range(max(r.number(1), 1) - 1)]
    files = _new_files(sections, r, home, size) if version == 5 else _old_files(r, home)
    return _Header(
        program, len(r.data), step, statement, base - 256 * (base >> 7), line_range, lengths, files
    )


def _path(home: bytes, folders: Sequence[bytes | None], folder: int, name: bytes) -> str:
    known = folders[folder] if folder < len(folders) else None
    return source_path(home, known, name).decode("utf-8", "surrogateescape")


def _old_files(r: _Program, home: bytes) -> Sequence[str]:
    folders: list[bytes | None] = [None]
    while text := r.text():
        folders.append(text)
    # There is no file 0.
    files = [""]
    while text := r.text():
        folder = r.uleb()
        r.uleb()
        r.uleb()
        files.append(_path(home, folders, folder, text))
    return files


def _new_files(sections: DebugSections, r: _Program, home: bytes, size: int) -> Sequence[str]:
    folders = [name for name, _ in _entries(sections, r, size)]
    return [_path(home, folders, folder, name) for name, folder in _entries(sections, r, size)]


def _entries(sections: DebugSections, r: _Program, size: int) -> Sequence[tuple[bytes, int]]:
    formats = [(r.uleb(), r.uleb()) for _ in range(r.number(1))]
    entries = []
    count = r.uleb()
    # Every entry has at least a byte.
    if count > len(r.data) or (count and not formats):
        raise ValueError
    for _ in range(count):
        name, folder = b"", 0
        for content, form in formats:
            value = _value(sections, r, form, size)
            if content == LNCT_PATH and isinstance(value, bytes):
                name = value
            elif content == LNCT_DIRECTORY_INDEX and isinstance(value, int):
                folder = value
        entries.append((name, folder))
    return entries


def _value(sections: DebugSections, r: _Program, form: int, size: int) -> bytes | int:
    if form == FORM_STRING:
        return r.text()
    if form == FORM_LINE_STRP:
        return sections.text("line_str", r.number(size))
    if form == FORM_STRP:
        return sections.text("str", r.number(size))
    if form == FORM_UDATA:
        return r.uleb()
    if form in FIXED_FORMS:
        return r.number(FIXED_FORMS[form])
    if form == FORM_BLOCK:
        r.take(r.uleb())
        return 0
    raise ValueError


@dataclass(slots=True)
class _LineState:
    """Registers of the line number program's state machine."""

    address: int
    file: int
    line: int
    statement: bool


class _Statements:
    """Collects the statements (breakpoint addresses) of a line table from its rows, as gdb does.

    A row has no instructions if the next row has the same address. As in gdb, such a row still
    makes a statement, unless the next row is of another file. There is one difference to gdb: the
    row makes no statement if it only repeats the line of the row before it. The instructions of
    that earlier row may belong to an inlined copy, and the repeated row may lie outside of it.

    Source: gdb 13, record_line() of gdb/dwarf2/read.c and of gdb/buildsym.c.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._rows: list[_LineState] = []
        self._last: _LineState | None = None
        self._goes_on = False  # whether the last row goes on with the line of the row before it

    def add(self, row: _LineState) -> None:
        last = self._last
        same_line = last is not None and (last.file, last.line) == (row.file, row.line)
        if last is not None and last.address == row.address:
            if self._goes_on and not same_line and self._rows and self._rows[-1] is last:
                self._rows.pop()
            self._goes_on = self._goes_on and same_line
        else:
            self._goes_on = same_line
        if last is not None and last.file != row.file and last.address == row.address:
            if not row.statement and self._rows and self._rows[-1].address == row.address:
                return
            self.end(row.address)
        self._last = row
        if row.statement and row.line:
            self._rows.append(row)

    def end(self, address: int) -> None:
        """End a sequence of rows of one source file, that of the last row, at an address. Drop the
        sequence's rows at this very address: they have no instructions."""
        file = self._last.file if self._last is not None else 0
        while self._rows and (self._rows[-1].address, self._rows[-1].file) == (address, file):
            self._rows.pop()
        self._last = None

    def all(self) -> list[Statement]:
        files = self._files
        named = [
            Statement(row.address, files[row.file] if row.file < len(files) else "", row.line)
            for row in self._rows
        ]
        return sorted(dict.fromkeys(named), key=lambda one: one.address)


def _run(data: bytes, header: _Header) -> _Table:
    """Run a unit's line number program and return its table. The span of a row ends where the next
    row of its sequence starts."""
    r = _Program(data, header.program)
    spans: list[LineSpan] = []
    statements = _Statements(header.files)
    state = _LineState(0, 1, 1, header.default_statement)
    before: _LineState | None = None
    first_special = len(header.opcode_lengths) + 1

    def emit() -> None:
        nonlocal before
        if before is not None and before.address < state.address and before.line:
            numbered = before.file < len(header.files)
            file = header.files[before.file] if numbered else ""
            spans.append(
                LineSpan(before.address, state.address, file, before.line, before.statement)
            )
        before = _LineState(state.address, state.file, state.line, state.statement)
        statements.add(before)

    def special(opcode: int) -> None:
        state.address += (opcode - first_special) // (header.line_range or 1) * header.step

    while r.at < header.end:
        opcode = r.number(1)
        if opcode >= first_special:
            special(opcode)
            state.line += header.line_base + (opcode - first_special) % (header.line_range or 1)
            emit()
        elif opcode == 0:
            length = r.uleb()
            end = r.at + length
            kind = r.number(1) if length else 0
            if kind == LNE_END_SEQUENCE:
                emit()
                statements.end(state.address)
                before = None
                state = _LineState(0, 1, 1, header.default_statement)
            elif kind == LNE_SET_ADDRESS:
                state.address = r.number(length - 1)
            r.at = end
        elif opcode == LNS_COPY:
            emit()
        elif opcode == LNS_ADVANCE_PC:
            state.address += r.uleb() * header.step
        elif opcode == LNS_ADVANCE_LINE:
            state.line += r.sleb()
        elif opcode == LNS_SET_FILE:
            state.file = r.uleb()
        elif opcode == LNS_NEGATE_STMT:
            state.statement = not state.statement
        elif opcode == LNS_CONST_ADD_PC:
            special(255)
        elif opcode == LNS_FIXED_ADVANCE_PC:
            state.address += r.number(2)
        else:
            # All other opcodes have only operands to step over.
            for _ in range(header.opcode_lengths[opcode - 1]):
                r.uleb()
    return _Table(sorted(spans, key=lambda span: span.low), statements.all())
