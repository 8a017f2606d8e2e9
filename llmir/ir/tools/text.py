"""The text form of programs: one op per line, with its types.

Parsing the printed text of a program gives an equal program.

    program "tiny" {layers=2}
    graph @main {
      %x = input() {axes=(batch, seq)} : int64[B, T]
      %h1 = repeat(%h) {body=layer, times=2} : bf16[B, T, 64]
      return %h1
    }
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import MISSING, fields
from typing import Any

from llmir.base.arguments import refuse
from llmir.base.errors import LlmirError, ParseError, UnreadableError
from llmir.base.formats import exporter
from llmir.base.readers import Budget, check_digits, decode_text, read_bytes
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.mesh import ONE_DEVICE, Mesh
from llmir.ir.core.op import OPS, Op
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import parse_tensor, split_commas
from llmir.ir.ops import make

BUDGET = Budget(bytes=2**26, nodes=10**6, depth=32)  # largest size of an IR file

_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_RESERVED = {"true", "false", "inf", "nan"}


def _print(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _RESERVED:
        return value
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_print, value))}{',' if len(value) == 1 else ''})"
    return repr(float(value)) if isinstance(value, float) else str(value)


def _attributes(op: Op) -> dict[str, Any]:
    return {
        f.name: value
        for f in fields(op)
        if "Tensor" not in str(f.type)  # result types, after the colon
        and ((value := getattr(op, f.name)) != f.default or f.default is MISSING)
    }


def _block(attributes: dict[str, Any]) -> str:
    return f" {{{', '.join(f'{k}={_print(v)}' for k, v in attributes.items())}}}" if attributes else ""


def print_node(node: Node) -> str:
    """Print one op as a line of IR.

    Args:
        node: The node.

    Returns:
        The line, without an indent.

    >>> print_node(parse_node("%y  =  silu(%x) : bf16[B,T,8]"))
    '%y = silu(%x) : bf16[B, T, 8]'
    """
    types = ", ".join(map(str, node.results))
    operands = ", ".join(map(str, node.operands))
    return f"%{node.name} = {node.op.opcode}({operands}){_block(_attributes(node.op))} : {types}"


@exporter("ir", ".ir", of=Graph)
def print_graph(graph: Graph) -> str:
    """Print a graph with one op per line.

    Args:
        graph: The graph.

    Returns:
        The text.

    >>> from llmir.ir.tools.build import Builder
    >>> b = Builder()
    >>> b.output(b.silu(b.input("bf16[B, 8]", name="x"), name="y"))
    >>> print(print_graph(b.graph()).splitlines()[2].strip())
    %y = silu(%x) : bf16[B, 8]
    """
    lines = [print_node(n) for n in graph.nodes] + [f"return {', '.join(map(str, graph.outputs))}"]
    return "\n".join([f"graph @{graph.name} {{", *(f"  {line}" for line in lines), "}"])


@exporter("ir", ".ir", of=Program)
def print_program(program: Program) -> str:
    """Print a program in its text form, which `parse_program` reads.

    Args:
        program: The program.

    Returns:
        The text: the mesh, the phases, and all graphs with one op per line.

    Raises:
        InputError: The argument is not a program.

    >>> from llmir.api.load import load
    >>> print_program(load("gpt2")).startswith("program")
    True
    """
    if not isinstance(program, Program):
        refuse("program", program, "a Program, such as llmir.load gives")
    head = [f"program {json.dumps(program.name)}{_block(dict(program.facts))}"]
    if program.mesh.axes:
        head.append(str(program.mesh))
    if program.entries != ("main",):
        head.append(f"entries {', '.join(program.entries)}")
    if program.micro_batches != 1:
        head.append(f"micro_batches {program.micro_batches}")
    head += [f"note {json.dumps(n)}" for n in program.notes]
    lines = [*head, *map(print_graph, program.graphs.values())]
    for name, phase in program.phases.items():
        lines.append(f"phase {name}")
        if phase.entries != ("main",):
            lines.append(f"entries {', '.join(phase.entries)}")
        lines += map(print_graph, phase.graphs.values())
    return "\n".join(lines) + "\n"


_VALUE = re.compile(r"%([^\s#,()]+)(?:#(\d+))?")
_OP = re.compile(r"%([^\s#,()=]+)\s*=\s*(\w+)\(([^()]*)\)\s*(\{.*\}\s*)?:\s*(.+)")
# A line of llama3.1-405b has at most 300 characters, and the text with all layers unrolled has 500,000.
_LONGEST_LINE = 100_000
_DIGITS = 100


def _parse(text: str) -> Any:
    text = text.strip()
    if text.startswith("("):
        if not text.endswith(")"):
            raise ParseError(f"{text!r}: a closing parenthesis is missing")
        return tuple(_parse(p) for p in split_commas(text[1:-1]) if p.strip())
    if text.startswith('"'):
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    if _WORD.fullmatch(text) and text not in _RESERVED:
        return text
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _parse_block(text: str | None) -> dict[str, Any]:
    pairs = [p.partition("=") for p in split_commas(text.strip()[1:-1])] if text else []
    found = {k.strip(): _parse(v) for k, _, v in pairs}
    if len(found) != len(pairs):
        raise ParseError("an attribute is given twice")
    return found


def _parse_values(text: str) -> tuple[Value, ...]:
    parts = split_commas(text)
    found = [_VALUE.fullmatch(p.strip()) for p in parts]
    if not all(found):
        raise ParseError(f"{text.strip()!r}: expected values such as %x or %qkv#1")
    return tuple(Value(f[1], int(f[2] or 0)) for f in found if f)


def parse_node(text: str) -> Node:
    """Parse one op from its text form.

    Args:
        text: One line, as from `print_node`.

    Returns:
        The node.

    Raises:
        ParseError: The line is wrong.

    >>> parse_node("%y = silu(%x) : bf16[B, T, 8]").op.opcode
    'silu'
    """
    found = _OP.fullmatch(text.strip())
    if not found:
        raise ParseError("expected %name = op(%operands) {attributes} : types")
    name, opcode, operands, attributes, types = found.groups()
    given = _parse_block(attributes)
    results = tuple(parse_tensor(t) for t in split_commas(types))
    if opcode in OPS:
        given |= OPS[opcode].stated(given, results)
    return Node(name, make(opcode, **given), _parse_values(operands), results)


class _Reader:
    """Parses a program line by line; a line starts with a keyword, or with the `%` of an op."""

    def __init__(self) -> None:
        self.name, self.mesh = "", ONE_DEVICE
        self.facts: dict[str, str | int] = {}
        self.phase = ""  # name of the current phase; the next two attributes are its entries and graphs
        self.entries: tuple[str, ...] = ("main",)
        self.done: dict[str, tuple[tuple[str, ...], dict[str, Graph]]] = {}  # entries and graphs by phase
        self.micro_batches = 1
        self.notes: list[str] = []
        self.graphs: dict[str, Graph] = {}
        self.graph: str | None = None  # the current one
        self.nodes: list[Node] = []

    def take(self, line: str) -> None:
        word = re.match(r"\w+|[%}]", line)
        inside = {"%": self._op, "return": self._return, "}": self._close}
        outside = {
            "program": self._program,
            "graph": self._graph,
            "mesh": self._mesh,
            "entries": self._entries,
            "micro_batches": self._micro_batches,
            "note": self._note,
            "phase": self._phase,
        }
        known = outside if self.graph is None else inside
        if not word or word[0] not in known:
            raise ParseError(f"expected {', '.join(known)}")
        known[word[0]](line)

    def _op(self, line: str) -> None:
        if self.graph in self.graphs:
            raise ParseError(f"graph @{self.graph} has returned already")
        self.nodes.append(parse_node(line))

    def _return(self, line: str) -> None:
        name = str(self.graph)
        if name in self.graphs:
            raise ParseError(f"graph @{name} has returned already")
        self.graphs[name] = Graph(name, self.nodes, _parse_values(line.removeprefix("return")))

    def _close(self, line: str) -> None:
        if self.graph not in self.graphs:
            raise ParseError(f"graph @{self.graph} returns nothing")
        self.graph, self.nodes = None, []

    def _program(self, line: str) -> None:
        name, facts = _fields(r'program\s+("(?:[^"\\]|\\.)*")\s*(\{.*\})?', line)
        if self.name or self.graphs:
            raise ParseError("the name of a program may occur only once, at the start")
        self.name, self.facts = json.loads(name), _parse_block(facts)

    def _graph(self, line: str) -> None:
        (self.graph,) = _fields(r"graph\s+@([^\s{]+)\s*\{", line)
        if self.graph in self.graphs:
            raise ParseError(f"graph @{self.graph} occurs twice")

    def _mesh(self, line: str) -> None:
        inner, block = _fields(r"mesh\(([^)]*)\)\s*(\{.*\})?", line)
        axes = (part.partition("=") for part in inner.split(","))
        how = _parse_block(block)
        if any(type(value) is not {"ep": int, "sp": bool}.get(key) for key, value in how.items()):
            raise ParseError("a mesh requires ep (a number) and sp (true or false)")
        self.mesh = Mesh(tuple((name.strip(), int(size)) for name, _, size in axes), **how)

    def _entries(self, line: str) -> None:
        self.entries = tuple(p.strip() for p in line.removeprefix("entries").split(","))

    def _phase(self, line: str) -> None:
        (name,) = _fields(r"phase\s+(\w+)", line)
        if name in (*self.done, self.phase):
            raise ParseError(f"phase {name} occurs twice")
        self.close()
        self.phase, self.entries, self.graphs = name, ("main",), {}

    def close(self) -> None:
        """Store the current phase, whose lines have all been read."""
        if not self.graphs:
            raise ParseError(f"phase {self.phase} has no graph" if self.phase else "no graph found")
        self.done[self.phase] = self.entries, self.graphs

    def program(self) -> Program:
        """The complete program."""
        self.close()

        def made(phase: str, **others: Any) -> Program:
            entries, graphs = self.done[phase]
            shared = self.mesh, self.facts, tuple(self.notes), self.micro_batches
            return Program(self.name, graphs, entries, *shared, **others)

        return made("", phases={name: made(name) for name in self.done if name})

    def _micro_batches(self, line: str) -> None:
        (number,) = _fields(r"micro_batches\s+(\d+)", line)
        self.micro_batches = int(number)

    def _note(self, line: str) -> None:
        self.notes.append(json.loads(line.removeprefix("note")))


def _fields(pattern: str, line: str) -> tuple[str, ...]:
    found = re.fullmatch(pattern, line)
    if not found:
        raise ParseError("cannot read this line")
    return found.groups()


def parse_program(text: str) -> Program:
    """Parse a program from its text form.

    Args:
        text: The text, as from `print_program`.

    Returns:
        The program.

    Raises:
        ParseError: A line is wrong. The message names it.

    >>> from llmir.api.load import load
    >>> program = load("gpt2")
    >>> parse_program(print_program(program)) == program
    True
    """
    if not isinstance(text, str):
        raise ParseError(f"IR is text, got {type(text).__name__}")
    reader = _Reader()
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if len(line) > _LONGEST_LINE:
                raise ParseError(f"more than {_LONGEST_LINE:,} characters")
            check_digits(line, _DIGITS)
            reader.take(line)
        except (LlmirError, ValueError, KeyError) as error:
            raise ParseError(f"line {number}: {error}: {line[:120]}") from None
    if reader.graph is not None:
        raise ParseError(f"graph @{reader.graph} does not end")
    return reader.program()


def read_program(source: str | os.PathLike[str] | bytes) -> Program:
    """Read a program from an IR file.

    Args:
        source: The path of the file, or its bytes.

    Returns:
        The program.

    Raises:
        ParseError: A line is wrong. The message names the file and the line.

    >>> from llmir.api.load import load
    >>> read_program(print_program(load("gpt2")).encode()).name
    'GPT-2'
    """
    where = "" if isinstance(source, bytes) else f"{os.fspath(source)}: "
    try:
        return parse_program(
            decode_text(source if isinstance(source, bytes) else read_bytes(source, BUDGET), BUDGET)
        )
    except (ParseError, UnreadableError) as error:
        raise ParseError(f"{where}{error}") from None
