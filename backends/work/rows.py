"""Rows: what each op of a program needs on one rank, before a device or numbers are known.

`rows(program)` returns a `Row` for each op in schedule order, with symbolic FLOPs, bytes by role and network
payload. The file also defines the results of cost models: `Basis` (measured kernels of this device or
another, or datasheet rates), `Limit` (one bound of an op's time) and `BOUNDS`, and `ExpertTypes`, the dtypes
that the grouped products around an op of a mixture-of-experts layer multiply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from llmir.backends.tape.outline import is_external
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.values import figure
from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.mesh import ONE_DEVICE, Mesh
from llmir.ir.core.op import Op, Work, work
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Size
from llmir.ir.sizes.ragged import most

# Basis of a time


@dataclass(frozen=True)
class Basis:
    """The basis of a time: `kind` is calibrated, roofline, efficiency or no kernel measured.

    For calibrated kernels, `device` is the measured device if it is another one, `engine` is the engine of
    the kernel if the requested engine has none, and `by` is the substitute kernel family if none is known for
    the op. If other times are calibrated, a roofline states the reason in `why`.

    >>> print(Basis("calibrated"), Basis("calibrated", device="H100-SXM"), sep="; ")
    calibrated; transferred from H100-SXM
    >>> print(Basis("calibrated", engine="vidur", by="add"))
    calibrated for vidur, by add
    """

    kind: str
    device: str = ""
    engine: str = ""
    by: str = ""
    why: str = ""

    @property
    def borrowed(self) -> bool:
        """Whether the kernels were measured on another device."""
        return bool(self.device)

    def __str__(self) -> str:
        if self.borrowed:
            words = f"transferred from {self.device}" + (f" ({self.engine})" if self.engine else "")
        else:
            words = self.kind + (f" for {self.engine}" if self.engine else "")
        return words + (f", by {self.by}" if self.by else "") + (f" {self.why}" if self.why else "")


CALIBRATED = Basis("calibrated")
ROOFLINE = Basis("roofline")
EFFICIENCY = Basis("efficiency")
BETWEEN_NODES = Basis("roofline", why="between nodes")
UNMEASURED = Basis("no kernel measured")


# Limits

BOUNDS = ("compute", "memory", "network", "overhead")  # the last: kernel launches, the engine's CPU


@dataclass(frozen=True)
class Limit:
    """One lower bound of an op's time: `amount` at `rate` per second.

    `constant` is the device's key for the rate; `Device.source` returns the source for this key.
    """

    bound: str
    amount: Size
    rate: float
    what: str
    constant: str

    def time(self, at: Binding) -> Number:
        """Seconds."""
        return at(self.amount) / self.rate

    @figure
    def seconds(self) -> Mapping[tuple[object, ...], float]:
        """Seconds for each monomial of the amount; the time is at least their sum."""
        terms = self.amount.terms if isinstance(self.amount, Dim) else (((), self.amount),)
        return {monomial: coefficient / self.rate for monomial, coefficient in terms}

    def below(self, other: Limit) -> bool:
        """Whether `other` takes at least as long at every point; rates must be numbers."""
        if is_external(self.rate) or is_external(other.rate):
            return False
        mine, theirs = self.seconds, other.seconds
        return all(theirs.get(m, 0.0) - mine.get(m, 0.0) >= 0 for m in mine.keys() | theirs.keys())


# Routed experts

_BETWEEN = ("moe", "elementwise", "collective")  # kinds of ops between dispatch and combine


@dataclass(frozen=True)
class ExpertTypes:
    """The dtypes of the `rows` and `weights` that the grouped products before or after an op multiply.

    `away` states that rows may belong to experts of other ranks: if ranks slice replicated rows, kernels
    iterate over all rows and skip these. In an exchange, a rank receives only its own rows or tokens.
    """

    rows: DType
    weights: DType
    away: Size


def expert_types(graph: Graph, node: Node, mesh: Mesh) -> ExpertTypes | None:
    """The dtypes for an op from `dispatch` to `combine`; None for other ops."""
    before = _before(graph, node)
    first = before[-1] if before[-1].op.copies else None
    product = next((n for n in before if _multiplies(n)), None)
    if product is None and (first or any(user.op.copies for user, _ in graph.users[node.name])):
        product = _after(graph, node)
    if product is None:
        return None
    rows, weights, *_ = graph.operand_types(product)
    away: Size = 0
    if first and not any(n.op.routing and n.op.exchanges for n in before):
        chosen, rows = (graph.type(v) for v in (first.operands[1], first.values[0]))
        came = graph[first.operands[1].node].op.routing
        there = most(rows.shape[0], mesh.size(chosen.placements[0])) if came else chosen.local(mesh).elements
        away = there - rows.local(mesh).shape[0]
    return ExpertTypes(rows.dtype, weights.dtype, away)


def _multiplies(node: Node) -> bool:
    """Whether the op multiplies routed rows."""
    return bool(node.op.routing and node.op.matrices)


def _before(graph: Graph, node: Node) -> list[Node]:
    """The node, and the nodes that produce its operands, back to `dispatch`."""
    found = [node]
    while not found[-1].op.copies and found[-1].operands:
        earlier = graph[found[-1].operands[0].node]
        if earlier.op.kind not in _BETWEEN or earlier.op.combines:
            break
        found.append(earlier)
    return found


def _after(graph: Graph, node: Node) -> Node | None:
    """The first grouped product that uses the result of a node."""
    names = [node.name]
    for name in names:
        if _multiplies(graph[name]):
            return graph[name]
        names.extend(user.name for user, _ in graph.users[name] if user.name not in names)
    return None


# Rows

# The roles of memory traffic: weights are read; activations, keys and values are read and written.
TRAFFIC = ("weight_read", "activation_read", "kv_cache_read", "activation_write", "kv_cache_write")
# The amounts of one execution, by the names in a report: FLOPs, and bytes, also by `TRAFFIC`.
AMOUNTS = (
    *("flops", "matmul_flops", "read_bytes", "write_bytes"),
    *(f"{role}_bytes" for role in TRAFFIC),
    "comm_bytes",
)


@dataclass(frozen=True)
class Row:
    """One op as a micro-batch runs it `repeat` times on one rank.

    `operands`, and `shape` of the first result, are those of one rank; `reads` and `writes` are pairs (role,
    bytes). `experts` describes the layer of routed experts around it.
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
    experts: ExpertTypes | None = None
    turns: int = 0  # number of weights of a benchmark that are used in turn; 0 as in a model

    @property
    def op(self) -> tuple[int, int]:
        """A key that rows with equal needs share; it is valid as long as one of them exists."""
        return id(self.work), id(self.writes)

    @property
    def anywhere(self) -> Row:
        """The row without name, stage and repeat; its time depends only on this part."""
        return self.at("", 0, Node(self.node.op.opcode, self.node.op, (), ()), 1)

    def at(self, name: str, stage: int, node: Node, repeat: int) -> Row:
        """The row of an op with equal work."""
        done = self.work, self.operands, self.shape, self.reads, self.writes, self.experts, self.turns
        return Row(name, stage, node, repeat, *done)

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
        """The amounts of one execution, by the names of `AMOUNTS`."""
        weights, caches = (_of(self.reads, role) for role in ("weight", "cache"))
        kept = _of(self.writes, "cache")
        traffic = weights, self.read - weights - caches, caches, self.write - kept, kept
        sizes = self.flops, self.work.matrix, self.read, self.write, *traffic, self.work.wire
        return dict(zip(AMOUNTS, sizes, strict=True))

    @cached_property
    def flops(self) -> Size:
        """All FLOPs, of matrix and vector units."""
        return self.work.matrix + self.work.vector


