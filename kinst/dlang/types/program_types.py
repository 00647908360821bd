"""The types that a program can name: D's own types, types that the program declares, and the
kernel's.

Declared structures have the layout of the C ABI for LP64, which all ISAs of kinst share: System V
psABI, "Aggregates and Unions", "Bit-Fields". Errors are libdtrace's (dt_decl.c).

Tested by tests/dlang/check/test_declarations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.dtypes import (
    STRING,
    VOID,
    ArrayType,
    DType,
    EnumType,
    FloatType,
    FunctionType,
    IntType,
    Member,
    PointerType,
    StructType,
    VoidType,
    named,
)
from kinst.core.errors import DError, KinstError, Span
from kinst.core.types import Symbol, TypeSource
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.tree import TypeNode
from kinst.dlang.types.conversions import is_declaration, size_of
from kinst.dlang.vocabulary.type_names import (
    BASE_SIZES,
    BASE_WORDS,
    FLOATS,
    GUIDE_STRUCTURES,
    PLAIN_NAMES,
    QUALIFIERS,
    SCALARS,
    STRUCTURES,
    TAGS,
    TYPEDEFS,
    check_attributes,
    is_bool,
)


def base_type(name: TypeNode) -> DType | None:
    """Return the base type that a type's words name, without its stars; None if the words name no
    base type.

    Raises DError D_DECL_COMBO and the errors of check_attributes().
    """
    words = [w for w in name.words if w not in QUALIFIERS]
    if words == ["void"]:
        return VOID
    if len(words) == 1 and words[0] in SCALARS:
        return SCALARS[words[0]]
    signs = [w for w in words if w in ("signed", "unsigned")]
    rest = sorted(w for w in words if w not in signs)
    for word in rest:
        if word not in ("int", "long", "short"):
            check_attributes(words, word, name.span)
    if FLOATS & set(rest):
        if rest not in (["float"], ["double"], ["double", "long"]):
            raise _no_such_type(name, words)
        return FloatType({"float": 4}.get(rest[0], 8 * len(rest)), " ".join(reversed(rest)))
    if len(rest) == 1 and not signs and rest[0] not in BASE_WORDS:
        return None
    size = BASE_SIZES.get(tuple(dict.fromkeys(rest) if "short" in rest else rest))
    if size is None or len(set(signs)) > 1 or not words:
        raise _no_such_type(name, words)
    signed = "unsigned" not in signs
    plain = "long long" if rest.count("long") == 2 else PLAIN_NAMES[size]
    return IntType(size, signed, plain if signed else f"unsigned {plain}")


def _no_such_type(name: TypeNode, words: Sequence[str]) -> DError:
    """Return the error for words that name no base type: an invalid combination if two or more of
    them are names of types (`int char`), otherwise an unknown type. As in libdtrace, short, long,
    signed and unsigned are not counted.
    """
    if len([w for w in words if w not in ("short", "long", "signed", "unsigned")]) > 1:
        message = f"invalid type combination: {' '.join(name.words)}"
        return DError(message, name.span, "D_DECL_COMBO")
    message = f"failed to resolve type {' '.join(words)}: Unknown type name"
    return DError(message, name.span, "D_UNKNOWN")


INT_MAX, INT_MIN = (1 << 31) - 1, -(1 << 31)

MOST_ELEMENTS = 1 << 31

INT_ENUM = EnumType(4, True, "enum")  # type of an enumerator until its enumeration is complete

OWN = "D"  # name of the module to which the program's own types belong: struct D`foo

Check = Callable[[tree.ExprNode], typed.Expr]


def split_name(name: str) -> tuple[str, str]:
    """Split the name module`name into module and name. The module of a plain name is ""."""
    module, _, plain = name.rpartition("`")
    return module, plain


def type_names(source: TypeSource | None) -> Callable[[str], bool] | None:
    """Return a function that tells whether the kernel has a typedef of a name; None if there is no
    kernel.

    Args:
        source: the kernel's types.
    """
    if source is None:
        return None

    def knows(name: str) -> bool:
        module, plain = split_name(name)
        try:
            return module != OWN and source.typedef(plain, module) is not None
        except KinstError:
            return False

    return knows


def alignment(type_: DType) -> int:
    """Return the alignment of a type in bytes."""
    if isinstance(type_, ArrayType):
        return alignment(type_.of)
    if isinstance(type_, StructType):
        return max((alignment(m.type) for m in type_.members), default=1)
    if isinstance(type_, IntType | PointerType | FloatType):
        return type_.size
    return 1


