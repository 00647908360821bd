"""Translation of programs of bpftrace, and of perf's definitions of probes, into D.

A program of bpftrace needs several changes to become D: its probes, its maps, its builtins and its
functions. An error names the first of these. translate() makes all changes together, so that the
error can show the whole program in D.

The translation goes word by word and checks nothing. The caller compiles the result, and shows it
only if it compiles (kinst/session/translate.py). Words without a counterpart in D stay as they are;
the compiler then names them. The tables of words are those of other_tracers.py.

Sources: bpftrace's language reference (0.23), perf-probe(1), the kernel's Documentation/trace/
kprobetrace.rst.

Tested by tests/session/test_translate.py, through the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType

from kinst.core.dataclass import dataclass
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.other_tracers import description_in_d

_TOKEN = re.compile(
    r"(?P<space>(?:\s|/\*.*?\*/|//[^\n]*)+)"
    r'|(?P<string>"(?:\\.|[^"\\])*")'
    r"|(?P<map>@[A-Za-z_]\w*|@)"
    r"|(?P<scratch>\$[A-Za-z_]\w*)"
    r"|(?P<macro>\$\$?[0-9]+)"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<number>[0-9]\w*)"
    r"|(?P<sign>->|\+\+|--|<<=?|>>=?|[-+*/%&|^=!<>]=|&&|\|\||.)",
    re.S,
)
_LINE_COMMENT = re.compile(r"//([^\n]*)")
# White space, comments, and control lines such as #pragma.
_BETWEEN_CLAUSES = re.compile(r"(?:\s|/\*.*?\*/|^#[^\n]*$)*", re.S | re.M)
_PREDICATE = re.compile(r"(?P<before>\s*)/(?P<condition>.*?)/(?=\s*\{)", re.S)
# A path may follow an @, as in kprobe:vfs_read@fs/read_write.c:467.
_PROBES = re.compile(r"(?:@[-\w./]+:\d+|[^{}/\"])+?(?=\s*(?:\{|/|\Z))", re.S)
_QUOTE = '"'
_OPEN = {"(": ")", "[": "]", "{": "}"}

# Builtins of bpftrace and the expressions of D that have the same value and type.
_VALUES = MappingProxyType(
    {
        "comm": "execname", "nsecs": "timestamp", "kstack": "stack()", "ustack": "ustack()",
        "curtask": "curthread", "rand": "rand()", "cpid": "$target", "jiffies": "`jiffies",
        "elapsed": "(timestamp - begun)",
        **{f"sarg{n}": f"arg{n + 6}" for n in range(4)},
    }
)  # fmt: skip
# Expressions of FreeBSD's threads and processes, and the builtins of D with the same value.
_THREADS = MappingProxyType(
    {
        "curthread->td_proc->p_comm": "execname", "curthread->td_name": "execname",
        "curthread->td_proc->p_pid": "pid", "curthread->td_tid": "tid",
    }
)  # fmt: skip
# Stands before a tuple, so that the compiler names it: D has no function of this name.
_TUPLE = "tuple"
_BEGUN = "BEGIN { begun = timestamp; } "
# Functions of bpftrace, each with the text of the same call in D; %s stands for its arguments.
_CALLS = MappingProxyType(
    {
        "hist": "quantize(%s)", "lhist": "lquantize(%s)", "ksym": "func(%s)",
        "kstr": "stringof(%s)", "override": "return(%s)", "zero": "clear(%s)", "len": "strlen(%s)",
        "kptr": "(%s)", "kstack": "stack(%s)", "nsecs": "timestamp",
        "strcontains": "(strstr(%s) != NULL)",
    }
)  # fmt: skip
_AGGREGATING = frozenset({"hist", "lhist", "stats", *builtins.AGGREGATING})
# Operators that take `a + b` as their operand.
_LOOSER_THAN_PLUS = frozenset(
    ("<", ">", "<=", ">=", "<<", ">>", "==", "!=", "&", "^", "|", "&&", "||", "?", ":")
)
_TAKE_WHOLE_MAPS = ("print(", "clear(", "zero(", "delete(", "has_key(")
_INTEGERS = frozenset(f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64))
_SIGNALS = MappingProxyType({"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "TERM": 15})
# Number of the parameter of a system call by its name, where that is the same in all, and for
# single system calls. Source: the calls' manual pages.
_PARAMETERS = MappingProxyType({"fd": 0, "buf": 1, "count": 2, "pathname": 0, "filename": 0})
_SECOND = frozenset({"openat", "openat2", "newfstatat", "statx", "execveat", "faccessat",
                     "faccessat2", "unlinkat", "mkdirat", "readlinkat", "mknodat"})  # fmt: skip
_FLAGS = MappingProxyType({"openat": 2, "open": 1, "mmap": 3, "clone": 0})
# Kernel functions whose string arguments are addresses of the process.
_TAKES_USER_STRING = re.compile(
    r"(?:__\w+_)?(?:do_)?(?:sys|compat_sys)_\w+|do_execve\w*|getname\w*"
)


@dataclass(frozen=True, slots=True)
class ForeignToken:
    """A word, number, string, sign or stretch of white space of a program."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ClauseProbes:
    """The probes of a clause, as D writes them."""

    descriptions: tuple[str, ...]

    def all_match(self, form: str) -> bool:
        """Return whether all descriptions match a regular expression."""
        return all(re.fullmatch(form, one) for one in self.descriptions)

    @property
    def system_call(self) -> str:
        """Name of the system call at whose entry the clause runs; "" if there is no single one."""
        match = re.fullmatch(r"syscall::(\w+):entry", self.descriptions[0])
        return match[1] if match and len(self.descriptions) == 1 else ""


