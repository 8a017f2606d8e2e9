"""What `make mutants` changes: an operator, constant, condition, return or statement at a time."""

from __future__ import annotations

import ast
import copy
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be instead."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    new = copy.deepcopy(node)
                    new.ops[i] = other()
                    yield new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.Constant() | ast.UnaryOp() | ast.IfExp() | ast.Call():
            yield from _simple(node)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for i, loop in enumerate(node.generators):
                for j in range(len(loop.ifs)):
                    new = copy.deepcopy(node)
                    del new.generators[i].ifs[j]
                    yield new


def _simple(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield ast.Call(ast.Name(_TWINS[name]), node.args, node.keywords)
        case ast.Call(func=ast.Name(id="reversed" | "sorted"), args=[first, *_]):
            yield first


def _statements(node: ast.stmt) -> Iterator[str]:
    """The text that a statement may be instead; of compound ones only the head changes (`_heads`)."""
    match node:
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "return None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@dataclass(frozen=True)
class Mutant:
    """A module with one change: `text` from `start` to `end`; and the lines that it changes."""

    root: Path
    file: str
    line: int
    old: str
    new: str
    start: int
    end: int
    text: str

    @property
    def source(self) -> str:
        """The text of the module with the change."""
        source = (self.root / self.file).read_text(encoding="utf-8")
        return source[: self.start] + self.text + source[self.end :]

    @property
    def runs(self) -> bool:
        """Whether Python compiles it; scripts of pages always run."""
        try:
            if self.file.endswith(".py"):
                compile(self.source, self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by, wherever its lines are."""
        return self.file, " ".join(self.old.split()), " ".join(self.new.split())

    def __str__(self) -> str:
        old, new = ([x.strip() for x in text.splitlines()] for text in (self.old, self.new))
        gone = "".join(f"\n  - {x}" for x in old if x not in new)
        return f"{self.file}:{self.line}{gone}" + "".join(f"\n  + {x}" for x in new if x not in old)


def mutants(file: Path, root: Path) -> Iterator[Mutant]:
    """All that are made of one module of the project in `root`, in the order of its lines."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def spans() -> Iterator[tuple[int, int, str]]:
        if file.suffix == ".js":
            yield from _script_changes(source)
            return
        for node, text in _changes(ast.parse(source)):
            yield (
                offset(node.lineno, node.col_offset),
                offset(node.end_lineno, node.end_col_offset),
                text,
            )

    for start, end, text in spans():
        top, bottom = bisect_right(starts, start) - 1, bisect_right(starts, end - 1)
        first, last = starts[top], starts[bottom]
        old, new = source[first:last], source[first:start] + text + source[end:last]
        name = str(file.relative_to(root))
        yield Mutant(root, name, top + 1, old.rstrip(), new.rstrip(), start, end, text)


# A string, template, comment or regular expression of a script, which stays; or what is changed.
_TOKEN = re.compile(
    r"""(?P<kept>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|//[^\n]*|/\*.*?\*/|=>|\?\.|(?<=[(,=:])\s*/(?![/*])(?:\\.|[^/\\\n])+/)"""
    r"""|(?P<changed>===|!==|<=|>=|&&|\|\||\?\?|(?<=\s)[<>+\-*/](?=\s)|\b(?:true|false|min|max|some|every)\b(?!\s*:)|(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]))""",
    re.DOTALL,
)
_SCRIPT = {
    **{"===": "!==", "!==": "===", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "&&": "||", "||": "&&"},
    **{"??": "&&", "+": "-", "-": "+", "*": "+", "/": "*", "true": "false", "false": "true"},
    **{"min": "max", "max": "min", "some": "every", "every": "some"},
}


def _script_changes(source: str) -> Iterator[tuple[int, int, str]]:
    """Operators, constants and conditions of a script of pages, in JavaScript, but not what it imports."""
    for found in _TOKEN.finditer(source):
        if word := found["changed"]:
            line = source[source.rfind("\n", 0, found.start()) + 1 : found.end()]
            if not line.lstrip().startswith(("import ", "export const {", "const { floor")):
                yield found.start(), found.end(), _SCRIPT.get(word) or f"({word} + 1)"


def _changes(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """A node and the text in its place, for all below `node`; not of types, messages and docstrings."""
    match node:
        case ast.expr():
            for other in _expressions(node):
                yield node, f"({ast.unparse(ast.fix_missing_locations(other))})"
        case ast.stmt():
            for text in _statements(node):
                yield node, text
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare):
        yield node.test, f"(not ({ast.unparse(node.test)}))"  # comparisons are turned round anyway
    for below in _judged(node):
        yield from _changes(below)


def _judged(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node and is run."""
    match node:
        case ast.keyword(arg="strict"):  # of zip: a check of lengths that are known to be equal
            return
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
            return
    kept = {"annotation", "returns", "decorator_list", "type_params"}
    for name, value in ast.iter_fields(node):
        if name not in kept:
            for below in value if isinstance(value, list) else [value]:
                if isinstance(below, ast.AST):
                    yield below
