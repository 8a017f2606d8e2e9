"""Which ops of one program do the work of which ops of another, told by structure.

An op is known by its path and opcode; copies that `unroll` numbers are one op. Ops that both programs
have are pairs. The others are grouped: by the weights and caches that they read, by the slot of a paired
op that they feed, and what is left by where it lies in the dataflow: if the one graph is the other with
some ops contracted, a group's neighbours must be neighbours there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program


class Key(NamedTuple):
    """What an op is known by: its path without the numbers of unrolled layers, and its opcode."""

    path: str
    opcode: str


Match = tuple[tuple[Key, ...], tuple[Key, ...]]  # ops of the one program, ops of the other


def key(path: str, opcode: str) -> Key:
    """The key of an op.

    >>> key("layer.31.q_proj", "linear")
    Key(path='layer.q_proj', opcode='linear')
    """
    return Key(re.sub(r"\.\d+(?=\.)", "", path), opcode)


@dataclass
class Flow:
    """Who feeds whom in a step: ops in schedule order, by slot what feeds them, and the weights they read.

    Collectives and quantization only move or re-type what they are given: their users are fed by what feeds
    them, and nothing else does their work.
    """

    feeds: dict[Key, list[set[Key]]] = field(default_factory=dict)
    held: dict[Key, set[str]] = field(default_factory=dict)
    users: dict[Key, set[Key]] = field(default_factory=dict)
    outputs: list[set[Key]] = field(default_factory=list)
    moves: set[Key] = field(default_factory=set)

    def add(self, op: Key, operands: Sequence[Iterable[Key | str]]) -> None:
        """An op, or a copy of one; a `str` is a weight or a cache."""
        slots = self.feeds.setdefault(op, [])
        slots += [set() for _ in operands[len(slots) :]]
        held = self.held.setdefault(op, set())
        for slot, given in zip(slots, operands, strict=False):
            for one in given:
                if isinstance(one, str):
                    held.add(one)
                else:
                    slot.add(one)
                    self.users.setdefault(one, set()).add(op)

    def fed_by(self, op: Key) -> set[Key]:
        """The ops that feed `op`."""
        return set().union(*self.feeds[op])


@lru_cache(maxsize=256)
def flow(program: Program) -> Flow:
    """The flow of a step, through the bodies of `repeat` and round them."""
    found = Flow()

    def walk(name: str, path: str, given: Sequence[frozenset[Key | str]]) -> list[frozenset[Key | str]]:
        graph = program[name]
        made: dict[Value, frozenset[Key | str]] = {
            n.values[0]: g for n, g in zip(graph.inputs, given, strict=False)
        }
        for node in graph.nodes:
            op = key(path + node.name, node.op.opcode)
            operands = [made[v] for v in node.operands]
            results: Iterable[frozenset[Key | str]]
            if node.op.source:
                held = node.op.role != "activation"
                results = [made.get(node.values[0], frozenset([op.path] if held else []))]
            elif node.op.zero:
                results = [frozenset()]
            elif loop := node.op.loop:
                inside = f"{path}{node.name}."
                results = walk(loop.body, inside, operands)
                if loop.times > 1:
                    kept = operands[: loop.carried]
                    carried = [a | b for a, b in zip(kept, results, strict=False)]
                    results = walk(loop.body, inside, [*carried, *operands[loop.carried :]])
            elif node.op.moves:
                found.moves.add(op)
                found.add(op, [])
                results = [frozenset[Key | str]().union(*operands)] * len(node.values)
            else:
                found.add(op, operands)
                results = [frozenset([op])] * len(node.values)
            made.update(zip(node.values, results, strict=True))
        return [made[v] for v in graph.outputs]

    made: list[frozenset[Key | str]] = []
    for entry in program.entries:
        made = walk(entry, "", made)
    found.outputs += [{op for op in results if isinstance(op, Key)} for results in made]
    return found


def matches(a: Program, b: Program) -> list[Match]:
    """Every op of both programs, once: pairs, groups that replace one another, and ops that only one has."""
    return list(_Grouping(flow(a), flow(b)).matches())


class _Grouping:
    """Groups of the ops that only one program has; a group is called by one of its (side, op) members."""

    def __init__(self, a: Flow, b: Flow) -> None:
        self.sides = (a, b)
        self.pairs = a.feeds.keys() & b.feeds.keys()
        self.group: dict[tuple[int, Key], int] = {}
        self.members: list[tuple[set[Key], set[Key]]] = []
        for side, flow in enumerate(self.sides):
            for op in flow.feeds:
                if (side, op) not in self.group:
                    self.group[side, op] = len(self.members)
                    self.members.append((set(), set()))
                    for one in (0, 1) if op in self.pairs else (side,):
                        self.group[one, op] = len(self.members) - 1
                        self.members[-1][one].add(op)
        self.anchor()
        for side in (0, 1):
            self.place(side)

    def lone(self, side: int) -> list[Key]:
        """The ops that only this side has, and that something on the other may stand for."""
        flow = self.sides[side]
        return [op for op in flow.feeds if op not in self.pairs and op not in flow.moves]

    def join(self, mine: int, other: int) -> None:
        """Make two groups one."""
        if mine == other:
            return
        for side in (0, 1):
            moved = self.members[other][side]
            self.members[mine][side].update(moved)
            self.group.update(dict.fromkeys(((side, op) for op in moved), mine))
            moved.clear()

    def anchor(self) -> None:
        """Join what stands at the same path, reads the same weights, or feeds the same slot of a pair."""
        signs: dict[str, tuple[int, Key]] = {}
        for side in (0, 1):
            for op in self.lone(side):
                for sign in (op.path, *sorted(self.sides[side].held[op])):
                    where, other = signs.setdefault(sign, (side, op))
                    if where != side:
                        self.join(self.group[where, other], self.group[side, op])
        alone = set(self.lone(0)), set(self.lone(1))
        waiting = [(self.sides[0].outputs, self.sides[1].outputs)]
        waiting += [
            self.slots(self.group[0, op]) for op in self.sides[0].feeds if self.pair(self.group[0, op])
        ]
        while waiting:
            for feeds in zip(*waiting.pop(0), strict=False):
                ours, theirs = (mine & slot for mine, slot in zip(alone, feeds, strict=True))
                if len(ours) == len(theirs) == 1:
                    kept, joined = self.group[0, ours.pop()], self.group[1, theirs.pop()]
                    self.join(kept, joined)
                    if kept != joined and self.pair(kept):
                        waiting.append(self.slots(kept))

    def pair(self, group: int) -> bool:
        """Whether a group is one op on either side, of the same kind of work."""
        left, right = self.members[group]
        return len(left) == len(right) == 1 and {x.opcode for x in left} == {y.opcode for y in right}

    def slots(self, group: int) -> tuple[list[set[Key]], list[set[Key]]]:
        """What feeds the two ops of a pair."""
        [left], [right] = self.members[group]
        return self.sides[0].feeds[left], self.sides[1].feeds[right]

    def place(self, side: int) -> None:
        """Put each op that has no counterpart yet, users first, where the other graph has room for it."""
        flow = self.sides[side]
        for op in reversed(self.lone(side)):
            if self.members[self.group[side, op]][1 - side]:
                continue
            users = [self.group[side, u] for u in flow.users.get(op, ()) if u != op]
            sets = [{g, *self.neighbours(g, 1 - side, up=True)} for g in users]
            if not sets:
                continue  # nothing needs it, so nothing took its place
            placed = [self.group[side, p] for p in flow.fed_by(op)]
            sets += [
                {g, *self.neighbours(g, 1 - side, up=False)} for g in placed if self.members[g][1 - side]
            ]
            room = [g for g in set.intersection(*sets) if self.may_hold(g, 1 - side)]
            if room:
                self.join(min(room, key=lambda g: (g not in users, g)), self.group[side, op])

    def may_hold(self, group: int, side: int) -> bool:
        """Whether a group is no pair and has ops of that side."""
        return bool(self.members[group][side]) and not self.pair(group)

    def neighbours(self, group: int, side: int, *, up: bool) -> Iterator[int]:
        """The groups that feed a group on that side, or that it feeds."""
        flow = self.sides[side]
        for op in self.members[group][side]:
            for other in flow.fed_by(op) if up else flow.users.get(op, ()):
                yield self.group[side, other]

    def matches(self) -> Iterator[Match]:
        """The groups in the order of the second program, then what only the first has."""
        at = [{op: i for i, op in enumerate(flow.feeds)} for flow in self.sides]
        seen: set[int] = set()
        for side in (1, 0):
            for op in self.sides[side].feeds:
                group = self.group[side, op]
                if group not in seen:
                    seen.add(group)
                    left, right = self.members[group]
                    yield (
                        tuple(sorted(left, key=at[0].__getitem__)),
                        tuple(sorted(right, key=at[1].__getitem__)),
                    )
