"""What a program asks of one rank, op by op, before any device or number enters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from llmir.dataclass import dataclass
from llmir.dim import Size
from llmir.frozen import figure
from llmir.graph import Graph, Node, Program
from llmir.mesh import Mesh
from llmir.op import Work, work
from llmir.tensor import Tensor

from .routed import Experts, experts

# What memory traffic is of: weights are read; activations, keys and values are read and written.
TRAFFIC = ("weight_read", "activation_read", "kv_cache_read", "activation_write", "kv_cache_write")


@dataclass(frozen=True)
class Row:
    """One op as a micro-batch runs it `repeat` times, on one rank.

    `operands` and `shape`, of the first result, are local; `reads` and `writes` are (role, bytes) pairs.
    `experts` is of the layer of routed experts that it is part of.
    """

    name: str
    stage: int
    node: Node
    repeat: int
    work: Work
    operands: tuple[Tensor, ...]
    shape: Tensor
    reads: tuple[tuple[str, Size], ...]
    writes: tuple[tuple[str, Size], ...]
    experts: Experts | None = None
    turns: int = 0  # weights of a benchmark that are used one after another; 0 as in a model

    @property
    def op(self) -> tuple[int, int]:
        """What rows of one op in one graph share, wherever that runs: equal while any of them is held."""
        return id(self.work), id(self.writes)

    @property
    def anywhere(self) -> Row:
        """The row under no name, in no stage, and once: what decides its price."""
        node = Node(self.node.op.opcode, self.node.op, (), ())
        done = self.work, self.operands, self.shape, self.reads, self.writes, self.experts, self.turns
        return Row("", 0, node, 1, *done)

    @property
    def kind(self) -> str:
        """gemm, attention, moe, scan, norm, elementwise, gather or collective."""
        return self.node.op.kind

    @property
    def block(self) -> str:
        """The part of the model that it belongs to."""
        return self.node.op.block

    @cached_property
    def read(self) -> Size:
        """Bytes read."""
        return sum((n for _, n in self.reads), start=0)

    @cached_property
    def write(self) -> Size:
        """Bytes written."""
        return sum((n for _, n in self.writes), start=0)

    @figure
    def amounts(self) -> Mapping[str, Size]:
        """What one execution does, by the names in a report: FLOPs, and bytes, also by `TRAFFIC`."""
        weights, caches = (_of(self.reads, role) for role in ("weight", "cache"))
        kept = _of(self.writes, "cache")
        sizes = weights, self.read - weights - caches, caches, self.write - kept, kept
        return {
            "flops": self.flops,
            "matmul_flops": self.work.matrix,
            "read_bytes": self.read,
            "write_bytes": self.write,
            **{f"{role}_bytes": size for role, size in zip(TRAFFIC, sizes, strict=True)},
            "comm_bytes": self.work.wire,
        }

    @cached_property
    def flops(self) -> Size:
        """All FLOPs, of matrix and vector units."""
        return self.work.matrix + self.work.vector


def _of(amounts: tuple[tuple[str, Size], ...], role: str) -> Size:
    return sum((n for r, n in amounts if r == role), start=0)


@lru_cache(maxsize=4096)
def needs(graph: Graph, mesh: Mesh) -> dict[str, tuple[Any, ...]]:
    """What each op of a graph needs, wherever it runs: the fields of its row from `work` on."""
    found = {}
    for node in graph.nodes:
        if node.op.runs:
            operands = graph.operand_types(node)
            done = work(node.op, operands, node.results, mesh)
            origins = [graph.origin(v).op for v in node.operands]
            found[node.name] = (
                done,
                tuple(t.local(mesh) for t in operands),
                node.results[0].local(mesh),
                tuple((op.role, n) for op, n in zip(origins, done.reads, strict=True)),
                tuple((graph.origin(v).op.role, n) for v, n in zip(node.values, done.writes, strict=True)),
                experts(graph, node, mesh),
                max((getattr(op, "turns", 0) for op in origins), default=0),
            )
    return found


@lru_cache(maxsize=1024)
def rows(program: Program) -> tuple[Row, ...]:
    """Each op that does something, in schedule order; bodies of `repeat` in its place."""
    runs = (at for at in program.instances() if at.node.op.runs)
    each = {name: needs(graph, program.mesh) for name, graph in program.graphs.items()}
    return tuple(
        Row(at.path, at.stage, at.node, at.repeat, *each[at.graph.name][at.node.name]) for at in runs
    )
