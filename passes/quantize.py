"""quantize: weights, activations and caches in other element types, by role and by module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from llmir.dtype import DType, dtype
from llmir.errors import PassError
from llmir.graph import Graph, Node, Program
from llmir.names import suggest
from llmir.ops.gather import Embedding
from llmir.ops.source import Weight
from llmir.pipeline import Pass

from . import formats
from .retype import Retyped, retyped


@dataclass(frozen=True)
class Quantize(Pass):
    """Other element types: `weights`, `activations` and `kv` by role, `plan` by module.

    Narrow weights keep lm_head, norms, router and embeddings as they are unless the plan names them; a wide
    type (16 bits and more) is for all weights. Narrow activations are quantized, a scale a token, before the
    products whose weights are narrow too, which then compute in that type. A wide type of activations is
    what the whole model computes in. A plan is a mapping of modules to weight types, such as
    `{"down_proj": "bf16", "lm_head": "fp8"}`; patterns may hold `*`, `keep` keeps, and the last match counts.
    """

    name: ClassVar[str] = "quantize"

    weights: str = ""
    activations: str = ""
    kv: str = ""
    plan: str | Mapping[str, str] = ""

    def __post_init__(self) -> None:
        for what in ("weights", "activations", "kv"):
            if getattr(self, what):
                formats.asked(what, getattr(self, what))
        object.__setattr__(self, "plan", formats.print_plan(formats.read_plan(self.plan)))
        if self.weights and self.activations:
            weights, activations = (formats.asked(w, getattr(self, w)) for w in ("weights", "activations"))
            narrow = weights.low and activations.low
            if narrow and not formats.multiplies(activations, weights):
                both = f"weights {self.weights} with activations {self.activations}"
                rule = "activations are of the weights' kind and at least as wide, or left out"
                raise PassError(f"quantize: there is no arithmetic for {both}; {rule}")

    def __call__(self, program: Program) -> Program:
        """Say each source's type, then infer all else anew."""
        if not (self.weights or self.activations or self.kv or self.plan):
            return program
        pairs = formats.read_plan(self.plan)
        matched: set[str] = set()
        results: list[Retyped] = []
        model = _model_type(program)
        activations = formats.asked("activations", self.activations) if self.activations else None
        kv = formats.asked("kv", self.kv) if self.kv else None
        for graph in program.graphs.values():
            types = self._weights(graph, pairs, matched)
            results.append(retyped(graph, types, model, activations, kv))
        self._check(program, pairs, matched, results)
        graphs = {name: r.graph for name, r in zip(program.graphs, results, strict=True)}
        same = all(graph is program.graphs[name] for name, graph in graphs.items())
        return program if same else program.replace(graphs=graphs)

    def _weights(
        self, graph: Graph, pairs: tuple[tuple[str, str], ...], matched: set[str]
    ) -> dict[str, DType]:
        """The new types of weights, by name."""
        wanted = formats.asked("weights", self.weights) if self.weights else None
        found: dict[str, DType] = {}
        for node in graph.nodes:
            if not isinstance(node.op, Weight):
                continue
            uses = [(graph[user], slot) for _, user, slot in graph.nx.out_edges(node.name, keys=True)]
            names = formats.weight_names(graph, node, [user for user, _ in uses])
            roles = _matrix_roles(graph, uses)
            matched |= {p for p, _ in pairs if formats.matching([(p, "")], names)}
            said = formats.matching(pairs, names)
            if said and said[1] == formats.KEEP:
                continue
            given = formats.asked("weights", said[1]) if said else wanted
            if given is None or (not roles and (given.low or given.name == "tf32")):
                continue
            if said or not given.low or _by_default(uses):
                found[node.name] = given.laid(roles)
        return found

    def _check(
        self, program: Program, pairs: tuple[tuple[str, str], ...], matched: set[str], results: list[Retyped]
    ) -> None:
        """What was asked for and is not there is an error."""
        for pattern, _ in pairs:
            if pattern not in matched:
                known = _modules(program)
                raise PassError(
                    f"quantize: plan: no module {pattern!r}{suggest(pattern, known)}; "
                    f"modules are {', '.join(known)}"
                )
        narrow = self.activations and formats.asked("activations", self.activations).low
        if narrow and not any(r.quantized for r in results):
            raise PassError(
                f"quantize: activations={self.activations} needs weights of its kind as narrow; "
                "say weights=… too"
            )
        if self.kv and not any(r.caches for r in results):
            raise PassError(f"quantize: kv={self.kv}, but program {program.name!r} has no cache")


def _matrix_roles(graph: Graph, uses: list[tuple[Node, int]]) -> str:
    """The roles of a matrix's dimensions, "" for what is no matrix; a product says them before a table."""
    found = ""
    for node, slot in uses:
        if formats.is_product(node.op) and slot in formats.matrix_slots(node):
            return formats.weight_roles(node.op.equation(graph.operand_types(node)).text, slot)
        if isinstance(node.op, Embedding):
            found = "nk"
    return found


def _by_default(uses: list[tuple[Node, int]]) -> bool:
    """Whether all users are products of blocks that are narrowed without being named."""
    return all(formats.is_product(n.op) and n.op.block not in formats.KEPT_BLOCKS for n, _ in uses)


def _model_type(program: Program) -> DType:
    """What the hidden state is in: the first computed value that holds floats."""
    graphs = [*(program[entry] for entry in program.entries), *program.graphs.values()]
    for graph in graphs:
        for node in graph.nodes:
            type = node.results[0].dtype
            if node.op.opcode not in ("weight", "cache") and type.kind == "float" and not type.low:
                return type
    return dtype("bf16")


def _modules(program: Program) -> list[str]:
    """Ops with weights, and blocks that have any."""
    users = [
        graph[user]
        for graph in program.graphs.values()
        for node in graph.nodes
        if isinstance(node.op, Weight)
        for _, user in graph.nx.out_edges(node.name)
    ]
    names = [u.name.rpartition(".")[2] for u in users] + [u.op.block for u in users]
    return list(dict.fromkeys(n for n in names if n))