def _of(amounts: tuple[tuple[str, Size], ...], role: str) -> Size:
    return sum((n for r, n in amounts if r == role), start=0)


@lru_cache(maxsize=4096)
def op_rows(graph: Graph, mesh: Mesh) -> dict[str, Row]:
    """What each op of a graph needs; ops with equal needs share one object."""
    found = {}
    for node in graph.nodes:
        if node.op.runs:
            origins = [graph.origin(v).op for v in node.operands]
            found[node.name] = _anywhere(
                *_local(node.op, graph.operand_types(node), node.results, mesh),
                tuple([op.role for op in origins]),
                tuple([graph.origin(v).op.role for v in node.values]),
                expert_types(graph, node, mesh),
                max([getattr(op, "turns", 0) for op in origins], default=0),
            )
    return found


Types = tuple[Tensor, ...]


def _local(op: Op, operands: Types, results: Types, mesh: Mesh) -> tuple[Op, Types, Types, Mesh]:
    """The types and mesh on which the work of an op depends: the types on one rank, with the axes of its
    collective.
    """
    if op.lone:
        return (
            op,
            tuple([t.local(mesh) for t in operands]),
            tuple([t.local(mesh) for t in results]),
            ONE_DEVICE,
        )
    if op.joins:
        mesh = mesh.around(op.joins, {axis for t in (*operands, *results) for axis in t.spread})
    return op, operands, results, mesh


@lru_cache(maxsize=1 << 14)
def _anywhere(
    op: Op,
    operands: Types,
    results: Types,
    mesh: Mesh,
    taken: tuple[str, ...],
    given: tuple[str, ...],
    around: ExpertTypes | None,
    turns: int,
) -> Row:
    """The row of an op without its name, given the roles of its operands and results."""
    done = work(op, operands, results, mesh)
    return Row(
        "",
        0,
        Node(op.opcode, op, (), ()),
        1,
        done,
        tuple(t.local(mesh) for t in operands),
        results[0].local(mesh),
        tuple(zip(taken, done.reads, strict=True)),
        tuple(zip(given, done.writes, strict=True)),
        around,
        turns,
    )


@lru_cache(maxsize=1024)
def rows(program: Program) -> tuple[Row, ...]:
    """All ops that do work, in schedule order; a `repeat` is replaced by its body."""
    runs = (at for at in program.instances() if at.node.op.runs)
    each = {name: op_rows(graph, program.mesh) for name, graph in program.graphs.items()}
    return tuple(each[at.graph.name][at.node.name].at(at.path, at.stage, at.node, at.repeat) for at in runs)
