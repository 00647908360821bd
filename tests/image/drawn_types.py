"""C declarations drawn at random, with the spelling of each type, known without a compiler; and a
program that prints where the members of the structures are."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

# In D's spelling; sizes in bits, for the widths of bit-fields.
INTEGERS = {
    "char": 8, "signed char": 8, "unsigned char": 8, "short": 16, "unsigned short": 16, "int": 32,
    "unsigned int": 32, "long": 64, "unsigned long": 64, "long long": 64, "_Bool": 1,
    "unsigned long long": 64,
}  # fmt: skip
FLOATS = ("float", "double", "long double")
VALUES = (0, 1, -1, 5, 127, 128, 255, 256, 32767, -32768, 65535, 65536, 2**31 - 1, -(2**31))


@dataclass
class Struct:
    """A structure or union.

    Attributes:
        tag: its name.
        text: its declaration.
        members: (name, its type as spelled), those of anonymous ones in their places.
        widths: of bit-fields.
    """

    tag: str
    text: str = ""
    members: list[tuple[str, str]] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)


class Declarations:
    """A C file.

    Attributes:
        prototypes: of functions, as spelled without the name.
        flat: draw no arrays of arrays.
        prefix: of all names.
    """

    def __init__(self, seed: int, *, flat: bool = False, prefix: str = "") -> None:
        self._rng, self._flat, self._prefix = random.Random(seed), flat, prefix
        self._names = 0
        self._bases = [*INTEGERS, *FLOATS]
        self._lines: list[str] = []
        self.structs: list[Struct] = []
        self.enumerators: dict[str, int] = {}
        self.typedefs: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.prototypes: dict[str, str] = {}
        for _ in range(2):
            self._enumeration()
        for _ in range(3):
            self._struct()
            self._typedef()
        for _ in range(5):
            self._variable()
            self._function()

    @property
    def source(self) -> str:
        uses = [f"{s.tag} {self._prefix}use{k};" for k, s in enumerate(self.structs)]
        return "\n".join([*self._lines, *uses]) + "\n"

    @property
    def program(self) -> str:
        """Return a C file that prints "name first-bit bits bytes" of each member, bits of a
        bit-field and bytes of its type, and "tag 0 0 bytes"."""
        lines = [self.source, "#include <stddef.h>", "#include <stdio.h>", "#include <string.h>",
                 "static void bits(const char *name, const void *at, unsigned size, int whole) {",
                 "const unsigned char *byte = at; int first = -1, count = 0;",
                 "for (unsigned k = 0; k < 8 * size; k++) if (byte[k / 8] >> k % 8 & 1)",
                 "{ if (first < 0) first = k; count++; }",
                 'printf("%s %d %d %d\\n", name, first, count, whole); }',
                 "int main(void) {"]  # fmt: skip
        for k, struct in enumerate(self.structs):
            lines.append(f'printf("{struct.tag.replace(" ", "_")} 0 0 %zu\\n", sizeof use{k});')
            for name, spelling in struct.members:
                if name in struct.widths:
                    lines.append(f"memset(&use{k}, 0, sizeof use{k}); use{k}.{name} = -1;")
                    lines.append(f'bits("{name}", &use{k}, sizeof use{k}, sizeof({spelling}));')
                else:
                    at = f"8 * offsetof({struct.tag}, {name}), sizeof use{k}.{name}"
                    lines.append(f'printf("{name} %zu 0 %zu\\n", {at});')
        return "\n".join([*lines, "return 0; }"]) + "\n"

    def _new(self, kind: str) -> str:
        self._names += 1
        return f"{self._prefix}{kind}{self._names}"

    def declaration(self, depth: int = 3) -> str:
        """Return a declaration with {} in place of the name."""
        rng = self._rng
        made, last = "{}", ""
        while depth and rng.random() < 0.55:
            kinds = ["pointer", "pointer"]
            if last != "function" and not (self._flat and "[" in made):
                kinds += ["array"]
            if last not in ("function", "array", ""):
                kinds += ["function"]
            last = rng.choice(kinds)
            if last == "pointer":
                made = f"*{made}"
            else:
                made = f"({made})" if made.startswith("*") else made
                more = self.taken(depth - 1) if last == "function" else f"[{rng.randrange(1, 9)}]"
                made += more
            depth -= 1
        bases = [b for b in self._bases if not (self._flat and "[" in self.typedefs.get(b, ""))]
        if last in ("pointer", "function"):
            bases += ["void", "struct unknown", "union unknown2"]
        base = rng.choice(bases)
        if base in INTEGERS and last == "pointer" and rng.random() < 0.4:
            base = f"{rng.choice(('const', 'volatile'))} {base}"
        return f"{base} {made}"

    def taken(self, depth: int) -> str:
        parameters = []
        for _ in range(self._rng.randrange(4)):
            one = self.declaration(min(depth, 2)).replace("{}", "")
            whole = self.typedefs.get(one.rstrip(), one)
            if "[" not in one + whole:  # C makes pointers of arrays
                parameters.append(one.rstrip())
        if parameters and self._rng.random() < 0.3:
            parameters.append("...")
        return f"({', '.join(parameters) or 'void'})"

    def _enumeration(self) -> None:
        tag = self._new("kind")
        values = self._rng.sample(VALUES, 4)
        # C has ints; larger values would make the enumeration wider.
        names = {self._new("VALUE"): value for value in values}
        self.enumerators |= names
        body = ", ".join(f"{name} = {value}" for name, value in names.items())
        self._lines.append(f"enum {tag} {{ {body} }} {self._new('used')};")
        self._bases.append(f"enum {tag}")

    def _struct(self) -> None:
        kind = self._rng.choice(("struct", "struct", "union"))
        made = Struct(f"{kind} {self._new('tag')}")
        body = self._body(made, 2)
        self._lines.append(f"{made.tag} {{ {body} }};")
        self.structs.append(made)
        self._bases.append(made.tag)

    def _body(self, made: Struct, depth: int) -> str:
        rng, parts = self._rng, []
        for _ in range(rng.randrange(2, 7)):
            name, kind = self._new("m"), rng.random()
            if kind < 0.4:
                base = rng.choice(list(INTEGERS))
                width = rng.randrange(1, INTEGERS[base] + 1)
                made.members.append((name, base))
                made.widths[name] = width
                parts.append(f"{base} {name} : {width};")
                if rng.random() < 0.2:
                    parts.append(f"{base} : {rng.randrange(INTEGERS[base])};")
            elif kind < 0.5 and depth:
                inner = self._body(made, depth - 1)
                parts.append(f"{rng.choice(('struct', 'union'))} {{ {inner} }};")
            else:
                text = self.declaration()
                made.members.append((name, text.replace("{}", "").rstrip()))
                parts.append(f"{text.replace('{}', name)};")
        return " ".join(parts)

    def _typedef(self) -> None:
        name, text = self._new("type"), self.declaration()
        if text.startswith(FLOATS) and text.endswith(" {}"):
            return  # D's floating types have no second name
        self._lines.append(f"typedef {text.replace('{}', name)};")
        self._lines.append(f"{name} {self._new('used')};")
        self.typedefs[name] = text
        self._bases.append(name)

    def _variable(self) -> None:
        name, text = self._new("variable"), self.declaration()
        self._lines.append(f"{text.replace('{}', name)};")
        self.variables[name] = text.replace("{}", "").rstrip()

    def _function(self) -> None:
        """Draw a function type with a plain result, so that its parameters are the drawn types."""
        name, taken = self._new("function"), self.taken(2)
        result = self._rng.choice(["void", *INTEGERS, "struct unknown *"])
        gap = "" if result.endswith("*") else " "
        self.prototypes[name] = f"{result}{gap}{taken}"
        named = []
        for k, one in enumerate(taken[1:-1].split(", ") if "(" not in taken[1:] else []):
            plain = one in ("void", "...")
            named.append(one if plain else f"{one}{'' if one.endswith('*') else ' '}p{k}")
        if not named:
            self._lines.append(f"extern {result}{gap}{name}{taken};")
            del self.prototypes[name]
            return
        body = "{ return 0; }" if result != "void" else "{ }"
        self._lines.append(f"{result}{gap}{name}({', '.join(named)}) {body}")


def said(folder: Path, drawn: Declarations) -> dict[str, tuple[int, int, int]]:
    """Return the program's output, by name."""
    (folder / "said.c").write_text(drawn.program)
    subprocess.run(["gcc", "-w", "-o", "said", "said.c"], cwd=folder, check=True)
    shown = subprocess.run(["./said"], cwd=folder, check=True, capture_output=True, text=True)
    rows = (line.split() for line in shown.stdout.splitlines())
    return {name: (int(bit), int(bits), int(size)) for name, bit, bits, size in rows}
