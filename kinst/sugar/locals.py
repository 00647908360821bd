"""Expansion of locals->NAME in the syntax tree to an expression over regs[] and memory, and of
print(locals) to a print() of each variable.

A variable's location differs between instructions. So a clause that reads local variables is split
into several clauses, one for each set of instructions at which the variables have the same
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import INT64, ArrayType, DType, FloatType, StructType, VoidType
from kinst.core.errors import DError, KinstError, Span
from kinst.core.locals import Local, LocalPiece
from kinst.core.probe import ProbePattern
from kinst.dlang.api import parse_text
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse_expression
from kinst.dlang.types.conversions import size_of
from kinst.dlang.walk import find, replaced
from kinst.sugar.expand import Expansion

NAME = "locals"
MOST_NAMES = 8  # largest number of variables that a message lists


@dataclass(frozen=True, slots=True)
class MatchedInstruction:
    """An instruction that a description matches."""

    pattern: ProbePattern  # a description of this instruction alone
    address: int
    text: str  # name of the instruction in messages
    # Whether its probe fires at several instructions. Such a probe cannot be split: its
    # instructions stay in one clause.
    fixed: bool = False


# (instruction, variable, inlined function or "") -> the variable; raises KinstError for an unknown
# variable.
Find = Callable[[MatchedInstruction, str, str], Local]
# The instructions that a description matches.
Places = Callable[[ProbePattern], Sequence[MatchedInstruction]]
# (instruction, inlined function or "") -> the names of the function's variables; raises KinstError.
NamesAt = Callable[[MatchedInstruction, str], Sequence[str]]
# (instruction, variable, inlined function or "") -> a hint that names a nearby instruction at which
# the variable can be read.
Nearest = Callable[[MatchedInstruction, str, str], str]


def _is_local(node: object) -> bool:
    return (
        isinstance(node, tree.MemberNode)
        and node.op == "->"
        and isinstance(node.base, tree.NameNode)
        and node.base.name == NAME
    )


def _nodes(value: object) -> list[tree.MemberNode]:
    """Return every locals->NAME in a part of the syntax tree."""
    return [member for member in find(value, tree.MemberNode) if _is_local(member)]


def has_locals(program: tree.ProgramNode) -> bool:
    """Return whether any clause of a program reads a local variable of the traced kernel."""
    return any(map(_reads, program.clauses))


def _reads(clause: tree.ClauseNode) -> bool:
    return any(map(_is_print_locals, clause.statements)) or bool(
        _nodes((clause.statements, clause.predicate))
    )


def provisional(
    program: tree.ProgramNode,
    type_of: Callable[[ProbePattern, str], DType | None],
    names_of: Callable[[ProbePattern], Sequence[str]] = lambda _: (),
) -> tree.ProgramNode:
    """Replace every locals->NAME by a placeholder of the variable's type, and print(locals) by a
    printf(). The checker can check such a program before kinst knows which instructions the
    program's descriptions match.

    Args:
        type_of: returns the type of a variable in the function that a description names; None if
            the function has no such variable.
        names_of: returns the names of all variables in the function that a description names.

    Raises:
        DError: a clause reads a variable, but no description of the clause names a function that
            has it; or a clause has print(locals), but one of its descriptions names no function
            with local variables.
    """
    items: list[tree.ItemNode] = []
    for item in program.items:
        if isinstance(item, tree.ClauseNode) and _reads(item):
            item = _typed_clause(item, type_of, names_of)
        items.append(item)
    return replace(program, items=tuple(items))


def _typed_clause(
    clause: tree.ClauseNode,
    type_of: Callable[[ProbePattern, str], DType | None],
    names_of: Callable[[ProbePattern], Sequence[str]],
) -> tree.ClauseNode:
    def one(node: tree.ExprNode) -> tree.ExprNode | None:
        if _is_print_locals(node):
            try:
                without = [d.pattern for d in clause.descriptions if not names_of(d.pattern)]
            except KinstError as error:
                raise DError(error.message, node.span, "D_UNKNOWN", error.hint) from error
            if not without:
                return _stand_in(node.span)
            hint = "local variables need a description that names one function"
            message = f"{without[0]} has no local variables"
            raise DError(message, node.span, "D_IDENT_UNDEF", hint)
        if not _is_local(node):
            return None
        assert isinstance(node, tree.MemberNode)
        for description in clause.descriptions:
            try:
                type_ = type_of(description.pattern, node.name)
            except KinstError as error:
                raise DError(error.message, node.span, "D_UNKNOWN", error.hint) from error
            if type_ is not None:
                zero = _parsed("0", node.span)
                pointer = tree.TypedNode(node.span, type_, zero, True)
                return tree.PrefixNode(node.span, "*", pointer)
        where = clause.descriptions[0].pattern
        message = f"{where} has no local variable {node.name}"
        plain = where.function and not set("*?[") & set(where.function)
        hint = "local variables need a description that names one function"
        if plain:
            hint = _suggestion(node.name, names_of(where))
        raise DError(message, node.span, "D_IDENT_UNDEF", hint)

    return replace(
        clause,
        predicate=replaced(clause.predicate, one),
        statements=replaced(clause.statements, one),
    )


def _suggestion(name: str, there: Sequence[str]) -> str:
    near = get_close_matches(name[:80], there, 1)
    if near:
        return f"did you mean locals->{near[0]}?"
    shown = ", ".join(there[:MOST_NAMES]) + (", ..." if len(there) > MOST_NAMES else "")
    return f"there are {shown}" if shown else ""


def expand_locals(
    program: tree.ProgramNode,
    places: Places,
    find: Find,
    nearest: Nearest,
    names_at: NamesAt,
    progress: Callable[[float], None] = lambda _: None,
) -> Expansion:
    """Return a program in which expressions over regs[] and memory replace every locals->NAME, and
    a print() of each variable replaces print(locals), with messages for the user.

    An instruction at which a variable cannot be read is left out, with a note for the user.

    Raises DError if no instruction of a description is left. Some probes fire at several
    instructions. Such a probe must have all of them: if one is left out, DError is raised.

    Args:
        places: returns the instructions that a description matches.
        find: returns how to read a variable at an instruction.
        nearest: returns a hint for messages, which names a nearby instruction at which a variable
            can be read.
        names_at: returns the names of the variables at an instruction.
        progress: called with the part of a clause's descriptions that are done, 0 to 1.
    """
    notes: list[str] = []
    items: list[tree.ItemNode] = []
    for item in program.items:
        if isinstance(item, tree.ClauseNode) and _reads(item):
            items += _split(item, places, find, nearest, names_at, notes, progress)
        else:
            items.append(item)
    return Expansion(tree.ProgramNode(tuple(items)), tuple(notes))


class _MissingError(Exception):
    def __init__(self, local: Local | None, node: tree.MemberNode, error: KinstError) -> None:
        super().__init__(str(error))
        self.local = local
        self.node = node
        self.error = error


class _ClauseSplitter:
    """Splitter of one clause that reads local variables.

    The variables are replaced by expressions over regs[] and memory, which differ between the
    clause's instructions. So the splitter makes a group of all instructions that have the same
    expressions, and replaces the clause by one clause for each group.
    """

    def __init__(self, clause: tree.ClauseNode, find: Find, names_at: NamesAt) -> None:
        self._clause = clause
        self._find = find
        self._names_at = names_at
        self._groups: dict[str, tuple[tree.ClauseNode, list[tree.DescriptionNode]]] = {}

    def add(
        self, description: tree.DescriptionNode, instructions: Sequence[MatchedInstruction]
    ) -> list[_Missing]:
        """Add each instruction of one description to the group of instructions with the same
        expressions. Return those at which a variable cannot be read, which are in no group.

        Raises DError if the instructions of a probe cannot be split, but differ in their
        expressions.
        """
        missing: list[_Missing] = []
        keys: set[str] = set()
        for place in instructions:
            try:
                clause = _with_prints(
                    self._clause, place, description.inlined, self._find, self._names_at
                )
                body = _at(clause, place, description.inlined, self._find)
            except _MissingError as error:
                missing.append(_Missing(place, description, error))
                continue
            predicate = () if body.predicate is None else (body.predicate,)
            key = "\n".join(map(unparse_expression, (*predicate, *body.statements)))
            keys.add(key)
            rows = self._groups.setdefault(key, (body, []))[1]
            of_instruction = replace(description, pattern=place.pattern)
            if not place.fixed or of_instruction not in rows:
                rows.append(of_instruction)
        if len(keys) > 1 and any(place.fixed for place in instructions):
            message = (
                f"{description.pattern}: at its instructions the variables are in different"
                " registers or memory"
            )
            raise DError(message, description.span, "D_UNKNOWN", "name the instructions")
        return missing

    def clauses(self) -> list[tree.ClauseNode]:
        return [replace(body, descriptions=tuple(rows)) for body, rows in self._groups.values()]


@dataclass(frozen=True, slots=True)
class _Missing:
    place: MatchedInstruction
    description: tree.DescriptionNode
    error: _MissingError


def _split(
    clause: tree.ClauseNode,
    places: Places,
    find: Find,
    nearest: Nearest,
    names_at: NamesAt,
    notes: list[str],
    progress: Callable[[float], None],
) -> list[tree.ClauseNode]:
    splitter = _ClauseSplitter(clause, find, names_at)
    # Earlier expansions may have replaced one description by several.
    written: dict[Span, list[tree.DescriptionNode]] = {}
    for description in clause.descriptions:
        written.setdefault(description.span, []).append(description)
    for descriptions in written.values():
        count, missing = 0, list[_Missing]()
        for number, description in enumerate(descriptions):
            progress(number / len(descriptions))
            instructions = places(description.pattern)
            count += len(instructions)
            missing += splitter.add(description, instructions)
        if not missing:
            continue
        # If the variable exists at some instruction, the reason why it cannot be read there says
        # more than an error that it does not exist.
        first = next((m for m in missing if m.error.local is not None), missing[0])
        if len(missing) == count or first.place.fixed:
            raise _refusal(first.place, first.description.inlined, first.error, nearest)
        copy_of = f"{first.description.inlined}, " if first.description.inlined else ""
        notes.append(
            f"{len(missing)} of {count} instructions are left out: {copy_of}{first.error.node.name}"
            f" is not known there ({first.place.text}: {first.error})"
        )
    return splitter.clauses()


def _refusal(
    instruction: MatchedInstruction, inlined: str, missing: _MissingError, nearest: Nearest
) -> DError:
    name, error = missing.node.name, missing.error
    if missing.local is None:
        return DError(error.message, missing.node.span, "D_IDENT_UNDEF", error.hint)
    hint = error.hint or nearest(instruction, name, inlined)
    message = f"locals->{name} cannot be read at {instruction.text}: {error.message}"
    return DError(message, missing.node.span, "D_UNKNOWN", hint)


def _with_prints(
    clause: tree.ClauseNode,
    instruction: MatchedInstruction,
    inlined: str,
    find: Find,
    names_at: NamesAt,
) -> tree.ClauseNode:
    """Return a clause in which print(locals) is replaced by a print() of each variable that exists
    at one instruction. Raises _MissingError.

    Args:
        instruction: the instruction.
        inlined: the inline function whose copy the instruction is in; "" if it is in none.
    """
    whole = next(filter(_is_print_locals, clause.statements), None)
    if whole is None:
        return clause

    def missing(name: str, span: Span) -> str:
        try:
            local = find(instruction, name, inlined)
            if not local.reason:
                _whole(local, span)
            return local.reason
        except KinstError as error:
            return error.message

    try:
        return _printed(clause, lambda: names_at(instruction, inlined), missing)
    except KinstError as error:
        node = tree.MemberNode(whole.span, tree.NameNode(whole.span, NAME), "->", "*")
        raise _MissingError(None, node, error) from error


def _at(
    clause: tree.ClauseNode, instruction: MatchedInstruction, inlined: str, find: Find
) -> tree.ClauseNode:
    """Return a clause in which each locals->NAME is replaced by the expression for the variable at
    one instruction. Raises _MissingError.

    Args:
        instruction: the instruction.
        inlined: the inline function whose copy the instruction is in; "" if it is in none.
    """

    def local_of(node: tree.MemberNode) -> Local:
        try:
            variable = find(instruction, node.name, inlined)
        except KinstError as error:
            raise _MissingError(None, node, error) from error
        if variable.reason:
            raise _MissingError(variable, node, KinstError(variable.reason))
        return variable

    def one(node: tree.ExprNode) -> tree.ExprNode | None:
        chain: list[tree.MemberNode] = []
        base = node
        while isinstance(base, tree.MemberNode) and base.op == "." and not _is_local(base):
            chain.insert(0, base)
            base = base.base
        if not _is_local(base):
            return None
        assert isinstance(base, tree.MemberNode)
        local = local_of(base)
        try:
            if _in_memory(local):
                # kinst's checker finds the members of a structure in memory.
                return None if chain else _whole(local, node.span)
            for member in chain:
                local = _member(local, member.name)
            return _whole(local, node.span)
        except KinstError as error:
            raise _MissingError(local, base, error) from error

    return replace(
        clause,
        predicate=replaced(clause.predicate, one),
        statements=replaced(clause.statements, one),
    )


def _in_memory(local: Local) -> bool:
    return len(local.pieces) == 1 and local.pieces[0].kind == "memory"


def _parsed(text: str, span: Span) -> tree.ExprNode:
    predicate = parse_text(f"BEGIN/({text})/{{}}", span.file).clauses[0].predicate
    assert predicate is not None
    return predicate


def _whole(local: Local, span: Span) -> tree.ExprNode:
    """Return an expression for the whole value of a local variable. Raises KinstError if D cannot
    express the value.
    """
    if _in_memory(local):
        address = _parsed(local.pieces[0].text, span)
        return tree.PrefixNode(span, "*", tree.TypedNode(span, local.type, address, True))
    if isinstance(local.type, StructType):
        raise KinstError(
            f"{local.name} is not in memory, but in registers",
            f"its members can be read: locals->{local.name}.MEMBER",
        )
    if isinstance(local.type, ArrayType | FloatType | VoidType):
        raise KinstError(
            f"{local.name} is in a register or optimised out, and kinst reads its type"
            f" ({local.type}) only from memory"
        )
    return tree.TypedNode(span, local.type, _parsed(_value(local), span), False)


def _value(local: Local) -> str:
    """Return the text of a D expression for a local variable as one u64. If the variable is in
    several registers or words of memory, the expression joins these pieces. Raises KinstError if
    they cannot be joined.
    """
    if len(local.pieces) == 1:
        return local.pieces[0].text
    parts, at = [], 0
    for piece in local.pieces:
        if not piece.kind:
            raise KinstError(f"a part of {local.name} is optimised out")
        text = piece.text
        if piece.kind == "memory":
            if piece.size not in (1, 2, 4, 8):
                raise KinstError(
                    f"{local.name} is in pieces of {piece.size} bytes, which kinst cannot join"
                )
            text = f"(uint64_t)*(uint{8 * piece.size}_t *)({text})"
        mask = (1 << 8 * piece.size) - 1
        parts.append(f"((({text}) & {mask:#x}ull) << {8 * at})")
        at += piece.size
    return " | ".join(parts)


def _member(local: Local, name: str) -> Local:
    """Return a member of a structure as a variable of its own. The structure is a local variable
    that is not in memory. Raises KinstError if there is no such member, or if it cannot be read.
    """
    if not isinstance(local.type, StructType):
        raise KinstError(f"{local.name} is not a structure")
    member = local.type.member(name)
    if member is None:
        raise KinstError(f"{name} is not a member of {local.type}")
    label = f"{local.name}.{name}"
    if member.bits:
        whole = _value(_slice(local, 0, local.type.size, INT64, label))
        up = 64 - member.bits - member.bit
        if up < 0:
            raise KinstError(f"{label} is in more than one register, which kinst cannot join")
        signed = "int64_t" if getattr(member.type, "signed", False) else "uint64_t"
        text = f"(({signed})(({whole}) << {up}) >> {64 - member.bits})"
        return Local(label, member.type, local.function, (LocalPiece("value", text),))
    size = size_of(member.type, 0)
    return _slice(local, member.offset, size, member.type, label)


def _slice(local: Local, start: int, size: int, type_: DType, name: str) -> Local:
    """Return a part of a local variable as a variable of its own. Raises KinstError if the part is
    optimised out.

    Args:
        start: offset of the part in bytes.
        size: bytes of the part.
        type_: type of the part.
        name: name of the part, for messages.
    """
    pieces, at = [], 0
    for piece in local.pieces:
        length = piece.size or size_of(local.type, 0)
        low, high = max(start, at), min(start + size, at + length)
        if low < high:
            delta, text = low - at, piece.text
            if delta and piece.kind == "memory":
                text = f"({text} + {delta})"
            elif delta and piece.kind:
                text = f"({text} >> {8 * delta})"
            pieces.append(LocalPiece(piece.kind, text, high - low))
        at += length
    if not pieces or sum(p.size for p in pieces) < size or not all(p.kind for p in pieces):
        raise KinstError(f"{name} is optimised out")
    return Local(name, type_, local.function, tuple(pieces))


def _is_print_locals(node: object) -> bool:
    """Return whether a statement is print(locals)."""
    return (
        isinstance(node, tree.CallNode)
        and isinstance(node.function, tree.NameNode)
        and node.function.name == "print"
        and len(node.arguments) == 1
        and isinstance(node.arguments[0], tree.NameNode)
        and node.arguments[0].name == NAME
    )


def _printed(
    clause: tree.ClauseNode, names: Callable[[], Sequence[str]], missing: Callable[[str, Span], str]
) -> tree.ClauseNode:
    """Return a clause in which print(locals) is replaced by a print() of each variable.

    Args:
        names: returns the names of the variables.
        missing: returns the reason why a variable cannot be read, which is printed instead; "" if
            the variable can be read.
    """
    statements = list[tree.ExprNode]()
    for statement in clause.statements:
        if _is_print_locals(statement):
            statements += _each(statement.span, names(), missing)
        else:
            statements.append(statement)
    return replace(clause, statements=tuple(statements))


def _stand_in(span: Span) -> tree.ExprNode:
    """Return a printf() that replaces print(locals) while the instructions are not known yet."""
    return _text(span, NAME)


def _each(
    span: Span, names: Sequence[str], missing: Callable[[str, Span], str]
) -> Iterator[tree.ExprNode]:
    for name in names:
        why = missing(name, span)
        yield _text(span, f"{name}: {why}\n" if why else f"{name} = ")
        if not why:
            variable = tree.MemberNode(span, tree.NameNode(span, NAME), "->", name)
            yield tree.CallNode(span, tree.NameNode(span, "print"), (variable,))
    if not names:
        yield _text(span, "there are no local variables\n")


def _text(span: Span, text: str) -> tree.ExprNode:
    literal = tree.StringNode(span, text.replace("%", "%%").encode())
    return tree.CallNode(span, tree.NameNode(span, "printf"), (literal,))
