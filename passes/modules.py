"""Precision plans of `quantize`: dtypes by module and role, and the names of modules.

A plan names a module by its op, by its block, or by its checkpoint name; `*` matches anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmir.base import arguments, readers
from llmir.base.errors import InputError, PassError, UnreadableError
from llmir.base.names import checkpoint_place, suggest
from llmir.base.readers import read_bytes
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.tensor import split_commas

from . import formats

KEEP = "keep"


class Entry(NamedTuple):
    """One entry of a plan: the format for one role in the modules that match a pattern."""

    pattern: str
    role: str
    format: str


def read_plan(plan: str | Mapping[str, str | Mapping[str, str]]) -> tuple[Entry, ...]:
    """Parse a plan from a mapping or from text; a module with only a dtype applies it to weights.

    >>> [tuple(entry) for entry in read_plan("(lm_head:fp8, mlp:(weights=fp8, activations=keep))")]
    [('lm_head', 'weights', 'fp8'), ('mlp', 'weights', 'fp8'), ('mlp', 'activations', 'keep')]
    """
    found = []
    if not isinstance(plan, (str, Mapping)):
        arguments.refuse("quantize: plan", plan, "a mapping of modules to dtypes", PassError)
    pairs = plan.items() if isinstance(plan, Mapping) else _pairs(plan, ":")
    for key, said in pairs:
        pattern = str(key)
        inner = [*said, *said.values()] if isinstance(said, Mapping) else [said]
        if not all(isinstance(word, str) for word in (key, *inner)):
            arguments.refuse("quantize: plan", {key: said}, "modules and dtypes as text", PassError)
        if not pattern or not said or set(pattern) & set("(){}:,= "):
            raise PassError(f"quantize: plan: expected module: dtype, got {pattern!r}: {said!r}")
        for role, name in _roles(said):
            if role not in formats.ALLOWED:
                known = ", ".join(formats.ALLOWED)
                near = suggest(role, formats.ALLOWED)
                raise PassError(f"quantize: plan: {pattern}: {role!r} is none of {known}{near}")
            if name != KEEP:
                formats.format_of(role, name)
            found.append(Entry(pattern, role, name))
    return tuple(found)


def plan_file(path: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """Read a plan from a YAML file with dtypes by module, or by module and role; otherwise `InputError`."""
    try:
        plan = readers.load_yaml(read_bytes(path, readers.BUDGET))
    except UnreadableError as error:
        raise InputError(f"{path}: {error}") from None
    expected = "expected modules with their dtypes, such as down_proj: bf16 or mlp: {activations: keep}"
    if not isinstance(plan, dict) or not plan:
        raise InputError(f"{path}: {expected}, got {type(plan).__name__}")
    for module, said in plan.items():
        inner = [*said, *said.values()] if isinstance(said, dict) else [said]
        if not said or not all(isinstance(text, str) for text in (module, *inner)):
            raise InputError(f"{path}: {expected}, got {str(module)[:60]}: {str(said)[:60]}")
    return {module: said if isinstance(said, dict) else {"weights": said} for module, said in plan.items()}


def _roles(said: str | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if isinstance(said, Mapping):
        return [(str(role), str(name)) for role, name in said.items()]
    return _pairs(said, "=") if str(said).startswith("(") else [("weights", str(said))]


def _pairs(text: str, between: str) -> Iterator[tuple[str, str]]:
    """Parse `a:x, b:y` into pairs; brackets around the text are optional."""
    inner = text.strip().removeprefix("(")
    inner = inner.removesuffix(")") if inner != text.strip() else inner
    for part in split_commas(inner):
        key, _, value = part.partition(between)
        yield key.strip(), value.strip()


def print_plan(entries: Iterable[Entry]) -> str:
    """The text form of a plan."""
    groups: list[dict[str, str]] = []
    patterns: list[str] = []
    for pattern, role, name in entries:
        if not patterns or patterns[-1] != pattern or role in groups[-1]:
            patterns.append(pattern)
            groups.append({})
        groups[-1][role] = name
    parts = []
    for pattern, said in zip(patterns, groups, strict=True):
        inner = ", ".join(f"{role}={name}" for role, name in said.items())
        parts.append(f"{pattern}:{said['weights'] if list(said) == ['weights'] else f'({inner})'}")
    return f"({', '.join(parts)})" if parts else ""


class Modules:
    """Matches the modules of a program to the entries of a plan, and records unused entries."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.met: set[Entry] = set()
        self.taken: set[Entry] = (
            set()
        )  # entries that at least one module supports, or that a later entry replaces
        self.others: dict[Entry, str] = {}  # an entry -> a role that its matched modules have instead
        self.known: dict[str, dict[str, None]] = {role: {} for role in formats.ALLOWED}

    def said(self, role: str, names: set[str], known: Iterable[str]) -> Entry | None:
        """The last entry that matches one of the names; None if no entry matches.

        If an entry matches no module, the error lists the `known` names.
        """
        self.known[role].update(dict.fromkeys(n for n in known if n))
        met = [entry for entry in self.entries if _matches(entry.pattern, names)]
        self.others |= {entry: role for entry in met if entry.role != role}
        met = [entry for entry in met if entry.role == role]
        self.met.update(met)
        self.taken.update(met[:-1])
        return met[-1] if met else None

    def take(self, entry: Entry | None) -> None:
        """Record that a module supports an entry."""
        self.taken |= {entry} if entry else set()

    def check(self) -> None:
        """Raise `PassError` if an entry matches no module, or if no matching module supports the entry."""
        for entry in self.entries:
            if entry in self.taken:
                continue
            if entry in self.met:
                what = f"{entry.pattern!r} has no {entry.role} that can be {entry.format}"
                raise PassError(f"quantize: plan: {what}; only matrices can have scales or tf32")
            known = list(self.known[entry.role])
            what, there = (
                f"no module {entry.pattern!r}",
                f"modules with {entry.role} are {', '.join(known) or 'none'}",
            )
            if entry.role == "collectives":
                what = f"no collective of {entry.pattern!r}"
                there = f"there are those of {', '.join(known)}" if known else "nothing is sent; shard before"
            elif entry in self.others:
                what = f"{entry.pattern!r} has {self.others[entry]}, but no {entry.role}"
            raise PassError(f"quantize: plan: {what}{suggest(entry.pattern, known)}; {there}")


def _matches(pattern: str, names: set[str]) -> bool:
    if pattern in names:
        return True
    return any(c in pattern for c in "*?[") and any(fnmatchcase(n, pattern) for n in names)


def op_names(graph: Graph, node: Node) -> set[str]:
    """The names of an op in a plan: its name, alone and after its graph, without layers; and its block."""
    return {node.name, node.name.rpartition(".")[2], f"{graph.name}.{node.name}", node.op.block} - {""}


def weight_names(graph: Graph, weight: Node, users: Sequence[Node]) -> set[str]:
    """The names of a weight in a plan: its op, its block, and its checkpoint module or the module's end."""
    found = {weight.name}.union(*(op_names(graph, node) for node in users))
    if weight.op.param:
        name = checkpoint_place(weight.op.param).tensor
        parts = name.removesuffix(".weight").removesuffix(".bias").split(".")
        found |= {".".join(parts[i:]) for i in range(len(parts))}
    return found


def short_names(nodes: Iterable[Node]) -> list[str]:
    """The names that an error lists: ops without layer numbers, and blocks."""
    found = list(nodes)
    return [n.name.rpartition(".")[2] for n in found] + [n.op.block for n in found]
