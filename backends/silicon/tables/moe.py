"""Tables of mixture-of-experts layers on one rank: from the quantization of x to each token's sum."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.ir.core.graph import Value
from llmir.ir.core.mesh import ONE_DEVICE, mesh_of
from llmir.ir.core.program import Program
from llmir.ir.sizes.polynomial import Busiest, Dim, Min, Size
from llmir.ir.sizes.routing_laws import LocalRouting, law
from llmir.ir.tools.build import Builder

from .gemm import PRODUCTS, tensor, wide_type
from .table import MORE, WHOSE, KernelTable, columns

LAYER, BARE, GROUPED, WIDENED = "layer", "layer of narrow rows", "products", "widened"


def balanced_or_power_law(distribution: str) -> float:
    """Exponent of the power law of expert loads; 0 if they are balanced. ValueError for other distributions.

    >>> balanced_or_power_law("balanced"), balanced_or_power_law("power_law_1.2")
    (0.0, 1.2)
    """
    if distribution == "balanced":
        return 0.0
    word, _, value = distribution.rpartition("_")
    if word != "power_law":
        raise ValueError(distribution)
    return float(value)


LAW = Column(
    *(0, 10),
    whole=False,
    empty=0,
    reads=balanced_or_power_law,
    kind="balanced or power_law_ and its exponent",
)


class MoeTable(KernelTable):
    """Layers with `num_tokens` tokens of all ranks.

    Each rank has a share of the experts and a part of each expert.
    """

    name = "moe"
    numbers = columns(
        *("num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep"), distribution=LAW
    )
    words = (*WHOSE, "dtype")
    more = ("op", "routing", *MORE)
    key = ("timed", "dtype", "num_experts", "moe_ep", "topk", "law")
    groups = ("hidden", "inter", "topk", "num_experts")
    finer = ("moe_tp", "moe_ep")
    variants = True
    fits = ("moe_",)

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The routing law of each row."""
        laws = np.empty(len(rows), dtype=object)
        said = zip(rows["distribution"], rows["routing"], rows["moe_ep"], strict=True)
        for i, (exponent, form, ranks) in enumerate(said):
            usual = f"power_law({exponent})" if exponent else "even"
            laws[i] = form.replace("{law}", usual).replace("{ranks}", f"{ranks:.0f}") or usual
        timed = np.where(rows["timed"] == "", LAYER, rows["timed"])
        return Table({**rows.columns, "law": laws, "timed": timed})

    def invalid_rows(self, rows: Table) -> dict[str, Array]:
        return {
            "a token chooses more experts than there are": rows["topk"] > rows["num_experts"],
            "the ranks do not divide the experts": rows["num_experts"] % rows["moe_ep"] > 0,
        }

    def program(self, *key: Any) -> Program:
        """The layer, or its grouped products."""
        timed, dtype, experts, ranks, top_k, routing = key
        if dtype not in PRODUCTS:
            raise InputError(f"dtype {dtype!r} of a moe is not known")
        sizes = int(experts), int(ranks), int(top_k)
        if timed == GROUPED:
            return products(dtype, sizes[0] // sizes[1], sizes[2], routing)
        if timed not in (LAYER, BARE, WIDENED):
            known = ", ".join((LAYER, BARE, GROUPED, WIDENED))
            raise InputError(f"timed {timed!r} of a moe is not known; known are {known}")
        held = "bfloat16" if timed == WIDENED else dtype
        return layer(held, *sizes, routing, narrow=timed == BARE)

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Tokens of all ranks, the hidden size, and the intermediate size of one rank."""
        return {"t": rows["num_tokens"], "h": rows["hidden"], "f": rows["inter"] / rows["moe_tp"]}

    def untimed(self, program: Program) -> frozenset[str]:
        """The sum over ranks at the end of the layer; it is not a kernel of one rank."""
        return frozenset(n.name for n in program.graphs["main"].nodes if n.op.kind == "collective")


@lru_cache(maxsize=1024)
def layer(
    dtype: str, experts: int, ranks: int, top_k: int, routing: str = "even", *, narrow: bool = False
) -> Program:
    """An expert layer on one of `ranks` ranks: `t` is the number of tokens of all ranks, `h` the hidden size,
    and `f` the intermediate size.

    Each rank has all tokens, and processes the rows of its own experts, by the law `routing`. If `narrow` is
    false, a separate op quantizes x. If the tokens have already arrived at one rank, the program describes
    only this rank.
    """
    x_type, w_type = PRODUCTS[dtype]
    wide = wide_type(dtype)
    tokens: Size = Dim.symbol("t")
    by = law(routing)
    mesh = mesh_of(ep=ranks)
    if isinstance(by, LocalRouting):
        tokens = Min.of(tokens, Busiest.of(ranks, top_k, tokens, experts, by.law))
        experts, mesh = experts // ranks, ONE_DEVICE
    over = mesh.atoms("ep")
    each = f"{experts}@{'.'.join(over)}" if over else f"{experts}"
    of = {"top_k": top_k, "experts": experts, "to": wide, "routing": routing}
    b = Builder()
    with b.block("routed_experts"):
        gate, up = (b.weight(tensor(w_type, "bkn", each, "h", "f"), name=n) for n in ("gate", "up"))
        down = b.weight(tensor(w_type, "bkn", each, "f", "h"), name="down")
        chosen, shares = (
            b.input(f"{type}[1, {tokens}, {top_k}]", name=name)
            for type, name in (("int32", "chosen"), ("fp32", "shares"))
        )
        narrowed = tensor(x_type, "mmk", 1, tokens, "h")
        x = b.input(narrowed if narrow else f"{wide}[1, {tokens}, h]", name="x")
        if not narrow and x_type != wide:
            x = b.quantize(x, to=narrowed.dtype.name, name="narrow_x")
        rows, expert = b.dispatch(x, chosen, over=over, experts=experts, routing=routing)
        y = b.silu_mul(*_grouped(b, (rows, gate, up, expert), **of), name="activation")
        if x_type != wide:
            y = b.quantize(y, to=tensor(x_type, "mk", 1, 1).dtype.name, name="narrow_y")
        (y,) = _grouped(b, (y, down, expert), **of)
        y = b.combine(y, shares, over=over)
        b.output(b.all_reduce(y, over=over) if over else y)
    return Program(f"moe {dtype}", {"main": b.graph()}, mesh=mesh)


@lru_cache(maxsize=256)
def products(dtype: str, experts: int, top_k: int, routing: str = "even") -> Program:
    """The two grouped products of a layer, the first of gate and up, without sorting and activation."""
    x_type, w_type = PRODUCTS[dtype]
    rows = top_k * Dim.symbol("t")
    b = Builder()
    with b.block("routed_experts"):
        gate, up = (b.weight(tensor(w_type, "bkn", experts, "h", "f"), name=n) for n in ("gate", "up"))
        down = b.weight(tensor(w_type, "bkn", experts, "f", "h"), name="down")
        x, inner = (b.input(tensor(x_type, "mk", rows, k), name=n) for n, k in (("x", "h"), ("y", "f")))
        expert = b.input(f"int32[{rows}]", name="expert")
        of = {"top_k": top_k, "experts": experts, "to": wide_type(dtype), "routing": routing}
        b.output(*_grouped(b, (x, gate, up, expert), **of), *_grouped(b, (inner, down, expert), **of))
    return Program(f"moe products {dtype}", {"main": b.graph()})


def _grouped(b: Builder, operands: tuple[Value, ...], **of: Any) -> tuple[Value, ...]:
    """Grouped products of rows and weights."""
    many = len(operands) - 2
    einsum = f"s i, {'[e] i o, ' * many}s -> {', '.join(['s o'] * many)}"
    found = b.grouped_linear(*operands, einsum=einsum, **of)
    return found if many > 1 else (found,)
