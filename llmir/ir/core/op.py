"""The base class of ops: an op has one index equation, and overrides only the rules that need it.

Result types, work, matrix products, legal shardings and NumPy evaluation have defaults that follow from the
equation `rule`. Class attributes and properties give the traits of an op. Passes and backends read these
traits instead of testing for a class. `OPS` is the registry of ops by opcode.
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
    """The matrix product of two operands of `rule`, derived from the roles of the axes."""
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
    """The loop of an op, which runs the graph `body` `times` times.

    The first `carried` operands pass from one iteration to the next. `first` is the number of the first
    layer, if set (`Program.iterations`). The last iteration also returns additional results of the types
    `gives`.
    """

    body: str
    times: int
    carried: int
    first: int | None = None
    gives: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Work:
    """The work of one execution of an op on any device: the input of every cost model.

    `matrix` and `vector` are FLOPs on matrix units and on vector units. `reads` are bytes per operand, and
    `writes` are bytes per result. `dtype` is the dtype of the arithmetic. The devices of each group exchange
    `payload` bytes, and in a ring `wire` bytes leave each rank; `group` is one representative group.
    `pattern` is the opcode of the collective.
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
    """The context of one execution: `cached` and `new` tokens, and the first indices of axes on this rank.

    Among ranks that share a partial sum, `leads` is true for one rank, which adds terms that count once.
    """

    cached: int = 0
    new: int = 0  # 0 for an axis that each rank has in full
    origins: Mapping[str, int] = field(default_factory=dict)
    leads: bool = True

    def origin(self, axis: str) -> int:
        """The global index of the first element of `axis` on this rank."""
        return self.origins.get(axis, 0)


