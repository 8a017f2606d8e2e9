"""prune-tokens: limit the tokens of a prompt that each layer and its cache process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import ClassVar

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.op import Loop
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import C, Max, Min, Size, T, put
from llmir.ir.tools.build import Builder, Operands, Replacement
from llmir.ir.tools.loops import iteration
from llmir.ir.tools.pipeline import Pass

_RUN = re.compile(r"\s*(\d{1,15})\s*(?:x\s*(\d{1,15})\s*)?")
_MOST = 100_000  # more layers than any model has
_MASKS = ("causal", "window", "alibi")  # masks that depend only on the distance between query and key


@dataclass(frozen=True)
class PruneTokens(Pass):
    """Keep only the last tokens of a prompt in each layer, by `layers=(1024x4, 512x4, …)`.

    `1024x4` means 1024 tokens in each of 4 layers. The first count is the length of the prompt, and later
    counts do not increase. The cache of a layer contains the layer's part of the prompt and all tokens after
    the prompt. The choice of tokens does not affect the cost. This pass keeps the last tokens, so that
    positions and predictions stay valid. Run this pass before `shard` and `stages`.
    """

    name: ClassVar[str] = "prune-tokens"
    phased: ClassVar[bool] = True

    layers: str | Sequence[int | str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        runs = ((count, len(list(run))) for count, run in groupby(_counts(self.layers)))
        text = ", ".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)
        object.__setattr__(self, "layers", f"({text})" if text else "")

    def __call__(self, program: Program) -> Program:
        """Split loops where the number of tokens changes, and set the sizes; decode changes only caches."""
        counts, facts = _counts(self.layers), {**program.facts}
        self._check(program, counts)
        facts["prompt"] = counts[0]
        others = {name: phase.replace(facts=facts) for name, phase in program.phases.items()}
        later = others.get("decode", program).replace(facts=facts, phases={})
        others["decode"] = _PrunedProgram(later, counts, prompt=False).program
        return _PrunedProgram(program.replace(facts=facts, phases=others), counts, prompt=True).program

    def _check(self, program: Program, counts: tuple[int, ...]) -> None:
        """Raise PassError if the program has other layers, or if the pass cannot prune its attention."""
        here = f"prune-tokens: {program.name}"
        if not counts:
            raise PassError("prune-tokens: layers: expected counts such as (1024x4, 512x4), got none")
        if program.patches:
            raise PassError(f"{here} has no tokens")
        if program.devices > 1 or "prompt" in program.facts:
            raise PassError(f"{here} is pruned, sharded or staged already")
        (entry,) = program.entries
        if not program[entry].loops:
            raise PassError(f"{here} has no repeated layers; run it before unroll")
        if len(counts) != (depth := program.depth(entry)):
            raise PassError(f"{here} has {depth} layers, got counts of {len(counts)}")
        for graph in program.graphs.values():
            for node in graph.nodes:
                if node.op.loop and len(node.results) > node.op.loop.carried:
                    raise PassError(f"{here}: later layers read keys of earlier ones, with their tokens")
                stated = str(getattr(node.op, "mask", "causal")).partition("(")[0]
                if stated not in _MASKS:
                    why = "has no meaning among fewer tokens"
                    raise PassError(f"{here}: a mask by position ({stated}) {why}")


def _counts(layers: str | Sequence[int | str]) -> tuple[int, ...]:
    """The number of tokens in each layer."""
    if isinstance(layers, str):
        layers = [part for part in layers.strip().strip("()").split(",") if part.strip()]
    form = "counts by layer such as 1024x4,512x4"
    found: list[int] = []
    for part in arguments.items("prune-tokens: layers", layers, form, most=_MOST, error=PassError):
        run = _RUN.fullmatch(str(part))
        if not run or not int(run[1]) or not int(run[2] or 1) or len(found) + int(run[2] or 1) > _MOST:
            raise PassError(f"prune-tokens: layers: expected {form}, got {arguments.show_value(part)}")
        if found and int(run[1]) > found[-1]:
            raise PassError(
                f"prune-tokens: layers: {run[1]} after {found[-1]}: the number of tokens cannot increase"
            )
        found += [int(run[1])] * int(run[2] or 1)
    return tuple(found)


class _PrunedProgram:
    """A program with loops split where token counts change; for the `prompt`, or for a later token."""

    def __init__(self, program: Program, counts: tuple[int, ...], *, prompt: bool) -> None:
        self.before, self.counts, self.prompt = program, counts, prompt
        self.bodies: dict[str, Graph] = {}
        self.now: dict[Value, Replacement] = {}
        (entry,) = program.entries
        graph, self.b = program[entry], Builder(entry)
        self._copy(graph.nodes, program.iterations(graph, Layers()))
        self.b.output(*Operands(graph.outputs, self.now))
        self.program = program.replace(graphs={**program.graphs, entry: self.b.graph(), **self.bodies})

    def _copy(self, nodes: Iterable[Node], loops: Mapping[str, Layers]) -> None:
        def visit(_: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
            loop = node.op.loop
            return self._cut(node, loop, loops[node.name], tuple(operands)) if loop else None

        self.b.copy_nodes(nodes, visit, self.now)

    def _cut(self, node: Node, loop: Loop, layers: Layers, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """Split a repeat by token count, and unroll an iteration with two counts; return the results."""
        size = self.before.depth(loop.body)
        starts = range(layers.first, layers.first + loop.times * size, size)
        of = [tuple(dict.fromkeys(self.counts[at : at + size])) for at in starts]
        for (count, *more), run in groupby(enumerate(of), lambda each: each[1]):
            places = [starts[i] for i, _ in run]
            for at in places if more else places[:1]:
                if more:
                    inner = iteration(self.before, node, loop, at, operands)
                    self._copy(inner.nodes, inner.loops)
                    given = tuple(Operands(inner.outputs, self.now))
                else:
                    body = self._body(loop.body, count)
                    part = node.op.looping(loop._replace(body=body, times=len(places), first=None))
                    taken = self._kept(loop.body, operands, count)
                    given = self.b.apply(part, *taken, name=node.name)
                    operands = (*taken,)
                operands = (*given, *operands[loop.carried :])
        return operands[: loop.carried]  # the results are the hidden states only

    def _kept(self, body: str, operands: tuple[Value, ...], count: int) -> tuple[Value, ...]:
        """Cut each input of a body that has an axis of tokens to the last tokens."""
        due = [self._fewer(n, count).results[0] for n in self.before[body].inputs]
        return tuple(
            v if self.b.type(v) == type else self.b.last_tokens(v, count=count, name=f"keep_{count}")
            for v, type in zip(operands, due, strict=True)
        )

    def _body(self, name: str, count: int) -> str:
        """The name of the body for `count` tokens, built on first use; the original body for all tokens."""
        own = f"{name}_{count}"
        if count == self.counts[0]:
            return name
        if own not in self.bodies:

            def visit(b: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
                if node.op.source:
                    return b.insert(self._fewer(node, count))
                if not (loop := node.op.loop):
                    return None
                op = node.op.looping(loop._replace(body=self._body(loop.body, count)))
                return b.apply(op, *operands, name=node.name)

            self.bodies[own] = Builder.rebuild(self.before[name], visit, into=Builder(own))
        return own

    def _fewer(self, node: Node, count: int) -> Node:
        """The source for a layer that processes `count` tokens of the prompt."""
        after: dict[str, Size] = {"C": Max.of(C - (self.counts[0] - count), 0)}
        after |= {"T": Min.of(T, count)} if self.prompt else {}
        type = node.results[0]
        shape = [put(size, after) for size in type.shape]
        if count == self.counts[0] or shape == [*type.shape]:
            return node
        small = Tensor(shape, type.dtype)
        return Node(node.name, node.op.typed(small), (), (small,))
