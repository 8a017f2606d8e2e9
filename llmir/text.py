"""Programs as text: one op a line, types always shown. What is printed parses back to the same program.

    program "tiny" {layers=2}
    graph @main {
      %x = input() {axes=(batch, seq)} : int64[B, T]
      %h1 = repeat(%h) {body=layer, times=2} : bf16[B, T, 64]
      return %h1
    }
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import Any

from . import ops as ops  # registers them
from .errors import LlmirError, ParseError
from .graph import Graph, Node, Program, Value
from .mesh import Mesh
from .op import Op, make
from .ops.source import Source
from .tensor import parse_tensor, split_commas

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
    return repr(value) if isinstance(value, (int, float)) else str(value)


def _attributes(op: Op) -> dict[str, Any]:
    return {
        f.name: value
        for f in fields(op)
        if f.name != "type" and ((value := getattr(op, f.name)) != f.default or f.default is MISSING)
    }


def _block(attributes: dict[str, Any]) -> str:
    return f" {{{', '.join(f'{k}={_print(v)}' for k, v in attributes.items())}}}" if attributes else ""


def print_node(node: Node) -> str:
    """One line of IR."""
    types = ", ".join(map(str, node.results))
    operands = ", ".join(map(str, node.operands))
    return f"%{node.name} = {node.op.opcode}({operands}){_block(_attributes(node.op))} : {types}"


def print_graph(graph: Graph) -> str:
    """A graph and its ops."""
    lines = [f"  {print_node(n)}" for n in graph.nodes]
    return "\n".join([f"graph @{graph.name} {{", *lines, f"  return {', '.join(map(str, graph.outputs))}", "}"])


def print_program(program: Program) -> str:
    """The whole program."""
    head = [f"program {json.dumps(program.name)}{_block(dict(program.facts))}"]
    if program.mesh.axes:
        head.append(str(program.mesh))
    if program.entries != ("main",):
        head.append(f"entries {', '.join(program.entries)}")
    head += [f"note {json.dumps(n)}" for n in program.notes]
    return "\n".join([*head, *map(print_graph, program.graphs.values())]) + "\n"


_VALUE = re.compile(r"%([^\s#,()]+)(?:#(\d+))?")
_OP = re.compile(r"%([^\s#,()=]+)\s*=\s*(\w+)\(([^()]*)\)\s*(\{.*\})?\s*:\s*(.+)")


def _parse(text: str) -> Any:
    text = text.strip()
    if text.startswith("("):
        if not text.endswith(")"):
            raise ParseError(f"{text!r}: the parenthesis does not close")
        return tuple(_parse(p) for p in _commas(text[1:-1]) if p.strip())
    if text.startswith('"'):
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    if _WORD.fullmatch(text) and text not in _RESERVED:
        return text
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _commas(text: str) -> list[str]:
    # Strings may hold commas and brackets, so they are set aside while splitting.
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    hidden = re.sub(r'"(?:[^"\\]|\\.)*"', keep, text)
    return [re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], part) for part in split_commas(hidden)]


def _parse_block(text: str | None) -> dict[str, Any]:
    pairs = (p.partition("=") for p in _commas(text.strip()[1:-1])) if text else ()
    return {k.strip(): _parse(v) for k, _, v in pairs}


def _parse_values(text: str) -> tuple[Value, ...]:
    parts = split_commas(text)
    found = [_VALUE.fullmatch(p.strip()) for p in parts]
    if not all(found):
        raise ParseError(f"{text.strip()!r}: expected values such as %x or %qkv#1")
    return tuple(Value(f[1], int(f[2] or 0)) for f in found if f)


def parse_node(text: str) -> Node:
    """The node that prints as `text`."""
    found = _OP.fullmatch(text.strip())
    if not found:
        raise ParseError("expected %name = op(%operands) {attributes} : types")
    name, opcode, operands, attributes, types = found.groups()
    given = _parse_block(attributes)
    results = tuple(parse_tensor(t) for t in split_commas(types))
    op = make(opcode, **given, type=results[0]) if _is_source(opcode) else make(opcode, **given)
    for f in fields(op):
        _check_field(opcode, f.name, f.type, getattr(op, f.name))
    return Node(name, op, _parse_values(operands), results)


def _is_source(opcode: str) -> bool:
    from .op import OPS

    return opcode in OPS and issubclass(OPS[opcode], Source)


_FIELD_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}


def _check_field(opcode: str, name: str, stated: object, value: object) -> None:
    wanted = _FIELD_TYPES.get(str(stated), (tuple,) if str(stated).startswith("tuple") else (object,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted and object not in wanted):
        raise ParseError(f"{opcode}: attribute {name} is {value!r}, expected {stated}")


def parse_program(text: str) -> Program:
    """The program that prints as `text`; `ParseError` names the line that is wrong."""
    name, facts, mesh, entries = "", {}, Mesh(), ("main",)
    notes: list[str] = []
    graphs: dict[str, Graph] = {}
    nodes: list[Node] = []
    graph = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        try:
            if not line or line.startswith("#"):
                continue
            if graph and line.startswith("%"):
                nodes.append(parse_node(line))
            elif graph and line.startswith("return"):
                graphs[graph] = Graph(graph, nodes, _parse_values(line[len("return") :]))
            elif graph and line == "}":
                if graph not in graphs:
                    raise ParseError(f"graph @{graph} returns nothing")
                graph, nodes = "", []
            elif found := re.fullmatch(r'program\s+("(?:[^"\\]|\\.)*")\s*(\{.*\})?', line):
                name, facts = json.loads(found[1]), _parse_block(found[2])
            elif found := re.fullmatch(r"graph\s+@([^\s{]+)\s*\{", line):
                graph = found[1]
                if graph in graphs:
                    raise ParseError(f"graph @{graph} is there twice")
            elif found := re.fullmatch(r"mesh\((.*)\)", line):
                axes = (p.partition("=") for p in found[1].split(","))
                mesh = Mesh(tuple((k.strip(), int(v)) for k, _, v in axes))
            elif line.startswith("entries "):
                entries = tuple(p.strip() for p in line[len("entries ") :].split(","))
            elif line.startswith("note "):
                notes.append(json.loads(line[len("note ") :]))
            else:
                raise ParseError("expected program, graph @name {, an op, return, or }")
        except (LlmirError, ValueError, KeyError) as error:
            raise ParseError(f"line {number}: {error}: {line[:120]}") from None
    if graph:
        raise ParseError(f"graph @{graph} does not end")
    if not graphs:
        raise ParseError("no graph found")
    return Program(name, graphs, entries, mesh, facts, tuple(notes))


__all__ = ["parse_node", "parse_program", "print_graph", "print_node", "print_program"]
