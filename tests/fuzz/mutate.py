"""Inputs near to valid ones: bytes, words, lines and JSON values that are changed, moved and mixed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

LARGEST = 40_000  # bytes; what larger ones do is in test_reader_budgets.py

_WORDS = re.compile(rb"\w+|[^\S\n]+|\n|[^\w\s]")
_ODD_WORDS = [
    *(b"0", b"-1", b"1", b"2", b"3", b"7", b"1.5", b"1e308", b"-1e308", b"1e400", b"5e-324", b"0x10", b"1_0"),
    *(
        b"nan",
        b"NaN",
        b"inf",
        b"-inf",
        b".inf",
        b".nan",
        b"Infinity",
        b"true",
        b"null",
        b"~",
        b"None",
        b"yes",
    ),
    *(str(n).encode() for n in (2**31, 2**32, 2**48, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**309)),
    *(b"''", b'""', b'"', b"'", b"[]", b"{}", b"[[]]", b"()", b"(", b")", b"{", b"}", b"[", b"]", b",", b"#"),
    *(
        b"%",
        b"@",
        b"&a",
        b"*a",
        b"<<",
        b"!!int",
        b"|",
        b">",
        b"---",
        b"?",
        b"\\",
        b"\\u0000",
        b"/",
        b"..",
        b"*",
    ),
    *("é٣²\u202e\U0001f600\ufeff\u2028".encode(), "٣".encode(), "²".encode(), b"\x00", b"\xff", b"\r", b"\t"),
]
_ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**53 + 1, 2**63, 2**64, 10**400),
    *("", "a", "0", "8", "\x00", "\ud800", [], {}, [0], [[]], {"": 0}, float("nan"), float("inf")),
]


class Mutator:
    """Changes inputs at random; `corpus` lends it words and parts."""

    def __init__(self, chance: random.Random, corpus: Sequence[bytes]) -> None:
        self.chance = chance
        self.words = sorted({w for data in corpus for w in _WORDS.findall(data) if len(w) < 60})
        self.alike = {k: [w for w in (*self.words, *_ODD_WORDS) if _class(w) == k] for k in range(3)}
        self.text = (
            self._bytes,
            self._move,
            self._splice,
            *[self._word] * 2,
            *[self._same] * 5,
            *[self._lines] * 3,
        )
        self.json = (*self.text, *[self._tree] * 20)

    def __call__(self, data: bytes, other: bytes) -> bytes:
        """`data` after one to four changes, some with parts of `other`."""
        for _ in range(self.chance.choice((1, 1, 1, 2, 2, 3, 4))):
            how = self.json if data[:1] == b"{" or data[8:9] == b"{" else self.text
            data = self.chance.choice(how)(data, other)
        return data[:LARGEST]

    def _span(self, length: int, most: int) -> tuple[int, int]:
        start = self.chance.randrange(length + 1)
        return start, min(length, start + self.chance.randint(0, most))

    def _bytes(self, data: bytes, _: bytes) -> bytes:
        start, end = self._span(len(data), 8)
        new = self.chance.choice(
            (b"", self.chance.randbytes(1), data[start:end] * 2, b"\x00" * (end - start))
        )
        return data[:start] + new + data[end:]

    def _word(self, data: bytes, _: bytes) -> bytes:
        words = _WORDS.findall(data) or [b""]
        at = self.chance.randrange(len(words))
        pick = self.chance.random()
        if pick < 0.3:
            words[at] = self.chance.choice(_ODD_WORDS)
        elif pick < 0.6:
            words[at] = self.chance.choice(self.words)
        elif pick < 0.8:
            words[at] = b""
        else:
            words[at] *= self.chance.choice((2, 3, 40))
        return b"".join(words)

    def _same(self, data: bytes, _: bytes) -> bytes:
        """A word for a word, a number for a number."""
        words = _WORDS.findall(data)
        places = [i for i, word in enumerate(words) if _class(word) < 2]
        if not places:
            return data
        at = self.chance.choice(places)
        if words[at].isdigit() and len(words[at]) < 40 and self.chance.random() < 0.3:
            words[at] = str(max(0, int(words[at]) + self.chance.choice((-1, 1)))).encode()
        else:
            words[at] = self.chance.choice(self.alike[_class(words[at])])
        return b"".join(words)

    def _move(self, data: bytes, _: bytes) -> bytes:
        start, end = self._span(len(data), 60)
        rest = data[:start] + data[end:]
        to = self.chance.randrange(len(rest) + 1)
        return rest[:to] + data[start:end] + rest[to:]

    def _lines(self, data: bytes, other: bytes) -> bytes:
        lines, others = data.split(b"\n"), other.split(b"\n")
        at = self.chance.randrange(len(lines))
        start, end = self._span(len(others), 3)
        choices = (
            lambda: lines[:at] + lines[at + 1 :],
            lambda: [*lines[: at + 1], lines[at], *lines[at + 1 :]],
            lambda: lines[:at] + others[start:end] + lines[at:],
            lambda: lines[:at] + others[start:end] + lines[at + 1 :],
            lambda: [lines[at], *lines[:at], *lines[at + 1 :]],
        )
        return b"\n".join(self.chance.choice(choices)())

    def _splice(self, data: bytes, other: bytes) -> bytes:
        return data[: self.chance.randrange(len(data) + 1)] + other[self.chance.randrange(len(other) + 1) :]

    def _tree(self, data: bytes, other: bytes) -> bytes:
        """JSON with a value changed, taken away, put twice or taken from another; after a header's length."""
        framed = data[:1] != b"{" and data[8:9] == b"{"
        try:
            tree = json.loads(data[8:] if framed else data)
            values = _values(json.loads(other[other.find(b"{") :]))
        except (ValueError, RecursionError):
            return self._word(data, other)
        places = _places(tree)
        if not places:
            return data
        into, key = self.chance.choice(places)
        pick = self.chance.random()
        if pick < 0.4:
            into[key] = self.chance.choice(_ODD_VALUES)
        elif pick < 0.6:
            into[key] = self.chance.choice(values)
        elif pick < 0.75:
            del into[key]
        elif pick < 0.9:
            old = into[key]
            into[key] = self.chance.choice(([old], {str(key): old}, str(old), [old, old]))
        elif isinstance(into, dict):
            into[str(self.chance.choice(_ODD_VALUES))] = self.chance.choice(values)
        text = json.dumps(tree).encode()
        return len(text).to_bytes(8, "little") + text if framed else text


def _class(word: bytes) -> int:
    """0 for a number, 1 for a word, 2 for all else."""
    return 0 if re.fullmatch(rb"[-+.]?\d[\w.+-]*", word) else 1 if re.fullmatch(rb"[\w.]+", word) else 2


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Each list or object with each of its keys."""
    if not isinstance(tree, dict | list):
        return []
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    return [(tree, k) for k in keys] + [place for k in keys for place in _places(tree[k])]


def _values(tree: Any) -> list[Any]:
    return [json.loads(json.dumps(into[key])) for into, key in _places(tree)] or [tree]