class Types:
    """The types that one program can name, by name. Also has the members of structures that the
    program declares (members()).
    """

    def __init__(
        self,
        source: TypeSource | None,
        strsize: int = 256,
        structure: Callable[[str], StructType | None] = lambda tag: None,
    ) -> None:
        """Begin with no declared types.

        Args:
            source: the kernel's types.
            strsize: bytes of a member of type string.
            structure: returns the structure that the system's dialect has for a tag; None if it has
                none. Asked only for tags that the kernel's types lack.
        """
        self.source = source
        self._of_system = structure
        self._strsize = strsize
        self.check: Check | None = None  # checks constant expressions
        self._tags: dict[tuple[str, str], DType] = {}
        self._typedefs: dict[str, DType] = {}
        self._constants: dict[str, tuple[EnumType, int]] = {}
        self._members: dict[str, Sequence[Member]] = {}
        self._made: dict[int, tuple[tree.StructBodyNode | tree.EnumBodyNode, DType]] = {}  # by id()
        self._bodies = 0  # structures so far; numbers the structures that have no tag

    def members(self, struct: StructType) -> Sequence[Member]:
        return self._members.get(struct.key, ())

    def declare(self, node: tree.TypeDeclarationNode) -> None:
        """Add a declaration of a structure, a union, an enumeration or a typedef. Raises DError
        D_DECL_*.
        """
        type_ = self.resolve(node.type)
        if not node.name:
            return
        if not is_bool(type_):  # only its name distinguishes a bool from other integer types
            type_ = named(type_, node.name)
        old = self._typedefs.get(node.name)
        if old is not None and old != type_:
            message = f"typedef redeclared: {node.name}: current: {type_}, previous: {old}"
            raise DError(message, node.span, "D_DECL_IDRED")
        self._typedefs[node.name] = type_

    def is_typedef(self, name: str) -> bool:
        """Return whether the program or D itself has a typedef of this name."""
        return name in self._typedefs or name in TYPEDEFS

    def resolve(self, name: tree.TypeNode) -> DType:
        """Return the type that a type's syntax tree means. Raises DError D_DECL_*, D_UNKNOWN."""
        try:
            type_ = self._base(name)
        except KinstError as error:
            if isinstance(error, DError):
                raise
            text = " ".join(name.words)
            message = f"failed to resolve type {text}: {error.message}"
            raise DError(message, name.span, "D_UNKNOWN", error.hint) from error
        if name.stars and type_ == STRING:
            message = "pointers to string are not supported"
            hint = "use char *, and stringof() to read it"
            raise DError(message, name.span, "D_UNKNOWN", hint)
        for _ in range(name.stars):
            type_ = PointerType(type_)
        for derivation in name.derived:
            type_ = self._derived(type_, derivation, name.span)
        return type_

    def _derived(self, type_: DType, derivation: tree.Derivation, span: Span) -> DType:
        if isinstance(derivation, tree.PointerNode):
            return PointerType(type_)
        if isinstance(derivation, tree.FunctionNode):
            taken = tuple(self.resolve(p) for p in derivation.parameters)
            return FunctionType(type_, taken, derivation.variadic)
        if isinstance(type_, VoidType | FunctionType):
            raise DError(f"cannot have an array of {type_}", span, "D_DECL_VOIDOBJ")
        if derivation.count is None:
            return ArrayType(type_, 0)
        count = self._constant(derivation.count)
        if count is None or count < 0:
            message = (
                "positive integral constant expression or tuple signature expected as array"
                " declaration subscript"
            )
            raise DError(message, derivation.span, "D_DECL_ARRSUB")
        if count > MOST_ELEMENTS or size_of(type_, 1) * count > MOST_ELEMENTS:
            raise DError("array dimension is too big", derivation.span, "D_DECL_ARRBIG")
        return ArrayType(type_, count)

    def _constant(self, node: tree.ExprNode) -> int | None:
        value = self.check(node) if self.check else None
        return value.value if isinstance(value, typed.IntConst) else None

    def _base(self, name: tree.TypeNode) -> DType:
        words = [w for w in name.words if w not in QUALIFIERS]
        if words and words[0] in TAGS:
            if name.body is not None:
                return self._made_of(name.body)
            return self._tagged(words[0], words[-1], name.span)
        type_ = base_type(name)
        return type_ if type_ is not None else self._named(words[-1], name.span)

    def _named(self, word: str, span: Span) -> DType:
        module, plain = split_name(word)
        if module in ("", OWN) and plain in self._typedefs:
            return self._typedefs[plain]
        type_ = None
        if self.source is not None and module != OWN:
            type_ = self.source.typedef(plain, module)
        if type_ is None and not module and plain in STRUCTURES:
            return named(self._tagged("struct", STRUCTURES[plain], span), plain)
        if type_ is None:
            # libdtrace's lexer takes a plain name for a type only if it knows the type.
            message = f"failed to resolve type {word[:80]}: Unknown type name"
            raise DError(message, span, "D_UNKNOWN" if module else "D_SYNTAX")
        return type_

    def _tagged(self, kind: str, word: str, span: Span) -> DType:
        """Return a structure, union or enumeration by its tag. As in C, using an undefined
        structure or union declares it. Raises DError D_UNKNOWN.

        Args:
            kind: "struct", "union" or "enum".
            word: the tag, which may have a module.
        """
        module, plain = split_name(word)
        type_ = self._tags.get((kind, plain))
        if module in ("", OWN) and type_ is not None:
            return type_
        if self.source is not None and module != OWN:
            of_kernel = self.source.tagged(kind, plain, module)
            if of_kernel is not None:
                return of_kernel
        if kind == "struct" and not module:
            type_ = GUIDE_STRUCTURES.get(plain) or self._of_system(plain)
            if type_ is not None:
                return type_
        if module or kind == "enum":
            message = f"failed to resolve type {kind} {word[:80]}: Unknown type name"
            raise DError(message, span, "D_UNKNOWN")
        return StructType(kind, plain, 0, f"{OWN} {kind} {plain}", self)

    def lookup(self, type_: StructType) -> StructType:
        """Return the definition of a structure; the structure itself if it is already defined or
        has no definition.
        """
        if type_.size or not type_.name:  # a structure under declaration has members but no size
            return type_
        definition = self._tags.get((type_.kind, type_.name))
        if definition is None and self.source is not None:
            definition = self.source.tagged(type_.kind, type_.name)
        return definition if isinstance(definition, StructType) else type_

    def defined(self, type_: DType) -> DType:
        """If a type is a pointer to a structure that is only declared, return a pointer to the
        structure's definition; otherwise, return the type unchanged.
        """
        if isinstance(type_, PointerType) and isinstance(type_.to, StructType):
            whole = self.lookup(type_.to)
            return type_ if whole is type_.to else replace(type_, to=whole)
        return type_

    def _made_of(self, body: tree.StructBodyNode | tree.EnumBodyNode) -> DType:
        """Return the type that a body { ... } defines. A body that several declarators share
        defines one type.
        """
        if id(body) not in self._made:
            type_ = (
                self._structure(body)
                if isinstance(body, tree.StructBodyNode)
                else self._enumeration(body)
            )
            self._made[id(body)] = (body, type_)
        return self._made[id(body)][1]

    def _structure(self, body: tree.StructBodyNode) -> DType:
        self._bodies += 1
        key = f"{OWN} {body.kind} {body.tag or self._bodies}"
        layout = _MemberLayout(body.kind == "union", self._strsize)
        if body.tag:  # its members may point to it, rather than to a kernel structure of this name
            self._tags.setdefault(
                (body.kind, body.tag), StructType(body.kind, body.tag, 0, key, self)
            )
        for field in body.fields:
            self._add(layout, field)  # may declare other types
        if key in self._members:
            message = f"{body.kind} {body.tag} redeclared"
            raise DError(message, body.span, "D_DECL_TYPERED")
        type_ = StructType(body.kind, body.tag, layout.size(), key, self)
        self._members[key] = tuple(layout.members)
        if body.tag:
            self._tags[body.kind, body.tag] = type_
        return type_

    def _add(self, layout: _MemberLayout, field: tree.FieldNode) -> None:
        type_ = self.resolve(field.type)
        shown = field.name or "(anon)"
        if is_declaration(type_):
            message = f"incomplete struct/union/enum {type_}: {shown}"
            raise DError(message, field.span, "D_DECL_INCOMPLETE")
        if isinstance(type_, VoidType | FunctionType):
            raise DError(f"cannot have void member: {shown}", field.span, "D_DECL_VOIDOBJ")
        if field.width is None:
            if not field.name and not isinstance(type_, StructType):
                message = "member declaration requires a name"
                raise DError(message, field.span, "D_DECL_MNAME")
            if field.name and layout.has(field.name):
                message = f"failed to define member '{field.name}': it is there already"
                raise DError(message, field.span, "D_UNKNOWN")
            layout.add(field.name, type_)
            return
        width = self._constant(field.width)
        if width is None or width < 0 or (width == 0 and field.name):
            message = "positive integral constant expression expected as bit-field size"
            raise DError(message, field.span, "D_DECL_BFCONST")
        if not isinstance(type_, IntType):
            raise DError(f"invalid type for bit-field: {shown}", field.span, "D_DECL_BFTYPE")
        if width > 8 * type_.size:
            raise DError(f"bit-field too big for type: {shown}", field.span, "D_DECL_BFSIZE")
        layout.add_bits(field.name, type_, width)

    def _enumeration(self, body: tree.EnumBodyNode) -> DType:
        values: list[tuple[str, int]] = []
        value = -1
        for enumerator in body.enumerators:
            value += 1
            if enumerator.value is not None:
                constant = self._constant(enumerator.value)
                if constant is None:
                    message = (
                        f"enumerator '{enumerator.name}' must be assigned to an integral constant"
                        " expression"
                    )
                    raise DError(message, enumerator.span, "D_DECL_ENCONST")
                value = constant
            if not INT_MIN <= value <= INT_MAX:
                message = f"enumerator '{enumerator.name}' value overflows INT_MAX ({INT_MAX})"
                raise DError(message, enumerator.span, "D_DECL_ENOFLOW")
            if enumerator.name in dict(values):
                message = f"failed to define enumerator '{enumerator.name}': it is there already"
                raise DError(message, enumerator.span, "D_UNKNOWN")
            if enumerator.name in self._constants:
                message = f"identifier redeclared: {enumerator.name}"
                raise DError(message, enumerator.span, "D_DECL_IDRED")
            values.append((enumerator.name, value))
            self._constants[enumerator.name] = (INT_ENUM, value)  # later enumerators may use it
        type_ = EnumType(4, True, f"enum {body.tag}".rstrip(), tuple(values))
        if body.tag:
            if ("enum", body.tag) in self._tags:
                raise DError(f"enum {body.tag} redeclared", body.span, "D_DECL_TYPERED")
            self._tags["enum", body.tag] = type_
        self._constants.update({name: (type_, value) for name, value in values})
        return type_

    def enumerator(self, word: str) -> tuple[EnumType, int] | None:
        """Return type and value of the enumerator of this name; None if there is no such
        enumerator. Raises KinstError.
        """
        module, plain = split_name(word)
        if module in ("", OWN) and plain in self._constants:
            return self._constants[plain]
        if self.source is None or module == OWN:
            return None
        return self.source.enumerator(plain, module)

    def symbol(self, word: str) -> Symbol | None:
        """Return the kernel's symbol that a program writes as `name or module`name; None if the
        kernel has no such symbol. Raises KinstError.
        """
        module, plain = split_name(word)
        return self.source.symbol(plain, module) if self.source is not None else None