@dataclass(frozen=True)
class RankGroup:
    """The state of a group of ranks during a step.

    `positions` is the number of positions per sequence. `sent` maps the mesh axes and the total rows of an
    exchange to the rows that each rank has sent.
    """

    positions: int
    sent: dict[tuple[tuple[str, ...], int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """Base class of ops. Fields are the attributes of the op, and its rules follow from the equation `rule`.

    In `rule`, `*` means the remaining leading axes of the first operand. `block` is the part of the model
    that contains the op: embedding, attention, attention_core, mlp, routed_experts, router, shared_experts,
    norm or lm_head.

    Traits describe an op, so that other code does not have to test its class.
    """

    opcode: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...]] = ("x",)  # operand names; `*weights` means any number of operands
    vector_flops: ClassVar[int] = 0  # FLOPs per element of the first result
    # result -> operand that the result overwrites (if no later op needs the operand)
    aliases: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # operands in which the op is linear: the op may process partial sums
    linear: ClassVar[frozenset[int]] = frozenset()
    # operands that must all be partial sums over the same ranks, or none of them: the terms of a sum
    additive: ClassVar[bool] = False
    # axis -> other axis with the same placement, such as rows and their experts
    aligned: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # whether the value exists before the step, without computation
    source: ClassVar[bool] = False
    # kind of memory of the results: weight, cache or activation
    role: ClassVar[str] = "activation"
    # whether sharding inserted the op; a new sharding removes such ops
    relays: ClassVar[bool] = False
    # whether ranks communicate in the op, and the fraction of the payload that a ring of n ranks sends
    exchanges: ClassVar[bool] = False
    share: ClassVar[str] = ""
    # whether the result is the operand in a declared dtype
    converts: ClassVar[bool] = False
    # whether the op is a lossless cast, which rewrite patterns ignore
    transparent: ClassVar[bool] = False
    # result -> operand whose rows the result copies unchanged
    copies: ClassVar[Mapping[int, int]] = MappingProxyType({})
    # whether the op adds up the copied rows of each token
    combines: ClassVar[bool] = False
    # whether the results are the best next tokens with their scores
    proposes: ClassVar[bool] = False
    # whether the result consists of zeros
    zero: ClassVar[bool] = False
    # operands that the op reads in low precision and dequantizes
    widens: ClassVar[frozenset[int]] = frozenset()
    # operand -> other operand that must have the same dtype
    alike: ClassVar[Mapping[int, int]] = MappingProxyType({})

    # whether only passes create the op, as one kernel of an engine that replaces several ops
    lowered: ClassVar[bool] = False

    # whether the work follows from the types of one rank
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
        """Hash of the class and the attributes, computed once: types, work and times are cached by op."""
        if "_hash" not in vars(self):
            vars(self)["_hash"] = hash((type(self), *(getattr(self, f.name) for f in fields(self))))
        return int(vars(self)["_hash"])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the hash, because hashes of strings differ between processes."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """Attributes that the text form omits, because they repeat result types; `given` are the others."""
        return {}

    @property
    def axes(self) -> tuple[str, ...]:
        """The logical names of a source's dimensions; sharding depends only on these names."""
        return ()

    @property
    def cached(self) -> bool:
        """Whether the op supplies values of earlier steps and of new tokens, possibly of another layer."""
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
        """The loop of the op; None if the op runs no graph."""
        return None

    @property
    def moves(self) -> bool:
        """Whether the op only moves values between ranks or converts them between dtypes."""
        return self.kind == "collective"

    @property
    def runs(self) -> bool:
        """Whether the op runs as a kernel; sources and loops do not."""
        return not self.source and self.loop is None

    @property
    def joins(self) -> tuple[str, ...]:
        """The mesh axes that connect the ranks of one execution."""
        return ()

    @property
    def matrices(self) -> range:
        """The slots of weights that the op multiplies by the first operand, one weight per result."""
        return range(0)

    @property
    def active(self) -> Fraction:
        """The fraction of the weights that one token uses."""
        return Fraction(1)

    @property
    def routing(self) -> str:
        """The law by which tokens choose experts (`routing`); "" for an op without routed rows."""
        return ""

    def routed_by(self, law: str) -> Op:
        """The op with another routing law."""
        return self

    @property
    def expert_choices(self) -> int:
        """The number of experts in the model; 0 for an op without routed rows."""
        return 0

    def scale_roles(self, slot: int) -> str:
        """The roles of an operand's dimensions for scales (`DType.roles`); "" if the operand is no matrix."""
        return ""

    @property
    def chunked(self) -> Op | None:
        """The scan with chunks of tokens, as kernels compute it; None for other ops."""
        return None

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The checkpoint shape of a weight at operand `slot`, given its shape in the program."""
        return shape

    def remark(self, operands: Sequence[Tensor]) -> str:
        """A remark for diagrams on properties that types do not show."""
        return ""

    def numbered(self, layer: int) -> Op:
        """The op for this layer number."""
        return self

    def typed(self, type: Tensor) -> Op:
        """The source with this type; other ops return themselves, because operands determine their types."""
        return self

    def widened(self, axis: str, by: int) -> Op:
        """The weight with `by` more spare entries along an axis; the op itself without this axis."""
        return self

    def looping(self, loop: Loop) -> Op:
        """The op with another loop; the op itself if it runs no graph."""
        return self

    def giving(self, to: DType, x: DType) -> Op:
        """The op with results of dtype `to`, if it declares a dtype; `x` is the first operand's dtype."""
        return self

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The equation for these operands, with `*` replaced by axes."""
        return spell_equation(self.rule, len(operands[0].shape) if operands else 0)

    def owed(self, operands: Sequence[Tensor]) -> list[Placement]:
        """For each operand, the mesh axes over which the operand may remain a partial sum."""
        if self.additive:
            shared = (a for a in operands[0].partial if all(a in t.partial for t in operands))
            return [tuple(shared)] * len(operands)
        return [t.partial if i in self.linear else () for i, t in enumerate(operands)]

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """The sizes of axes that only results have."""
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
        """Bytes of temporary memory in addition to operands and results, for the types of one rank."""
        return 0

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The work of one execution on the rank with the largest parts, for global types."""
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

        Arrays and types are global, or those of one rank. For one rank, `at` contains the first indices.
        """
        ranks = [Tensor((1,) * a.ndim, results[0].dtype) for a in operands]
        return (np.einsum(self.equation(ranks).einsum(), *operands, optimize=True),)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The result on the rank at `place`, from the operand values of all ranks of its group in `joins`.

        Raises VerifyError for an op that connects no ranks.
        """
        raise VerifyError(f"{self.opcode} joins no ranks")


def type_name(attribute: Field[Any]) -> str:
    """The declared type of an attribute as a name, such as `int`, `str` or `tuple`."""
    stated = attribute.type
    name = stated if isinstance(stated, str) else getattr(stated, "__name__", str(stated))
    return name.partition("[")[0]


@lru_cache(maxsize=4096)
def spell_equation(rule: str, rank: int) -> Equation:
    """Replace `*` in an equation by the remaining axes of a first operand with `rank` dimensions."""
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
    if takes == Op.takes:  # without operand names, the rule or the equation gives the number of operands
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