def translate(text: str) -> str:
    """Return the program in D for a program of bpftrace or a probe definition of perf.

    Returns the text unchanged if it has no word that kinst can translate, or if its braces, quotes
    or clauses cannot be told apart. A program of D with a mistake in an aggregation (such as
    `@ = quantise(arg2)`) would look like one of bpftrace with a map: so if maps are all that could
    be translated, the text is returned unchanged too.
    """
    original, defined = text, _probe_definition(text.strip())
    for expression, builtin in _THREADS.items():
        text = text.replace(f"stringof({expression})", builtin).replace(expression, builtin)
    translated = defined or _ForeignProgram(text).in_d()
    if not translated or _same(translated, original):
        return original
    if not defined and _same(_ForeignProgram(text, keeps_maps=True).in_d(), original):
        return original
    return translated


def _same(one: str, other: str) -> bool:
    """Return whether two texts differ in white space only."""
    return "".join(one.split()) == "".join(other.split())


def _tokens(text: str) -> list[ForeignToken]:
    return [ForeignToken(str(m.lastgroup), m.group()) for m in _TOKEN.finditer(text)]


def _joined(tokens: Iterable[ForeignToken]) -> str:
    return "".join(token.text for token in tokens)


def _plain(tokens: Sequence[ForeignToken]) -> str:
    return "".join(token.text for token in tokens if token.kind != "space")


def _group_end(tokens: Sequence[ForeignToken], start: int) -> int:
    """Return the index of the bracket that closes the bracket at `start`; -1 if none does."""
    expected: list[str] = []
    for index in range(start, len(tokens)):
        token = tokens[index].text
        if token in _OPEN:
            expected.append(_OPEN[token])
        elif expected and token == expected[-1]:
            expected.pop()
            if not expected:
                return index
    return -1


def _after_space(tokens: Sequence[ForeignToken], start: int) -> int:
    """Return the index of the first token from `start` on that is not white space."""
    while start < len(tokens) and tokens[start].kind == "space":
        start += 1
    return start