class _MemberLayout:
    """Layout of a structure's members, one after another, or of a union's members, all at
    offset 0.
    """

    def __init__(self, union: bool, strsize: int) -> None:
        self._strsize = strsize
        self.members: list[Member] = []
        self._union = union
        self._bit = 0
        self._end = 0
        self._align = 1

    def has(self, name: str) -> bool:
        return any(member.name == name for member in self.members)

    def add(self, name: str, type_: DType) -> None:
        align = alignment(type_)
        self._align = max(self._align, align)
        at = 0 if self._union else -(-self._bit // (8 * align)) * 8 * align
        self.members.append(Member(name, type_, at))
        self._take(at, 8 * size_of(type_, self._strsize))

    def add_bits(self, name: str, type_: IntType, width: int) -> None:
        """Add a bit-field. If the bit-field would cross a multiple of its type's size, it begins at
        this multiple. Width 0 adds no member, and makes the next bit-field begin at a multiple of
        the type's size.
        """
        unit = 8 * type_.size
        at = 0 if self._union else self._bit
        if width == 0 or at // unit != (at + width - 1) // unit:
            at = -(-at // unit) * unit
        if name:
            self._align = max(self._align, type_.size)
            self.members.append(Member(name, type_, at, width))
        self._take(at, width)

    def _take(self, at: int, bits: int) -> None:
        self._bit = at + bits
        self._end = max(self._end, at + bits)

    def size(self) -> int:
        """Return the size of the structure or union in bytes, padded to its alignment."""
        whole = -(-self._end // 8)
        return -(-whole // self._align) * self._align
