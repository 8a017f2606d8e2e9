"""The base class of ops: an op states one index equation and overrides only the rules that deviate.

Result types, work, matrix products, legal shardings and the NumPy meaning have defaults that follow from
`rule`. Class attributes and properties state the traits of an op; passes and backends read these instead of
testing for a class. `OPS` is the registry of ops by opcode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.registry import Kind
from llmir.ir.sizes.polynomial import Size, product

from .dtype import DType
from .equation import Dimension, Equation, equation
from .mesh import Mesh
from .tensor import Placement, Tensor

# --- Matrix products ---


class Gemm(NamedTuple):
    """A matrix product `[batch] m×k · k×n`, in elements."""

    m: Size
    n: Size
    k: Size
    batch: Size = 1


def operand_gemm(rule: Equation, sizes: Mapping[str, Size], left: int, right: int, result: int) -> Gemm:
    """The matrix product of two operands of `rule` into one result, by the roles of the axes."""
    a, b = (rule.axes([rule.operands[i]]) for i in (left, right))
    out = rule.axes([rule.results[result]])
    over = [x for x in dict.fromkeys((*a, *b)) if x not in rule.indexed]
    shared = {x for x in over if x in a and x in b}
    return Gemm(
        m=product(sizes[x] for x in over if x in a and x in out and x not in shared),
        n=product(sizes[x] for x in over if x in b and x in out and x not in shared),
        k=product(sizes[x] for x in over if x not in out),
        batch=product(sizes[x] for x in over if x in shared and x in out),
    )


# --- Ops ---

OPS: Kind[type[Op]] = Kind("op", "llmir.ir.ops", index="llmir.ir.tools.op_methods")

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("gemm", "attention", "moe", "scan", "norm", "elementwise", "gather", "collective")


class Loop(NamedTuple):
    """What an op runs: graph `body`, `times` times over; its first `carried` operands go round.

    `first` is the number of its first layer, if that is stated (`Program.iterations`). What the last run
    gives beyond what goes round is handed out, in the types `gives`.
    """

    body: str
    times: int
    carried: int
    first: int | None = None
    gives: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Work:
    """What one execution of an op costs any device: the input of every cost model.

    `matrix` and `vector` are FLOPs on the two kinds of unit, `reads` bytes per operand, `writes`
    bytes per result, `dtype` what the arithmetic is done in. `payload` bytes go between the devices of a
    `group` (the first of its kind: all others lie alike), of which `wire` leave the rank in a ring; `pattern`
    is the opcode of the collective that they go as.
    """

    dtype: DType
    matrix: Size
    vector: Size
    reads: tuple[Size, ...]
    writes: tuple[Size, ...]
    gemms: tuple[Gemm, ...] = ()
    wire: Size = 0
    payload: Size = 0
    group: tuple[int, ...] = (0,)
    pattern: str = ""

    @property
    def ranks(self) -> int:
        """How many devices the group has."""
        return len(self.group)


@dataclass(frozen=True)
class ExecutionPlace:
    """Where one execution stands: after `cached` tokens, with `new` ones, and where its local axes begin.

    A partial sum is shared by several ranks, of which one `leads`: it adds what must be added once.
    """

    cached: int = 0
    new: int = 0  # 0 where each rank has all of them
    origins: Mapping[str, int] = field(default_factory=dict)
    leads: bool = True

    def origin(self, axis: str) -> int:
        """The global index of the first element of `axis` that this rank holds."""
        return self.origins.get(axis, 0)


@dataclass(frozen=True)
class RankGroup:
    """What a group of ranks knows of a step: `positions` of a sequence, and the rows that each gave before.

    `sent` has those by the mesh axes of an exchange and how many rows there were in all.
    """

    positions: int
    sent: dict[tuple[tuple[str, ...], int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """An operation. Its fields are its attributes; its rules follow from `rule`, an equation.

    In `rule`, `*` stands for as many leading axes as the first operand has left. `block` is the part
    of the model that the op belongs to (embedding, attention, attention_core, mlp, routed_experts,
    router, shared_experts, norm, lm_head).

    What an op is, it states as traits, and no other code knows its class.
    """

    opcode: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...]] = ("x",)  # what its operands are called; `*weights` are any number
    vector_flops: ClassVar[int] = 0  # per element of the first result
    # result -> the operand whose memory it is written to (if nothing else needs that operand later)
    aliases: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # operands in which the op is linear, so that a partial sum may pass through
    linear: ClassVar[frozenset[int]] = frozenset()
    # … only in all of these at once, as in the terms of a sum: all are partial sums over the same ranks
    additive: ClassVar[bool] = False
    # axis -> the axis that it lies with, though it is another one: rows with their experts
    aligned: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # no op computes its value: it is there before the step
    source: ClassVar[bool] = False
    # what is held in the memory of its results: weight, cache or activation
    role: ClassVar[str] = "activation"
    # it is there for how values are placed on ranks, and goes when they are laid out anew
    relays: ClassVar[bool] = False
    # ranks that it joins send each other something, and of the payload, in a ring of n ranks, what share
    exchanges: ClassVar[bool] = False
    share: ClassVar[str] = ""
    # its result is its operand in an element type that it states
    converts: ClassVar[bool] = False
    # … with every value kept, so that patterns of rewrites look through it
    transparent: ClassVar[bool] = False
    # result -> the operand whose rows it has, each copied as it is
    copies: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # it adds up the rows of a token, which were copied
    combines: ClassVar[bool] = False
    # its results are the best next tokens, with what they add to the scores of beams
    proposes: ClassVar[bool] = False
    # its result is nothing but zeros
    zero: ClassVar[bool] = False
    # operands that it reads in narrow types, and widens itself
    widens: ClassVar[frozenset[int]] = frozenset()
    # operand -> another one, whose element type it must have
    alike: ClassVar[Mapping[int, int]] = MappingProxyType({})

    # no frontend writes it: a pass put it in place of other ops, as a kernel of an engine
    lowered: ClassVar[bool] = False

    # its work is that of the types of one rank; it may hold more memory than these while it runs
    lone: ClassVar[bool] = True
    roomy: ClassVar[bool] = False

    block: str = field(default="", kw_only=True)

    def __init_subclass__(cls) -> None:
        if vars(cls).keys().isdisjoint(("__eq__", "__hash__")):
            cls.__hash__ = Op.__hash__  # type: ignore[method-assign]
        cls.lone, cls.roomy = cls.work is Op.work, cls.workspace is not Op.workspace
        if cls.opcode:
            if cls.kind not in KINDS:
                raise TypeError(f"{cls.__name__}: kind is {cls.kind!r}, expected one of {', '.join(KINDS)}")
            if "opcode" in vars(cls):
                OPS.add(cls.opcode, cls, cls)

    def __hash__(self) -> int:
        """That of its class and attributes, found once: types, work and prices are kept by op."""
        if "_hash" not in vars(self):
            vars(self)["_hash"] = hash((type(self), *(getattr(self, f.name) for f in fields(self))))
        return int(vars(self)["_hash"])

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash: strings hash otherwise in each process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """The attributes that are types, which IR states as those of its results; `given` are the others."""
        return {}

    @property
    def axes(self) -> tuple[str, ...]:
        """The logical names of a source's dimensions, which are all that sharding reads."""
        return ()

    @property
    def cached(self) -> bool:
        """Whether it is what earlier steps left, and new tokens with it if that comes from another layer."""
        return self.role == "cache" or "cached" in self.axes

    @property
    def param(self) -> str:
        """The name of a weight in a checkpoint, with `{layer}` where its layer's number stands."""
        return ""

    @property
    def parameters(self) -> Size:
        """How many parameters of the model it holds."""
        return 0

    @property
    def loop(self) -> Loop | None:
        """The graph that it runs, if it runs one."""
        return None

    @property
    def moves(self) -> bool:
        """Whether values only travel through it, between ranks or in and out of a narrow type."""
        return self.kind == "collective"

    @property
    def runs(self) -> bool:
        """Whether it runs itself, as a kernel: no source, and no loop, whose body does."""
        return not self.source and self.loop is None

    @property
    def joins(self) -> tuple[str, ...]:
        """The mesh axes whose ranks run it together."""
        return ()

    @property
    def matrices(self) -> range:
        """Which operands are weights that it multiplies the first operand by, one for each result."""
        return range(0)

    @property
    def active(self) -> Fraction:
        """The share of its matrices that one token meets."""
        return Fraction(1)

    @property
    def routing(self) -> str:
        """The law by which tokens choose experts (`routing`); "" for what has no routed rows."""
        return ""

    def routed_by(self, law: str) -> Op:
        """The op where tokens choose experts by another law."""
        return self

    @property
    def expert_choices(self) -> int:
        """How many experts of the model tokens choose among; 0 of what has no routed rows."""
        return 0

    def scale_roles(self, slot: int) -> str:
        """The part of each dimension of an operand for scales (`DType.roles`); "" if it is no matrix."""
        return ""

    @property
    def chunked(self) -> Op | None:
        """A scan of several tokens at once, as kernels take them; None of any other op."""
        return None

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in a checkpoint of a weight that it takes there and that it has in `shape`."""
        return shape

    def remark(self, operands: Sequence[Tensor]) -> str:
        """What a picture says of it that its types don't."""
        return ""

    def numbered(self, layer: int) -> Op:
        """The op as it runs in a layer of that number."""
        return self

    def typed(self, type: Tensor) -> Op:
        """A source of that type; itself if it is no source, whose types follow from its operands."""
        return self

    def widened(self, axis: str, by: int) -> Op:
        """A weight with so many spare places more along an axis; itself if it has no such axis."""
        return self

    def looping(self, loop: Loop) -> Op:
        """The op that runs a graph as `loop` says; itself if it runs none."""
        return self

    def giving(self, to: DType, x: DType) -> Op:
        """The op with results of that type, if it states one; its first operand is of type `x`."""
        return self

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The op's equation, with `*` spelled out for these operands."""
        return spell_equation(self.rule, len(operands[0].shape) if operands else 0)

    def owed(self, operands: Sequence[Tensor]) -> list[Placement]:
        """Over which mesh axes each operand may be a partial sum still, of those that it is one over."""
        if self.additive:
            shared = (a for a in operands[0].partial if all(a in t.partial for t in operands))
            return [tuple(shared)] * len(operands)
        return [t.partial if i in self.linear else () for i, t in enumerate(operands)]

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Sizes of the axes that only the results have."""
        return {}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The element type of each result: by default that of the first operand."""
        return (operands[0].dtype,) * len(self.equation(operands).results)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The result types, from the equation; `VerifyError` if the operands do not fit."""
        rule = self.equation(operands)
        sizes = rule.sizes(operands, **self.new_axes(operands))
        layout = rule.layout(operands, self.linear)
        if self.additive and len({t.partial for t in operands}) > 1:
            raise VerifyError(f"{self.opcode}: terms are sums over different ranks: {_listed(operands)}")

        def result(term: tuple[Dimension, ...], dtype: DType) -> Tensor:
            placements, tokens = layout.of(term)
            return Tensor((d.size(sizes) for d in term), dtype, placements, layout.partial, tokens)

        return tuple(map(result, rule.results, self.dtypes(operands)))

    def arithmetic(self, operands: Sequence[Tensor]) -> DType:
        """The element type that it computes in: by default that of the first operand."""
        return operands[0].dtype.plain

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The matrix products inside; none unless the op says so."""
        return ()

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """Matmul FLOPs, 2·m·n·k for each product."""
        return sum((2 * g.batch * g.m * g.n * g.k for g in self.gemms(operands)), start=0)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """FLOPs outside matrix products."""
        return results[0].elements * self.vector_flops

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Bytes read per operand: each once, whole."""
        return tuple(t.bytes for t in operands)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Bytes written per result: each once, whole."""
        return tuple(t.bytes for t in results)

    def workspace(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Bytes that it holds while it runs, beside operands and results; the types are one rank's."""
        return 0

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The cost of one execution on the fullest rank; types are global, `mesh` has the axes of all."""
        ours, theirs = ([t.local(mesh) for t in types] for types in (operands, results))
        return Work(
            self.arithmetic(ours) if ours else theirs[0].dtype,
            self.matrix(ours),
            self.vector(ours, theirs),
            self.reads(ours, theirs),
            self.writes(ours, theirs),
            self.gemms(ours),
        )

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """What the op computes, in numpy: by default the equation as an einsum.

        Arrays are global or local like the types; `at` says where local ones begin.
        """
        ranks = [Tensor((1,) * a.ndim, results[0].dtype) for a in operands]
        return (np.einsum(self.equation(ranks).einsum(), *operands, optimize=True),)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """What the rank at `place` of the group that `joins` makes has, of what all of them had.

        `VerifyError` for an op that joins none.
        """
        raise VerifyError(f"{self.opcode} joins no ranks")


def type_name(attribute: Field[Any]) -> str:
    """`int`, `str`, `tuple` …: what an attribute is stated to be, however its module spells annotations."""
    stated = attribute.type
    name = stated if isinstance(stated, str) else getattr(stated, "__name__", str(stated))
    return name.partition("[")[0]


@lru_cache(maxsize=4096)
def spell_equation(rule: str, rank: int) -> Equation:
    """The equation, with as many axes for `*` as a first operand of `rank` dimensions has left."""
    if "*" not in rule:
        return equation(rule)
    stated = len(rule.split(",", maxsplit=1)[0].split("->", maxsplit=1)[0].split()) - 1
    return equation(rule.replace("*", " ".join("ijlmnopq"[: max(rank - stated, 0)])))


def _listed(operands: Sequence[Tensor]) -> str:
    return ", ".join(map(str, operands))


@lru_cache(maxsize=1 << 14)
def infer(op: Op, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The result types of `op`; `VerifyError` if the operands do not fit."""
    takes = op.takes
    if takes == Op.takes:  # of a class that names none: its rule counts them, else its equation will
        takes = tuple(op.rule.partition("->")[0].split(",")) if op.rule else ("*operands",)
    least = sum(not name.startswith("*") for name in takes)
    if len(operands) < least or (len(operands) > least == len(takes)):
        named = f" ({', '.join(takes)})" if takes else ""
        raise VerifyError(f"{op.opcode} takes {least} operands{named}, got {len(operands)}")
    try:
        return op.types(operands)
    except IndexError:
        raise VerifyError(f"{op.opcode} takes operands of more dimensions, got {_listed(operands)}") from None


@lru_cache(maxsize=1 << 14)
def work(op: Op, operands: tuple[Tensor, ...], results: tuple[Tensor, ...], mesh: Mesh) -> Work:
    """`op.work`, computed once for equal arguments."""
    return op.work(operands, results, mesh)