def _text_at(tokens: Sequence[ForeignToken], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""


def _arguments(tokens: Sequence[ForeignToken]) -> list[Sequence[ForeignToken]]:
    """Divide the tokens between a call's parentheses at the commas."""
    parts: list[list[ForeignToken]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in _OPEN) - (token.text in _OPEN.values())
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return list(parts) if _plain(tokens) else []


class _Maps:
    """Maps of a program (@name), divided into aggregations and variables of D.

    bpftrace keeps both in maps. A map is an aggregation if an aggregating function is assigned to
    it, or if it is only incremented and printed.
    """

    def __init__(self, tokens: Sequence[ForeignToken]) -> None:
        aggregated: set[str] = set()
        valued: set[str] = set()
        # Keys with which a map is used, by its name; "" for a use without a key.
        self._keys: dict[str, set[str]] = {}
        every_map = {token.text for token in tokens if token.kind == "map"}
        for index, token in enumerate(tokens):
            if token.kind != "map":
                continue
            key, after = _key(tokens, index)
            before = _plain(tokens[max(0, index - 4) : index])
            is_whole = key is None and before.endswith(_TAKE_WHOLE_MAPS)
            if not is_whole:
                self._keys.setdefault(token.text, set()).add(_plain(key or ()))
            follows = _text_at(tokens, after)
            if follows == "=":
                value = _text_at(tokens, _after_space(tokens, after + 1))
                (aggregated if value in _AGGREGATING else valued).add(token.text)
            elif not (
                before.endswith(_TAKE_WHOLE_MAPS)
                or (follows in ("++", "+=") and not before.endswith(("=", "(", ",")))
            ):
                valued.add(token.text)
        self.aggregations = every_map - (valued - aggregated)

    def variable(self, name: str, key: str) -> str:
        """Return D's variable for an element of a map that is no aggregation.

        Args:
            name: the map's name, with the @.
            key: the element's key in D; "" for a map without keys.
        """
        word = name[1:] or "value"
        if self._keys.get(name) == {"tid"}:
            return f"self->{word}"
        taken = word in builtins.VARIABLES or word in builtins.CALLABLE or word in builtins.ARRAYS
        word += "_" * taken
        return f"{word}[{key}]" if key else word


def _key(tokens: Sequence[ForeignToken], index: int) -> tuple[Sequence[ForeignToken] | None, int]:
    """Return the tokens of a map's key (None without a key), and the index of the token after the
    key.

    Args:
        index: index of the map's name.
    """
    after = _after_space(tokens, index + 1)
    if _text_at(tokens, after) != "[" or (end := _group_end(tokens, after)) < 0:
        return None, after
    return tokens[after + 1 : end], _after_space(tokens, end + 1)


def _with_increments(tokens: Sequence[ForeignToken]) -> list[ForeignToken]:
    """Return the tokens of a program with `@x[KEY] += VALUE` in place of `@x[KEY] = @x[KEY] +
    VALUE`, so that such a map is known as an aggregation."""
    found, index = list[ForeignToken](), 0
    while index < len(tokens):
        _, after = _key(tokens, index)
        element = _plain(tokens[index:after])
        value = _after_space(tokens, after + 1)
        if tokens[index].kind == "map" and _text_at(tokens, after) == "=" and value < len(tokens):
            _, plus = _key(tokens, value)
            end = next((i for i in range(value, len(tokens)) if tokens[i].text in (";", "}")), -1)
            added = tokens[plus + 1 : end] if end >= 0 else tokens[plus + 1 :]
            if (
                _text_at(tokens, plus) == "+"
                and _plain(tokens[value:plus]) == element
                and not any(one.text in _LOOSER_THAN_PLUS for one in added)
                and not any(one.text == tokens[index].text for one in added)
            ):
                found += [*tokens[index:after], ForeignToken("sign", "+=")]
                index = plus + 1
                continue
        found.append(tokens[index])
        index += 1
    return found


class _ForeignProgram:
    """A program of bpftrace."""

    def __init__(self, text: str, *, keeps_maps: bool = False) -> None:
        """Divide a program into tokens.

        Args:
            keeps_maps: whether maps are left as they are.
        """
        self._text = "".join(
            _LINE_COMMENT.sub(r"/*\1 */", one.text) if one.kind == "space" else one.text
            for one in _with_increments(_tokens(text))
        )
        self._maps = _Maps(_tokens(self._text))
        if keeps_maps:
            self._maps.aggregations = {one.text for one in _tokens(self._text)}

    def in_d(self) -> str:
        """Return the program in D; "" if its clauses cannot be told apart."""
        text, position, clauses = self._text, 0, []
        while position < len(text):
            space = _BETWEEN_CLAUSES.match(text, position)
            assert space is not None
            clauses.append(space.group())
            position = space.end()
            if position == len(text):
                break
            probes = _PROBES.match(text, position)
            if probes is None:
                return ""
            described = self._described(probes.group())
            clauses.append(", ".join(described.descriptions))
            position = probes.end()
            predicate = _PREDICATE.match(text, position)
            if predicate is not None:
                condition = _tokens(predicate["condition"])
                condition_in_d = self._translated(condition, described)
                clauses.append(f"{predicate['before']}/{condition_in_d}/")
                position = predicate.end()
            body = _tokens(text[position:])
            start = _after_space(body, 0)
            if start == len(body):
                break
            end = _group_end(body, start)
            if _text_at(body, start) != "{" or end < 0:
                return ""
            inside = body[start + 1 : end]
            before = _joined(body[:start])
            clauses.append(f"{before}{{{self._translated(inside, described)}}}")
            position += len(_joined(body[: end + 1]))
        result = "".join(clauses)
        return _BEGUN + result if "- begun)" in result else result

    @staticmethod
    def _described(text: str) -> ClauseProbes:
        words = [one.strip() for one in text.split(",")]
        return ClauseProbes(tuple(description_in_d(one) or one for one in words))

    def _translated(self, tokens: Sequence[ForeignToken], probes: ClauseProbes) -> str:
        """Return the text in D of a part of a clause."""
        return _ClausePart(self._maps, probes).translated(tokens)


class _ClausePart:
    """Translator of a clause's predicate or actions."""

    def __init__(self, maps: _Maps, probes: ClauseProbes) -> None:
        self._maps = maps
        self._probes = probes

    def translated(self, tokens: Sequence[ForeignToken]) -> str:
        """Return the text in D for these tokens."""
        parts, index = [], 0
        while index < len(tokens):
            text, index = self._next(tokens, index)
            parts.append(text)
        return "".join(parts)

    def _next(self, tokens: Sequence[ForeignToken], index: int) -> tuple[str, int]:
        """Translate the tokens at `index`, and return their text in D and the index after them."""
        token = tokens[index]
        after = _after_space(tokens, index + 1)
        if token.kind == "map":
            return self._map(tokens, index)
        if token.kind == "scratch" and token.text != "$target":
            return f"this->{token.text[1:]}", index + 1
        if token.text == "(" and self._is_tuple(tokens, index):
            return f"{_TUPLE}(", index + 1
        if token.kind != "word" or _plain(tokens[:index]).endswith(("->", ".", "struct")):
            return token.text, index + 1
        if token.text == "let":
            return "", after
        if token.text == "args" and _text_at(tokens, after) in ("->", "."):
            named = _after_space(tokens, after + 1)
            if text := self._parameter(_text_at(tokens, named)):
                return text, named + 1
        if _text_at(tokens, after) == "(" and (end := _group_end(tokens, after)) >= 0:
            text = self._call(token.text, _arguments(tokens[after + 1 : end]))
            return (text, end + 1) if text else (token.text, index + 1)
        return self._value(token.text), index + 1

    @staticmethod
    def _is_tuple(tokens: Sequence[ForeignToken], index: int) -> bool:
        """Return whether the parenthesis at `index` begins a tuple. D has none: `(a, b)` is b."""
        end = _group_end(tokens, index)
        before = _plain(tokens[:index])
        return (
            (not before or before[-1] in "=(,")
            and end >= 0
            and len(_arguments(tokens[index + 1 : end])) > 1
        )

    def _map(self, tokens: Sequence[ForeignToken], index: int) -> tuple[str, int]:
        name = tokens[index].text
        key, after = _key(tokens, index)
        inside = "" if key is None else self.translated(key)
        if name not in self._maps.aggregations:
            end = after if key is not None else index + 1
            space = " " if key is not None and tokens[after - 1].kind == "space" else ""
            return self._maps.variable(name, inside) + space, end
        element = name if key is None else f"{name}[{inside}]"
        follows = _text_at(tokens, after)
        if follows == "++":
            return f"{element} = count()", after + 1
        if follows == "+=":
            end = next((i for i in range(after, len(tokens)) if tokens[i].text == ";"), len(tokens))
            return f"{element} = sum({self.translated(tokens[after + 1 : end]).strip()})", end
        space = " " if tokens[after - 1].kind == "space" and after <= len(tokens) else ""
        return element + space, after

    def _value(self, name: str) -> str:
        """Return the expression in D for a builtin of bpftrace; any other name unchanged."""
        if name == "retval":
            return "arg1" if self._probes.all_match(".*:return") else name
        if name in ("func", "probe"):
            whole = self._probes.all_match("(?:fbt|syscall|kinst):.*")
            return "probefunc" if whole or name == "func" else "probename"
        if name in _INTEGERS:
            return f"{name}_t"
        return _VALUES.get(name, name)

    def _parameter(self, name: str) -> str:
        """Return the expression in D for args.NAME of bpftrace; "" if it is not known."""
        if self._probes.all_match("syscall:.*:return"):
            return "arg1" if name == "ret" else ""
        if call := self._probes.system_call:
            number = _FLAGS.get(call) if name == "flags" else _PARAMETERS.get(name)
            if name in ("pathname", "filename") and call in _SECOND:
                number = 1
            return "" if number is None else f"arg{number}"
        return f"locals->{name}" if self._probes.all_match("fbt:.*:entry") else ""

    def _call(self, name: str, arguments: Sequence[Sequence[ForeignToken]]) -> str:
        """Return the text in D of a call; "" if the function has the same name in D, or no
        counterpart."""
        first = _plain(arguments[0]) if arguments else ""
        match name:
            case "exit":
                return "" if arguments else "exit(0)"
            case "print":
                return self._call_print(arguments)
            case "clear" | "zero" if self._is_variable(first):
                return f"/* {first} is a variable, which D does not print at the end */"
            case "delete":
                element = self._element(arguments)
                return f"{element} = 0" if element else ""
            case "has_key":
                element = self._element(arguments) if arguments[1:] else ""
                return f"{element} != 0" if element else ""
            case "str":
                return self._call_str(arguments)
            case "kaddr":
                return f"(uint64_t)&`{first.strip(_QUOTE)}"
            case "reg":
                return _register(first.strip(_QUOTE))
            case "signal":
                return f"raise({_SIGNALS.get(first.strip(_QUOTE).removeprefix('SIG'), first)})"
            case "time":
                end = r"\n" if not arguments or first.endswith(r'\n"') else ""
                return f'printf("%Y{end}", walltimestamp)'
        form = _CALLS.get(name)
        if form is None:
            return ""
        inside = ", ".join(self.translated(one).strip() for one in arguments)
        return form % inside if "%s" in form else form

    def _is_variable(self, name: str) -> bool:
        return name.startswith("@") and name not in self._maps.aggregations

    def _call_print(self, arguments: Sequence[Sequence[ForeignToken]]) -> str:
        name = _plain(arguments[0]) if arguments else ""
        if name in self._maps.aggregations:
            shown = f"printa({name})"
            return f"trunc({name}, {_plain(arguments[1])}); {shown}" if arguments[1:] else shown
        is_variable = bool(arguments) and arguments[0][0].kind in ("map", "scratch")
        return f"trace({self.translated(arguments[0])})" if is_variable else ""

    def _element(self, arguments: Sequence[Sequence[ForeignToken]]) -> str:
        """Return D's variable for the element of a map that a call names, as MAP[KEY] or as MAP,
        KEY; "" if the map is an aggregation."""
        first = arguments[0] if arguments else ()
        name = _text_at(first, _after_space(first, 0))
        if not name.startswith("@") or name in self._maps.aggregations:
            return ""
        if arguments[1:]:
            key = ", ".join(self.translated(one).strip() for one in arguments[1:])
            return self._maps.variable(name, key)
        return self.translated(first).strip()

    def _call_str(self, arguments: Sequence[Sequence[ForeignToken]]) -> str:
        inside = self.translated(arguments[0]).strip() if arguments else ""
        if re.fullmatch(r"\$[0-9]+", inside):
            return f"${inside}"
        functions = [one.split(":")[2] for one in self._probes.descriptions if one.count(":") == 3]
        by_process = self._probes.all_match("syscall:.*") or (
            "->" not in inside and all(map(_TAKES_USER_STRING.fullmatch, functions))
        )
        return f"{'copyinstr' if by_process else 'stringof'}({inside})" if inside else ""


def _register(name: str) -> str:
    """Return the D expression for a register by the name that perf and bpftrace give it."""
    short = re.fullmatch(r"[abcd]x|[sd]i|[sbi]p", name)
    return f"regs[R_{'R' * bool(short)}{name.upper()}]"


_DEFINITION = re.compile(
    r"(?:(?P<kind>[pr])(?:[0-9]*(?::[\w/]+)?\s+|:))?(?P<function>[A-Za-z_][\w.]*)(?P<place>%return|\+\w+)?"
    r"(?P<arguments>(?:\s+[^\s{}]+)*)"
)
_ARGUMENT = re.compile(r"(?:(?P<name>\w+)=)?(?P<value>[^=:]+)(?::(?P<type>\w+))?")
_MEMORY = re.compile(r"[+-]u?(?P<offset>\w+)\((?P<base>.*)\)")


def _probe_definition(text: str) -> str:
    """Return the clause in D for a probe as perf probe and tracefs define one; "" for any other
    text."""
    match = _DEFINITION.fullmatch(text)
    if match is None or not (match["kind"] or match["place"] or match["arguments"]):
        return ""
    place = match["place"] or ""
    if match["kind"] == "r" or place == "%return":
        description = f"fbt::{match['function']}:return"
    elif place:
        description = f"kinst::{match['function']}:{place[1:]}"
    else:
        description = f"fbt::{match['function']}:entry"
    formats, values = [], []
    for written in match["arguments"].split():
        argument = _ARGUMENT.fullmatch(written)
        value = argument and _fetched(argument["value"], argument["type"] or "")
        if not argument or not value:
            return ""
        is_text = (argument["type"] or "").endswith("string") or value == "execname"
        name = argument["name"] or argument["value"].lstrip("$%@")
        formats.append(f"{name}=%s" if is_text else f"{name}=%#x")
        values.append(value)
    if not values:
        return description
    return f'{description} {{ printf("{" ".join(formats)}\\n", {", ".join(values)}); }}'


def _fetched(value: str, type_: str) -> str:
    """Return the D expression for a fetch argument of perf probe; "" if it is not known."""
    if type_.endswith("string"):
        memory = _MEMORY.fullmatch(value)
        address = _address(memory) if memory else _fetched(value, "")
        read = "copyinstr" if type_ == "ustring" else "stringof"
        return f"{read}({address})" if address else ""
    if memory := _MEMORY.fullmatch(value):
        address = _address(memory)
        return f"*(uint64_t *)({address})" if address else ""
    fixed: dict[str, str] = {"$retval": "arg1", "$comm": "execname"}
    if value in fixed:
        return fixed[value]
    forms: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
        (r"%(\w+)", lambda m: _register(m[1])),
        (r"\$arg([1-9])", lambda m: f"arg{int(m[1]) - 1}"),
        (r"@([A-Za-z_]\w*)", lambda m: f"`{m[1]}"),
        (r"[A-Za-z_]\w*(?:->\w+|\.\w+)*", lambda m: f"(uint64_t)locals->{m[0]}"),
    )
    for form, result in forms:
        if match := re.fullmatch(form, value):
            return result(match)
    return ""


def _address(memory: re.Match[str]) -> str:
    base = _fetched(memory["base"], "")
    sign = "-" if memory[0].startswith("-") else "+"
    if not base:
        return ""
    return base if memory["offset"] == "0" else f"{base} {sign} {memory['offset']}"
