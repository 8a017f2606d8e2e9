"""Readers of YAML, JSON and CSV that stop at a budget and refuse repeated keys.

A `Budget` limits bytes, values, nesting and digits. Text that is malformed or exceeds a limit raises
`UnreadableError` with one line; the caller adds the name of the file. YAML is read as plain data, event by
event, so that aliases cannot grow beyond the budget; nothing in it is executed. In JSON, a repeated key is an
error only if its values differ.
"""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .dataclass import dataclass
from .errors import UnreadableError
from .names import plain

if TYPE_CHECKING:
    import csv

# --- Budgets and files ---

_PIECE = 1 << 20


@dataclass(frozen=True)
class Budget:
    """Limits of one text: bytes, number of values, nesting depth, and consecutive digits.

    The target of an alias counts once for each use.
    """

    bytes: int
    nodes: int
    depth: int
    digits: int = 400  # no number of a model or machine has more digits, and Python's limit is 4,300


def read_bytes(path: str | os.PathLike[str], budget: Budget) -> bytes:
    """The bytes of a file; `UnreadableError` if it cannot be read, or is larger than the budget."""
    try:
        with Path(path).expanduser().open("rb") as stream:
            data = bytearray()  # read in pieces, so that a large budget allocates no more than the file needs
            while piece := stream.read(min(_PIECE, budget.bytes + 1 - len(data))):
                data += piece
    except (OSError, ValueError, RuntimeError) as error:  # a name with a NUL, an unknown ~user
        raise UnreadableError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > budget.bytes:
        raise UnreadableError(f"too large: more than {budget.bytes:,} bytes")
    return bytes(data)


def decode_text(data: bytes, budget: Budget) -> str:
    """Decode bytes as UTF-8; UnreadableError for invalid bytes, an exceeded budget, or a long number."""
    if len(data) > budget.bytes:
        raise UnreadableError(f"too large: more than {budget.bytes:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8 text (byte {error.start})") from None
    check_digits(text, budget.digits)
    return text


