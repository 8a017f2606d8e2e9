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

OPS: Kind[type[Op]] = Kind("op", "llmir.ir.ops", index="llmir.ir.ops.index")

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("gemm", "attention", "moe", "scan", "norm", "elementwise", "gather", "collective")


class Loop(NamedTuple):
    """The loop of an op: it runs the graph `body` `times` times, and its first `carried` operands pass from
    one iteration to the next.

    `first` is the number of the first layer, if it is set (`Program.iterations`). The last iteration returns
    its additional results, which have the types `gives`.
    """

    body: str
    times: int
    carried: int
    first: int | None = None
    gives: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Work:
    """The work of one execution of an op on any device: the input of every cost model.

    `matrix` and `vector` are FLOPs on the two kinds of unit. `reads` are bytes per operand and `writes` bytes
    per result. `dtype` is the dtype of the arithmetic. `payload` bytes are exchanged between the devices of a
    `group` (one representative group), and `wire` bytes leave each rank in a ring. `pattern` is the opcode of
    the collective that sends them.
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
        """The number of devices in the group."""
        return len(self.group)


@dataclass(frozen=True)
class ExecutionPlace:
    """The context of one execution: the numbers of `cached` and `new` tokens, and the first indices of axes
    on this rank.

    Several ranks share a partial sum. One of these ranks `leads`: only this rank adds terms that must count
    once.
    """

    cached: int = 0
    new: int = 0  # 0 where each rank has all of them
    origins: Mapping[str, int] = field(default_factory=dict)
    leads: bool = True

    def origin(self, axis: str) -> int:
        """The global index of the first element of `axis` on this rank."""
        return self.origins.get(axis, 0)


@dataclass(frozen=True)
class RankGroup:
    """The state of a group of ranks during a step: `positions` of a sequence, and the rows that each rank has
    sent.

    `sent` maps the mesh axes and total rows of an exchange to the rows of each rank.
    """

    positions: int
    sent: dict[tuple[tuple[str, ...], int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """An operation. Its fields are its attributes; its rules follow from the equation `rule`.

    In `rule`, `*` stands for the remaining leading axes of the first operand. `block` is the part of the
    model that the op is in: embedding, attention, attention_core, mlp, routed_experts, router,
    shared_experts, norm or lm_head.

    An op describes itself by traits, so that other code does not have to test its class.
    """

    opcode: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...]] = ("x",)  # names of the operands; `*weights` represents any number
    vector_flops: ClassVar[int] = 0  # per element of the first result
    # result -> the operand that it overwrites (if nothing else needs the operand later)
    aliases: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # operands in which the op is linear, so that partial sums may pass through
    linear: ClassVar[frozenset[int]] = frozenset()
    # … only in all of these together, as in the terms of a sum: all are partial sums over the same ranks
    additive: ClassVar[bool] = False
    # axis -> the other axis that shares its placement, such as rows with their experts
    aligned: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # no op computes its value: it exists before the step
    source: ClassVar[bool] = False
    # content of the memory of its results: weight, cache or activation
    role: ClassVar[str] = "activation"
    # part of the placement on ranks; removed if values are placed again
    relays: ClassVar[bool] = False
    # whether its ranks communicate, and the share of the payload that a ring of n ranks sends
    exchanges: ClassVar[bool] = False
    share: ClassVar[str] = ""
    # its result is its operand in the stated dtype
    converts: ClassVar[bool] = False
    # a cast without loss, which patterns of rewrites ignore
    transparent: ClassVar[bool] = False
    # result -> the operand whose rows it copies unchanged
    copies: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # it adds up the rows of a token, which were copied
    combines: ClassVar[bool] = False
    # the results are the best next tokens, with their scores
    proposes: ClassVar[bool] = False
    # the result consists of zeros
    zero: ClassVar[bool] = False
    # operands that it reads in low precision and dequantizes itself
    widens: ClassVar[frozenset[int]] = frozenset()
    # operand -> another operand that must have the same dtype
    alike: ClassVar[Mapping[int, int]] = MappingProxyType({})

    # whether only passes create the op, as one kernel of an engine that replaces several ops
    lowered: ClassVar[bool] = False

    # its work follows from the types of one rank; temporary memory may exceed them
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
        """Hash of the class and attributes, computed once, because types, work and times are cached by op."""
        if "_hash" not in vars(self):
            vars(self)["_hash"] = hash((type(self), *(getattr(self, f.name) for f in fields(self))))
        return int(vars(self)["_hash"])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the hash, because hashes of strings differ between processes."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """The attributes that repeat the types of results, and which the text form omits; `given` contains
        the others.
        """
        return {}

    @property
    def axes(self) -> tuple[str, ...]:
        """The logical names of a source's dimensions; sharding depends only on these names."""
        return ()

    @property
    def cached(self) -> bool:
        """Whether the op supplies values of earlier steps together with the new tokens (also values of
        another layer).
        """
        return self.role == "cache" or "cached" in self.axes

    @property
    def param(self) -> str:
        """The name of a weight in a checkpoint, with `{layer}` for the layer number."""
        return ""

    @property
    def parameters(self) -> Size:
        """The number of model parameters in this weight."""
        return 0

    @property
    def loop(self) -> Loop | None:
        """The graph that the op runs, if it runs one."""
        return None

    @property
    def moves(self) -> bool:
        """Whether the op only moves or converts values, between ranks or between precisions."""
        return self.kind == "collective"

    @property
    def runs(self) -> bool:
        """Whether the op runs as a kernel; sources do not, and loops run only their body."""
        return not self.source and self.loop is None

    @property
    def joins(self) -> tuple[str, ...]:
        """The mesh axes that connect the ranks of one execution."""
        return ()

    @property
    def matrices(self) -> range:
        """Which operands are weights that it multiplies the first operand by, one for each result."""
        return range(0)

    @property
    def active(self) -> Fraction:
        """The share of its matrices that one token uses."""
        return Fraction(1)

    @property
    def routing(self) -> str:
        """The law by which tokens choose experts (`routing`); "" for an op without routed rows."""
        return ""

    def routed_by(self, law: str) -> Op:
        """A copy of the op in which tokens choose experts by another law."""
        return self

    @property
    def expert_choices(self) -> int:
        """The number of experts of the model that tokens choose from; 0 for an op without routed rows."""
        return 0

    def scale_roles(self, slot: int) -> str:
        """The role of each dimension of an operand with respect to scales (`DType.roles`); "" if the operand
        is no matrix.
        """
        return ""

    @property
    def chunked(self) -> Op | None:
        """A scan of several tokens at once, as kernels compute it; None for other ops."""
        return None

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in a checkpoint of a weight at this operand, given its shape in the program."""
        return shape

    def remark(self, operands: Sequence[Tensor]) -> str:
        """A remark for diagrams about properties that types do not show."""
        return ""

    def numbered(self, layer: int) -> Op:
        """The op as it is in the layer with this number."""
        return self

    def typed(self, type: Tensor) -> Op:
        """A source with this type; other ops are unchanged, because their types follow from the operands."""
        return self

    def widened(self, axis: str, by: int) -> Op:
        """A weight with `by` more spare places along an axis; unchanged if it does not have the axis."""
        return self

    def looping(self, loop: Loop) -> Op:
        """The op with another loop; unchanged if it runs no graph."""
        return self

    def giving(self, to: DType, x: DType) -> Op:
        """The op with results of dtype `to`, if it declares one; `x` is the dtype of its first operand."""
        return self

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The op's equation for these operands, in which `*` is written out."""
        return spell_equation(self.rule, len(operands[0].shape) if operands else 0)

    def owed(self, operands: Sequence[Tensor]) -> list[Placement]:
        """The mesh axes over which each operand may remain a partial sum."""
        if self.additive:
            shared = (a for a in operands[0].partial if all(a in t.partial for t in operands))
            return [tuple(shared)] * len(operands)
        return [t.partial if i in self.linear else () for i, t in enumerate(operands)]

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Sizes of the axes that only the results have."""
        return {}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtype of each result. The default is the dtype of the first operand."""
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
        """The dtype of the arithmetic. The default is the dtype of the first operand."""
        return operands[0].dtype.plain

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The matrix products of the op. The default is none."""
        return ()

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """Matmul FLOPs, 2·m·n·k for each product."""
        return sum((2 * g.batch * g.m * g.n * g.k for g in self.gemms(operands)), start=0)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """FLOPs outside matrix products."""
        return results[0].elements * self.vector_flops

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Bytes read per operand; by default, each operand is read once, completely."""
        return tuple(t.bytes for t in operands)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Bytes written per result; by default, each result is written once, completely."""
        return tuple(t.bytes for t in results)

    def workspace(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Bytes of temporary memory in addition to operands and results; the types are those of one rank."""
        return 0

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The cost of one execution on the fullest rank; types are global, and `mesh` contains the axes of
        all ranks.
        """
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
        """Compute the results in NumPy. The default evaluates the equation as an einsum.

        Arrays are global or those of one rank, like the types; `at` contains the first indices of the latter.
        """
        ranks = [Tensor((1,) * a.ndim, results[0].dtype) for a in operands]
        return (np.einsum(self.equation(ranks).einsum(), *operands, optimize=True),)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The result of the rank at `place`, from the values of all members of its group in `joins`.

        VerifyError for an op that connects no ranks.
        """
        raise VerifyError(f"{self.opcode} joins no ranks")


def type_name(attribute: Field[Any]) -> str:
    """The declared type of an attribute, such as `int`, `str` or `tuple`, independent of its spelling."""
    stated = attribute.type
    name = stated if isinstance(stated, str) else getattr(stated, "__name__", str(stated))
    return name.partition("[")[0]


@lru_cache(maxsize=4096)
def spell_equation(rule: str, rank: int) -> Equation:
    """The equation, in which `*` is replaced by the remaining axes of a first operand with `rank`
    dimensions.
    """
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
    if takes == Op.takes:  # a class without names: its rule, or else its equation, counts the operands
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
