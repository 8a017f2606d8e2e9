"""shard: tensor, sequence, data and expert parallelism, by one plan and one walk through each graph.

`plan.py` places weights, caches and inputs. The walk follows the equation of each op. If a rank cannot
compute with the placements of the operands, or if an operand of a nonlinear op is a partial sum, the walk
inserts one collective: partial → replicated all_reduce, partial → split reduce_scatter, split → replicated
all_gather, replicated → split slice. For a transformer, this table gives the collectives of Megatron-LM. With
redundant experts, weights are larger, and each token is sent to one copy of each chosen expert.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError, VerifyError
from llmir.ir.core.equation import Equation
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.mesh import MOST_DEVICES
from llmir.ir.core.op import Op
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.ops.collective import TOKENS
from llmir.ir.ops.moe import Combine, Dispatch
from llmir.ir.sizes.routing_laws import Replicas, law
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.loops import inner_first
from llmir.ir.tools.pipeline import Pass, option

from .plan import ShardingPlan, padding_notes, plan

# --- Redundant experts ---

_AXIS = "expert"


def add_replicas(program: Program, redundant: int, ep: int) -> Program:
    """Add `redundant` experts to a program, to be sharded over `ep` ranks; PassError if it has no experts.

    The loads of experts determine which experts are copied. The choice affects only costs
    (`routing.replicas`).
    """
    graphs = program.graphs.values()
    counts = {_count(node) for graph in graphs for node in graph.sources} - {0}
    if not counts:
        raise PassError(f"shard: redundant {redundant}: {program.name} has no experts")
    if any(node.op.routing.startswith(Replicas.word) for graph in graphs for node in graph.nodes):
        raise PassError(f"shard: redundant {redundant}: {program.name} has copies of experts already")
    if ep == 1:
        raise PassError(
            f"shard: redundant {redundant}: requires ep, because copies of experts lie on other ranks"
        )
    for count in counts:
        if (count + redundant) % ep or redundant > count * (ep - 1):
            first, *more = range(-count % ep or ep, count * (ep - 1) + 1, ep)
            fit = f"{first}, {first + ep}, … {more[-1]}" if more else str(first)
            fact = f"{count} experts and {redundant} copies do not lie evenly on {ep} ranks"
            raise PassError(f"shard: redundant: {fact}; expected {fit}")
    notes = [
        f"{n} experts and {redundant} copies of the busiest on {ep} ranks, {(n + redundant) // ep} each"
        for n in sorted(counts)
    ]
    try:
        graphs_after = {name: _graph(graph, redundant) for name, graph in program.graphs.items()}
    except VerifyError as error:
        raise PassError(f"shard: redundant: {error}") from None
    return program.replace(graphs=graphs_after, notes=tuple(dict.fromkeys((*program.notes, *notes))))


def _count(source: Node) -> int:
    """The number of experts in a weight; 0 without experts."""
    axes, shape = source.op.axes, source.results[0].shape
    size = shape[axes.index(_AXIS)] if source.op.role == "weight" and _AXIS in axes else 0
    return size if isinstance(size, int) else 0


def _graph(graph: Graph, redundant: int) -> Graph:
    if not any(map(_count, graph.sources)):
        return graph

    def visit(b: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        op, taken = node.op, [*operands]
        if _count(node):
            return b.apply(op.widened(_AXIS, redundant), name=node.name)
        if not op.routing:
            return None
        experts, places = op.expert_choices, op.expert_choices + redundant
        if op.copies:
            how: dict[str, Any] = {"block": op.block, "name": f"pick_replica_{node.name}"}
            taken[1] = b.pick_replica(taken[1], experts=experts, places=places, **how)
        return b.apply(op.routed_by(str(Replicas(places, law(op.routing)))), *taken, name=node.name)

    return Builder.rebuild(graph, visit)


# --- Sharding ---


@dataclass(frozen=True)
class Shard(Pass):
    """Split a program over tp tensor-parallel, dp data-parallel and ep expert-parallel ranks.

    Options: tp, dp, ep (ep divides dp·tp), redundant (the additional copies of experts on the ranks of ep),
    and sp=1 for sequence parallelism over the tp ranks. On a sharded program, degrees multiply.
    """

    name: ClassVar[str] = "shard"

    tp: int = option(1, least=1, most=MOST_DEVICES)
    dp: int = option(1, least=1, most=MOST_DEVICES)
    ep: int = option(1, least=1, most=MOST_DEVICES)
    sp: int = option(0, choices=(0, 1))
    redundant: int = option(0, least=0, most=MOST_DEVICES)

    def __call__(self, program: Program) -> Program:
        """Place the sources and walk each graph once."""
        if self == Shard():
            return program
        now = program.parallelism
        if self.sp and self.tp * now.tp == 1:
            raise PassError(
                "shard: sp 1: tokens are split over the ranks of tp, and there is only one; set tp, too"
            )
        tp, dp, ep = self.tp * now.tp, self.dp * now.dp, self.ep * now.ep
        if self.redundant:
            program = add_replicas(program, self.redundant, ep)
        sp = now.sp or bool(self.sp)
        found = plan(program, replace(now, tp=tp, dp=dp, ep=ep, sp=sp))
        graphs = inner_first(program, lambda graph: _sharded(graph, found, _around(program, graph)))
        notes = dict.fromkeys((*program.notes, *padding_notes(program, found)))
        after = program.replace(graphs=graphs, mesh=replace(found.mesh, ep=ep, sp=sp), notes=tuple(notes))
        self._check(after)
        return after

    def _check(self, after: Program) -> None:
        """PassError for an option that has no effect."""
        nodes = [node for graph in after.graphs.values() for node in graph.nodes]
        spread = {axis for node in nodes if node.op.source for axis in node.results[0].spread}
        for name in ("tp", "dp"):
            degree = getattr(self, name)
            if degree > 1 and not spread & set(after.mesh.atoms(name)):
                axes = ", ".join(dict.fromkeys(a for n in nodes for a in n.op.axes)) or "none"
                nothing = f"no weight, cache or input has an axis that {name} shards"
                why = f"has no effect, because {nothing}"
                raise PassError(f"shard: {name} {degree}: {why}; the axes of {after.name!r} are {axes}")
        if self.sp and not any(type.tokens for node in nodes for type in node.results):
            raise PassError(f"shard: sp 1: {after.name!r} has no tokens that can be split between its ops")


class _ShardContext(NamedTuple):
    """The properties of a program that determine the sharding of a graph.

    `outputs` contains, for each output, the source with the required placement, or None for any placement. In
    the `last` stage, outputs are whole in all dimensions except batch. `takes` contains the inputs of the
    body for each repeat.
    """

    outputs: tuple[Node | None, ...]
    last: bool
    takes: tuple[tuple[str, tuple[Node, ...]], ...]


def _around(program: Program, graph: Graph) -> _ShardContext:
    """The context of a graph, which determines the placement of its outputs.

    Outputs of a body are placed like its inputs, and outputs of a stage like the inputs of the next stage.
    Additional results of a body may have any placement.
    """
    entries, name = program.entries, graph.name
    takes = tuple((loop.body, tuple(program[loop.body].inputs)) for loop in graph.loops.values())
    if name == entries[-1]:
        return _ShardContext((), True, takes)
    if name in entries:
        after = program[entries[entries.index(name) + 1]]
        return _ShardContext(tuple(after.inputs[: len(graph.outputs)]), False, takes)
    loops = (loop for other in program.graphs.values() for loop in other.loops.values())
    carried = min((loop.carried for loop in loops if loop.body == name), default=len(graph.outputs))
    out = len(graph.outputs) - carried
    return _ShardContext((*graph.inputs[:carried], *[None] * out), False, takes)


@lru_cache(maxsize=4096)
def _sharded(graph: Graph, plan: ShardingPlan, around: _ShardContext) -> Graph:
    """Shard one graph; the result is cached, so that bodies that several programs share remain one object."""
    return _Walk(graph, plan, around).run()


class _Walk:
    """Rebuilds a graph with sources placed by the plan, and with collectives before ops that need them."""

    def __init__(self, graph: Graph, plan: ShardingPlan, around: _ShardContext) -> None:
        self.graph, self.plan, self.around, self.takes = graph, plan, around, dict(around.takes)
        self.b = Builder(graph.name)
        self.moved: dict[tuple[Value, Tensor], Value] = {}
        self.gathered: set[Value] = set()  # values that were gathered over tokens
        self.stays: dict[Value, bool] = {}

    def run(self) -> Graph:
        """The sharded graph."""
        return Builder.rebuild(self.graph, self._visit, self._outputs, into=self.b)

    def _visit(self, _: Builder, node: Node, taken: Operands) -> tuple[Value, ...] | None:
        op, operands = node.op, tuple(taken)
        if op.source:
            type = self._source(node)
            return None if type == node.results[0] else self.b.apply(op.typed(type), name=node.name)
        if op.relays:
            return operands[: len(node.results)]
        if op.joins:
            raise PassError(
                f"shard: {node.name} already contains a sum over ranks; run shard before the pass "
                "that creates it"
            )
        if isinstance(op, Dispatch):
            return self._dispatch(node.name, op, operands)
        if isinstance(op, Combine):
            return self._combine(node.name, op, operands)
        if op.loop:
            wanted = tuple(self.plan.lay(taken) for taken in self.takes[op.loop.body])
        else:
            wanted = self._wanted(op, operands)
        placed = tuple(map(self.place, operands, wanted))
        return self.b.apply(op, *placed, name=node.name)

    def _source(self, node: Node) -> Tensor:
        """Place a source by the plan, without splits of axes that an op requires whole."""
        type = self.plan.lay(node)
        if node.op.role != "weight" or not type.spread:
            return type
        whole = set()
        for user, slot in self.graph.users.get(node.name, ()):
            if not user.op.loop:
                rule = user.op.equation(self.graph.operand_types(user))
                whole |= {i for i, dim in enumerate(rule.operands[slot]) if rule.whole & set(dim.axes)}
        return type.laid([() if i in whole else p for i, p in enumerate(type.placements)], (), type.tokens)

    def _outputs(self, _: Builder, values: Operands) -> list[Value]:
        """The outputs, in the placement that the surrounding program requires."""
        return [self._output(old, new) for old, new in zip(self.graph.outputs, values, strict=True)]

    def _output(self, old: Value, new: Value) -> Value:
        if self.around.last:
            type = self.b.type(new)
            batch = tuple(a for a in type.placements[0] if a in self.plan.axes["batch"])
            return self.place(new, type.laid((batch, *((),) * (len(type.shape) - 1))))
        source = self.around.outputs[self.graph.outputs.index(old)]
        return self.place(new, self.plan.lay(source)) if source is not None else new

    def _wanted(self, op: Op, operands: tuple[Value, ...]) -> tuple[Tensor, ...]:
        """The placements that an op needs of its operands; weights and caches never move."""
        types = tuple([self.b.type(v) for v in operands])
        if not any(type.spread for type in types):
            return types
        fixed = tuple([self._fixed(v) for v in operands])
        tokens = () if self.gathered & set(operands) else self.plan.tokens
        return _together(op, types, fixed, self.plan.axes["batch"], tokens)

    def _fixed(self, value: Value) -> bool:
        """Whether a value is a weight or a cache, which cannot move."""
        if value not in self.stays:
            node = self.b.node(value.node)
            slot = node.op.aliases.get(value.result)
            lies = node.op.role != "activation" if slot is None else self._fixed(node.operands[slot])
            self.stays[value] = lies
        return self.stays[value]

    def place(self, value: Value, target: Tensor) -> Value:
        """Move a value to the placement of `target` by collectives; the result is reused for later users."""
        type = self.b.type(value)
        if type == target:
            return value
        if (value, target) not in self.moved:
            self.moved[value, target] = self._move(value, target)
            if not target.tokens:
                self.gathered.add(value)
        return self.moved[value, target]

    def _move(self, value: Value, target: Tensor) -> Value:
        def do(opcode: str, **how: Any) -> None:
            nonlocal value
            value = getattr(self.b, opcode)(value, name=f"{opcode}_{name}", block=block, **how)

        name = value.node
        block = self.b.node(value.node).op.block
        dims = [*range(len(target.shape)), TOKENS]  # from the outermost to the innermost split
        start = self.b.type(value)
        for dim in reversed(dims):
            extra = tuple(a for a in _at(start, dim) if a not in _at(target, dim))
            if extra:
                do("all_gather", over=extra, dim=dim)
        owed = [a for a in start.partial if a not in target.partial]
        for dim in dims:
            missing = tuple(a for a in _at(target, dim) if a not in _at(start, dim))
            scattered = tuple(a for a in missing if a in owed)
            if scattered:
                do("reduce_scatter", over=scattered, dim=dim)
                owed = [a for a in owed if a not in scattered]
            if kept := tuple(a for a in missing if a not in scattered):
                do("slice", over=kept, dim=dim)
        if owed:
            do("all_reduce", over=tuple(owed))
        return value

    def _rows(self, value: Value) -> tuple[Tensor, Placement]:
        """Token placement for routing, and the split of rows without expert parallelism."""
        type, shared = self.b.type(value), self.plan.axes["expert_mlp"]
        batch = tuple(a for a in type.placements[0] if a not in shared)
        # Inner splits are gathered before outer splits.
        inner = type.tokens if batch == type.placements[0] and not set(type.tokens) & set(shared) else ()
        return type.laid((batch, (), ()), (), inner), (*batch, *inner)

    def _dispatch(self, name: str, op: Dispatch, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """Gather tokens over the ranks that share experts, copy them, and send the copies to the experts."""
        experts = self.plan.axes["expert"]
        # Place tokens like the routing weights, which multiply the rows on return.
        target, split = self._rows(operands[1])
        how_laid = target.placements, (), target.tokens
        placed = [self.place(v, self.b.type(v).laid(*how_laid)) for v in operands]
        sliced = tuple(a for a in experts if a not in split)
        rows = self.b.apply(replace(op, over=sliced), *placed, name=name)
        if exchanged := tuple(a for a in experts if a in split):
            how: dict[str, Any] = {"over": exchanged, "to": "experts", "block": op.block}
            top_k = self.b.type(placed[1]).shape[-1]
            how |= {"top_k": top_k, "experts": op.experts, "routing": op.routing}
            rows = tuple(self.b.all_to_all(r, name=f"all_to_all_{name}", **how) for r in rows)
        return rows

    def _combine(self, name: str, op: Combine, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """The reverse of dispatch."""
        rows, weights = operands
        target, split = self._rows(weights)
        weights = self.place(weights, target)
        placed, experts = self.b.type(rows).placements[0], self.plan.axes["expert"]
        if exchanged := tuple(a for a in placed if a in split and a in experts):
            how: dict[str, Any] = {"over": exchanged, "to": "tokens", "block": op.block}
            rows = self.b.all_to_all(rows, name=f"all_to_all_{name}", **how)
        kept = tuple(a for a in placed if a not in split)
        return self.b.apply(replace(op, over=kept), rows, weights, name=name)


@lru_cache(maxsize=1 << 14)
def _together(
    op: Op, types: tuple[Tensor, ...], fixed: tuple[bool, ...], batch: Placement, over: Placement
) -> tuple[Tensor, ...]:
    """Placements with which a rank can compute an op; fixed operands stay, `over` may split tokens."""
    rule = op.equation(types)
    where: dict[str, Placement] = {}
    for term, type, stays in zip(rule.operands, types, fixed, strict=True):
        if stays:
            where |= {d.axes[0]: p for d, p in zip(term, type.placements, strict=True)}
    used = {a for p in where.values() for a in p}
    where |= {axis: where.get(other, ()) for axis, other in op.aligned.items()}
    bound = frozenset(where)
    for term, type, stays in zip(rule.operands, types, fixed, strict=True):
        for d, p in zip(term, () if stays else type.placements, strict=False):
            axis = d.axes[0]
            now = where.setdefault(axis, ())
            # If placements differ, the placement with the most splits applies.
            if axis not in bound | rule.whole and len(p) > len(now) and not (used - set(now)) & set(p):
                where[axis] = p
                used |= set(p)
    owed = op.owed(types)
    tokens = _tokens(rule, types, where, owed, over) if over else ()
    return tuple(
        type if stays else _target(type, tuple(where[d.axes[0]] for d in term), tokens, sums, batch)
        for term, type, stays, sums in zip(rule.operands, types, fixed, owed, strict=True)
    )


def _target(
    type: Tensor, placements: tuple[Placement, ...], tokens: Placement, owed: Placement, batch: Placement
) -> Tensor:
    # A sum over the ranks that split tokens becomes a split over these ranks.
    partial = () if set(owed) & set(tokens) else owed
    # A partial sum gets the batch axes of the residual, and its token axes if allowed.
    due = [a for a in type.partial if a not in (*partial, *placements[0])]
    placements = ((*placements[0], *(a for a in batch if a in due)), *placements[1:])
    return type.laid(placements, partial, tokens if len(type.shape) > 1 else ())


def _tokens(
    rule: Equation,
    types: tuple[Tensor, ...],
    where: dict[str, Placement],
    owed: list[Placement],
    over: Placement,
) -> Placement:
    """The mesh axes that can split the tokens of an op: all of `over`, or none."""
    terms = rule.operands
    pair = tuple(d.axes[0] for d in terms[0][:2])
    # A partial sum passes through a linear op, and a later op completes the sum.
    sums = [set(t.partial) - set(o) for t, o in zip(types, owed, strict=True)]
    arriving = any(t.tokens or set(over) <= s for t, s in zip(types, sums, strict=True))
    free = not any(set(p) & set(over) for p in where.values())
    carried = rule.carries(pair) and all(
        tuple(d.axes[0] for d in term[:2]) == pair or not {d.axes[0] for d in term} & set(pair)
        for term in terms
    )
    return over if arriving and free and carried and len(pair) == 2 else ()


def _at(type: Tensor, dim: int) -> Placement:
    return type.tokens if dim == TOKENS else type.placements[dim]