def check_digits(text: str, most: int) -> None:
    """`UnreadableError` for a number of more than `most` digits."""
    found = re.search(rf"\d{{{most + 1}}}", text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        where = f" in line {line}" if "\n" in text.strip() else ""
        raise UnreadableError(f"a number of more than {most} digits{where}")


def expression(text: str) -> ast.expr:
    """The syntax tree of a Python expression, which is not executed; `SyntaxError` also where Python would
    only warn.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # report warnings such as for `1and` as errors instead of on stderr
        return ast.parse(text.strip(), mode="eval").body


# --- YAML ---

BUDGET = Budget(bytes=2**20, nodes=20_000, depth=32, digits=100)

_PLAIN = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
_TAG = "tag:yaml.org,2002:"
_TEXT = f"{_TAG}str"


def load_yaml(data: bytes, budget: Budget = BUDGET) -> Any:
    """Parse YAML; None for an empty text. UnreadableError names the line with the error.

    >>> load_yaml(b"a: &x {b: 1.5}\\nc: [*x, yes]")
    {'a': {'b': 1.5}, 'c': [{'b': 1.5}, True]}
    """
    import yaml

    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is several times faster
    try:
        return _Document(budget).read(yaml.parse(decode_text(data, budget), Loader=parser))
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context
        if "maximum nesting depth" in str(problem):  # libyaml 0.2.6 stops at 1,000 levels that it looks ahead
            problem = f"nested more than {budget.depth} deep"
        raise _broken(error.problem_mark or error.context_mark, problem) from None
    except yaml.YAMLError as error:
        raise UnreadableError(f"broken YAML: {plain(' '.join(str(error).split()), 120)}") from None


def _broken(at: Any, problem: object) -> UnreadableError:
    where = f" at line {at.line + 1}, column {at.column + 1}" if at else ""
    return UnreadableError(f"broken YAML{where}: {plain(' '.join(str(problem).split()), 120)}")


@dataclass
class _Open:
    """A list or mapping that has not ended: the key that waits for its value, and its size and depth so
    far.
    """

    value: Any
    anchor: str | None
    at: Any
    key: Any = None
    waits: bool = False  # for the value of `key`
    size: int = 1
    height: int = 1
    merged: list[Any] = field(default_factory=list)


class _Document:
    """One document, built from its events."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.open: list[_Open] = []
        self.named: dict[
            str, tuple[Any, int, int] | None
        ] = {}  # value, size, height; None while it is incomplete
        self.nodes = 0
        self.documents = 0
        self.result: Any = None

    def read(self, events: Iterable[Any]) -> Any:
        """Build the value from parser events."""
        for event in events:
            self.take(event, event.start_mark)
        return self.result

    def take(self, event: Any, at: Any) -> None:
        """One event."""
        kind = type(event).__name__
        if kind == "ScalarEvent":
            is_key = bool(self.open) and isinstance(self.open[-1].value, dict) and not self.open[-1].waits
            value = _scalar(event, at, self.budget.digits, key=is_key)
            self.name(event.anchor, (event.value if value is _MERGE else value, 1, 1))
            self.put(value, 1, 1, at)
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            is_list = kind == "SequenceStartEvent"
            _check_tag(event.tag, "seq" if is_list else "map", at)
            self.name(event.anchor, None)
            self.open.append(_Open([] if is_list else {}, event.anchor, at))
            self.count(1, len(self.open), at)
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            ended = self.open.pop()
            for under in ended.merged:
                ended.value = {**under, **ended.value}
            self.name(ended.anchor, (ended.value, ended.size, ended.height))
            self.nodes -= ended.size  # a count that `put` increments again
            self.put(ended.value, ended.size, ended.height, ended.at)
        elif kind == "AliasEvent":
            if event.anchor not in self.named:
                raise _broken(at, f"nothing is called *{event.anchor}")
            known = self.named[event.anchor]
            if known is None:
                raise _broken(at, f"*{event.anchor} is inside of itself")
            self.put(*known, at)
        elif kind == "DocumentStartEvent":
            self.documents += 1
            if self.documents > 1:
                raise _broken(at, "a second document, one is expected")

    def name(self, anchor: str | None, what: tuple[Any, int, int] | None) -> None:
        """Record the value of an anchor."""
        if anchor is not None:
            self.named[anchor] = what

    def count(self, size: int, depth: int, at: Any) -> None:
        """Raise an error if the budget is exceeded."""
        self.nodes += size
        if self.nodes > self.budget.nodes:
            raise _broken(at, f"more than {self.budget.nodes:,} values, those of aliases counted")
        if depth > self.budget.depth:
            raise _broken(at, f"nested more than {self.budget.depth} deep")

    def put(self, value: Any, size: int, height: int, at: Any) -> None:
        """Add a value to its container."""
        self.count(size, len(self.open) + height, at)
        if not self.open:
            self.result = value
            return
        into = self.open[-1]
        into.size += size
        into.height = max(into.height, height + 1)
        if isinstance(into.value, list):
            into.value.append(value)
        elif not into.waits:
            into.key, into.waits = _key(value, into.value, at), True
        elif into.key is _MERGE:
            into.merged += _merged(value, at)
            into.waits = False
        else:
            into.value[into.key] = value
            into.waits = False


_MERGE = object()


def _key(value: Any, taken: dict[Any, Any], at: Any) -> Any:
    if value is _MERGE:
        return value
    if not isinstance(value, Hashable):
        raise _broken(at, f"a key must be text or a number, not a {_kind(value)}")
    if value in taken:
        raise _broken(at, f"key {value!r} twice")
    return value


def _merged(value: Any, at: Any) -> list[dict[Any, Any]]:
    """The mappings that `<<` merges into a mapping; the first one takes precedence."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(under, dict) for under in found):
        raise _broken(at, f"<< takes mappings, got a {_kind(value)}")
    return found


def _kind(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else str(type(value).__name__)


def _check_tag(tag: str | None, expected: str, at: Any) -> None:
    if tag not in (None, "!", _TAG + expected):
        raise _broken(at, f"tag {tag} is not read")


def _scalar(event: Any, at: Any, digits: int, *, key: bool) -> Any:
    """Text, a number, true or false, a date, or None."""
    tag, value = event.tag, event.value
    if tag in (None, "!"):
        tag = _meant(value) if event.implicit[0] else _TEXT
    if tag == _TEXT:
        return value
    if tag == f"{_TAG}merge":
        return _MERGE if key else value
    what = tag.removeprefix(_TAG)
    if what not in _PLAIN:
        _check_tag(tag, "str", at)
    if len(value) > digits:
        raise _broken(at, f"a number of more than {digits} digits")
    if what == "int" and value.isdecimal() and value.isascii() and value[0] != "0":
        return int(value)  # most numbers; PyYAML's constructor takes ten times as long
    constructor, node = _rules()
    try:
        return constructor.construct_object(node(tag, value, event.start_mark, event.end_mark))
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError):  # such as `!!int x`
        raise _broken(at, f"{value[:40]!r} is no {what}") from None


def _meant(value: str) -> str:
    """The tag of an unquoted scalar."""
    for tag, pattern in _resolvers().get(value[:1], ()):
        if pattern.match(value):
            return str(tag)
    return _TEXT


@cache
def _resolvers() -> Any:
    """PyYAML's tags of unquoted scalars and their patterns, by the first character."""
    from yaml.resolver import Resolver

    return Resolver.yaml_implicit_resolvers


@cache
def _rules() -> tuple[Any, Any]:
    """PyYAML's constructor of scalars, and its node class."""
    from yaml.constructor import SafeConstructor
    from yaml.nodes import ScalarNode

    return SafeConstructor(), ScalarNode


# --- CSV ---

# The largest measured table has 24,717 rows of at most 700 characters, in 20 columns.
LINES = 1_000_000
LENGTH = 100_000
COLUMNS = 1_000


@contextmanager
def table(path: Path, more: str = "") -> Iterator[csv.DictReader[str]]:
    """The rows of a file by its header; cells beyond the header are under `more`.

    `UnreadableError` for a malformed file.
    """
    import csv

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(_lines(file), restkey=more)
            header = reader.fieldnames or []
            if len(header) > COLUMNS:
                raise UnreadableError(f"{len(header):,} columns; the limit is {COLUMNS:,}")
            if not any(header):
                raise UnreadableError("the file is empty")
            yield reader
    except OSError as error:
        raise UnreadableError(f"cannot be read, {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UnreadableError(f"not readable as CSV, {plain(str(error))}") from None


def _lines(file: TextIO) -> Iterator[str]:
    for number in range(1, LINES + 2):
        line = file.readline(LENGTH + 1)
        if not line:
            return
        if len(line) > LENGTH:
            raise UnreadableError(f"line {number:,} has more than {LENGTH:,} characters")
        yield line
    raise UnreadableError(f"more than {LINES:,} lines")


def escape_formula(cell: object) -> object:
    """Escape a cell so that no spreadsheet evaluates it: text that starts like a formula gets an apostrophe.

    >>> [escape_formula(x) for x in ("=1+1", "@SUM(A1)", "-0.5", -0.5, "+3e5", "q_proj", None)]
    ["'=1+1", "'@SUM(A1)", '-0.5', -0.5, '+3e5', 'q_proj', None]
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


# --- JSON ---

_STRING = re.compile(rb'"[^"]*"')
_INNERMOST = re.compile(rb"\[\]|\{\}")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def load_json(data: bytes, budget: Budget) -> Any:
    """Parse JSON; UnreadableError names the place of the error."""
    text = decode_text(data, budget)
    if not text.strip():
        raise UnreadableError("the file is empty")
    _check(data, budget)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableError(f"broken JSON at {where}: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # beyond lower limits of Python
        raise UnreadableError(f"broken JSON: {plain(str(error))}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            both = (plain(json.dumps(x), 60) for x in (name, found[name], value))
            raise UnreadableError("{} occurs twice, as {} and {}".format(*both))
    return found


def _check(data: bytes, budget: Budget) -> None:
    """Check the number of values and the nesting before any value is built; the contents of strings do not
    count.
    """
    if data.count(b'"') > 2 * budget.nodes + 2:  # each string is a value, or names one
        raise UnreadableError(f"more than {budget.nodes:,} values")
    bare = _STRING.sub(b"", data.replace(rb"\\", b"").replace(rb"\"", b""))
    if sum(map(bare.count, (b",", b"[", b"{", b":"))) > budget.nodes:
        raise UnreadableError(f"more than {budget.nodes:,} values")
    brackets, levels = bare.translate(None, _NO_BRACKETS), 0
    while levels <= budget.depth:  # each round removes the innermost brackets
        shorter = _INNERMOST.sub(b"", brackets)
        if shorter == brackets:
            break
        brackets, levels = shorter, levels + 1
    if levels > budget.depth or brackets.count(b"[") + brackets.count(b"{") > budget.depth:
        raise UnreadableError(f"nested more than {budget.depth} deep")
