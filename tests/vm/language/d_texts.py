"""String expressions of D, made at random."""

from __future__ import annotations

from collections.abc import Callable

from tests.vm.language.d_integers import Integers
from tests.vm.language.d_model import LONG, Text, World, there
from tests.vm.language.d_strings import basename, cleanpath, dirname, join, lltostr, rest, substr

LETTERS = "abcABC/. 019"
_OF_ONE: dict[str, Callable[[bytes], bytes]] = {
    "toupper": bytes.upper, "tolower": bytes.lower, "basename": basename, "dirname": dirname,
}  # fmt: skip


class Texts(Integers):
    """String expressions, in addition to integer expressions."""

    def quoted(self, least: int = 1, letters: str = LETTERS) -> Text:
        text = "".join(self.random.choices(letters, k=self.random.randrange(least, 9)))
        return Text(f'"{text}"', lambda _: text.encode())

    def string(self, depth: int) -> Text:
        if depth <= 0:
            if self.scope.strings and self.chance(0.4):
                name = self.random.choice(self.scope.strings)
                first = None if name.startswith("self->") else b""
                return Text(name, lambda w: w.values.get(name, first))  # type: ignore[return-value]
            return self.quoted()
        makers = [
            self.joined, self.joined, self.of_one, self.of_one, self.part, self.part,
            self.of_number, self.chosen_text, self.cleaned,
        ]  # fmt: skip
        if self.faults:
            makers += [self.found, self.found, self.chosen_or_null]
        return self.random.choice(makers)(depth - 1)

    def joined(self, depth: int) -> Text:
        a, b = self.string(depth), self.string(depth)

        def value(w: World) -> bytes:
            x, y = a.value(w), b.value(w)
            return join(there(x), there(y))

        return Text(f"strjoin({a.text}, {b.text})", value)

    def of_one(self, depth: int) -> Text:
        a = self.string(depth)
        name, work = self.random.choice(list(_OF_ONE.items()))
        return Text(f"{name}({a.text})", lambda w: work(there(a.value(w))))

    def part(self, depth: int) -> Text:
        a, index = self.string(depth), self.random.randrange(-4, 6)
        length = self.random.choice([None, -2, 0, 1, 3, 20])
        more = "" if length is None else f", {length}"
        return Text(f"substr({a.text}, {index}{more})",
                    lambda w: substr(there(a.value(w)), index, length))  # fmt: skip

    def of_number(self, depth: int) -> Text:
        n = self.number(1)
        base = self.random.choice((None, None, 2, 8, 10, 16, 36))
        more = "" if base is None else f", {base}"
        return Text(f"lltostr({n.text}{more})", lambda w: lltostr(LONG.fit(n.value(w)), base or 10))

    def chosen_text(self, depth: int) -> Text:
        c, a, b = self.number(0), self.string(depth), self.string(depth)
        return Text(f"({c.text} ? {a.text} : {b.text})",
                    lambda w: a.value(w) if c.value(w) else b.value(w))  # fmt: skip

    def chosen_or_null(self, depth: int) -> Text:
        c, a = self.number(1), self.string(depth)
        return Text(f"({c.text} ? {a.text} : NULL)",
                    lambda w: a.value(w) if c.value(w) else None)  # fmt: skip

    def cleaned(self, depth: int) -> Text:
        parts = [*self.random.choices(("a", "bc", ".", "..", "", ".x", "..y"), k=5), "end"]
        path = "/" + "/".join(parts)
        return Text(f'cleanpath("{path}")', lambda _: cleanpath(path.encode()))

    def found(self, depth: int) -> Text:
        """Return a search, which is NULL if nothing is found."""
        a = self.string(depth)
        if self.chance(0.4):
            b = self.quoted(0, "abc/")
            return Text(f"strstr({a.text}, {b.text})", lambda w: _found(a.value(w), b.value(w)))
        letter = self.random.choice("abcA/")
        name, work = self.random.choice((("strchr", bytes.find), ("strrchr", bytes.rfind)))

        def value(w: World) -> bytes | None:
            text = there(a.value(w))
            return rest(text, work(text, letter.encode()))

        return Text(f"{name}({a.text}, '{letter}')", value)


def _found(s: bytes | None, t: bytes | None) -> bytes | None:
    return rest(there(s), there(s).find(there(t)))
