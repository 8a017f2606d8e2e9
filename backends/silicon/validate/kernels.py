"""One measured kernel as a program whose sizes are symbols, so that a whole table is one point of a grid.

The op is the one that models are made of, so its cost is too; there is no second formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.cost import Row
from llmir.backends.cost import rows as ops
from llmir.backends.silicon.calibrate import Table
from llmir.backends.silicon.calibrate.families import laws, together
from llmir.build import Builder
from llmir.dim import Dim, Size, call
from llmir.frozen import Figures
from llmir.graph import Program, Value
from llmir.mesh import Mesh
from llmir.routing import Arrived, law
from llmir.tensor import parse_tensor

Array = np.ndarray[Any, np.dtype[Any]]

WIDE = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "": "bf16",
}
# dtype of a table -> types of activations and of weights, without the letters of their layout
PRODUCTS = {
    "bfloat16": ("bf16", "bf16"),
    "float16": ("fp16", "fp16"),
    "float32": ("fp32", "fp32"),
    "fp8": ("fp8_e4m3_c", "fp8_e4m3_c"),
    "fp8_block": ("fp8_e4m3_b1x128", "fp8_e4m3_b128x128"),
    "sq": ("int8_c", "int8_c"),
    "int8_wo": ("bf16", "int8_c"),
    "int4_wo": ("bf16", "int4_g128"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "w4a16_mxfp4": ("bf16", "mxfp4"),
    "w4a8_mxfp4_mxfp8": ("fp8_e4m3_b1x32", "mxfp4"),
}


@dataclass(frozen=True)
class Call(Figures):
    """Rows of a table that one program prices: `index` into `table`, and the values of the symbols."""

    kind: str
    program: Program
    table: Table
    index: Array
    symbols: Mapping[str, Array]

    @property
    def rows(self) -> Table:
        """The rows themselves, for a cost model that prices tables by their own columns."""
        return self.table.take(self.index)

    @property
    def ops(self) -> tuple[Row, ...]:
        """The ops whose times a row adds up: of a rank's kernels all but what it exchanges with others."""
        return tuple(r for r in ops(self.program) if self.kind == "collective" or r.kind != "collective")

    def take(self, part: Array) -> Call:
        """Some of the rows."""
        symbols = {name: values[part] for name, values in self.symbols.items()}
        return replace(self, index=self.index[part], symbols=symbols)


Found = Iterator[tuple[Array, "Call | str", str]]


def calls(form: str, table: Table) -> Found:
    """Rows alike in what is not a size: their numbers, what prices them or why nothing does, their kind."""
    words, make = FORMS[form]
    keys = list(zip(*(table[w] for w in words), strict=True))
    members: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    for key, rows in members.items():
        yield from make(table, np.array(rows), *key)


def _type(scheme: str, letters: str, shape: str) -> str:
    laid = (
        f"{scheme}.{letters}"
        if "_" in scheme.removeprefix("fp8_e4m3") or scheme in ("nvfp4", "mxfp4")
        else scheme
    )
    return f"{laid}[{shape}]"


@lru_cache(maxsize=64)
def _gemm_program(dtype: str) -> Program:
    x_type, w_type = PRODUCTS[dtype]
    b = Builder()
    x = b.input(_type(x_type, "mk", "m, k"), name="x")
    w = b.weight(_type(w_type, "kn", "k, n"), name="w")
    to = WIDE.get(dtype, "bf16")
    b.output(b.linear(x, w, einsum="m k, k n -> m n", to=to, name="y"))
    return Program(f"gemm {dtype}", {"main": b.graph()})


def _gemm(t: Table, rows: Array, dtype: str) -> Found:
    if dtype not in PRODUCTS or dtype.startswith("w4"):
        yield rows, f"dtype {dtype!r} of a gemm is not known", "gemm"
        return
    yield rows, Call("gemm", _gemm_program(dtype), t, rows, {s: t[s][rows] for s in "mnk"}), "gemm"


@lru_cache(maxsize=64)
def _attention_program(q_type: str, kv_type: str) -> Program:
    b = Builder()
    q = b.input(f"{q_type}[b, t, g, r, d]", name="q")
    k, v = (b.cache(f"{kv_type}[b, c, g, d]", name=n) for n in "kv")
    b.output(b.causal_flash_attention(q, k, v, name="o"))
    return Program(f"attention {q_type} {kv_type}", {"main": b.graph()})


def _attention(t: Table, rows: Array, dtype: str, kv: str) -> Found:
    q_type, kv_type = ({**WIDE, "fp8": "fp8_e4m3", "int8": "int8"}.get(x) for x in (dtype, kv or dtype))
    new, seen, heads, groups = (t[c][rows] for c in ("q_len", "context", "num_heads", "num_kv_heads"))
    kinds = np.where((seen == new) | (new > 1), "attention_prefill", "attention_decode").astype(object)
    keys = _keys(new, seen, t["window"][rows])
    reasons = np.full(len(rows), "", dtype=object)
    reasons[heads % groups > 0] = "num_kv_heads does not divide num_heads"
    reasons[seen < new] = "context is past + q_len, so it is not below q_len"
    if q_type is None or kv_type is None:
        reasons[:] = f"dtype {dtype!r} with {kv!r} of an attention is not known"
    for kind in dict.fromkeys(kinds):
        for reason in dict.fromkeys(reasons[kinds == kind]):
            at = (kinds == kind) & (reasons == reason)
            if reason:
                yield rows[at], reason, kind
                continue
            sizes = {
                "b": t["batch"][rows[at]],
                "t": new[at],
                "c": keys[at],
                "g": groups[at],
                "r": heads[at] / groups[at],
                "d": t["head_dim"][rows[at]],
            }
            program = _attention_program(str(q_type), str(kv_type))
            yield rows[at], Call(kind, program, t, rows[at], sizes), kind


def _keys(new: Array, seen: Array, window: Array) -> Array:
    """Keys over which a causal attention has the pairs that the window leaves; all keys where there is none.

    Query i of `new` sees min(past + i + 1, window) keys. A step of one token thus reads its window; a prompt
    has the FLOPs of its band, and reads no more than there is.
    """
    width = np.where(window > 0, np.minimum(window, seen), seen)
    short = np.clip(width - 1 - (seen - new), 0, new)  # the first queries, which see less than a window
    pairs = new * width - short * (width - 1 - (seen - new)) + short * (short - 1) / 2
    return np.asarray((2 * pairs + new * new - new) / (2 * new))


@lru_cache(maxsize=1024)
def moe_program(
    dtype: str, experts: int, ranks: int, top_k: int, routing: str = "even", *, narrow: bool = False
) -> Program:
    """A layer of experts as one of `ranks` runs it: `t` tokens of all of them, `h` inputs, `f` inner values.

    Each rank has all tokens and keeps the rows of its experts, as many as `routing` says. x is narrowed by an
    op of its own unless it comes `narrow`. At the end ranks add up what they have: no kernel of a rank, so a
    row times all ops but that one. Where tokens `arrived` at one rank, the program is of that rank alone.
    """
    x_type, w_type = PRODUCTS[dtype]
    wide = x_type if x_type in WIDE.values() else "bf16"
    tokens: Size = Dim.symbol("t")
    by, atoms = law(routing), _atoms(ranks)
    if isinstance(by, Arrived):
        tokens = call("min", tokens, call("busiest", ranks, top_k, tokens, experts, by.law))
        experts, atoms = experts // ranks, {}
    each = f"{experts}@{'.'.join(atoms)}" if atoms else f"{experts}"
    of = {"top_k": top_k, "experts": experts, "to": wide, "routing": routing}
    b = Builder()
    with b.block("routed_experts"):
        gate, up = (b.weight(_type(w_type, "bkn", f"{each}, h, f"), name=n) for n in ("gate", "up"))
        down = b.weight(_type(w_type, "bkn", f"{each}, f, h"), name="down")
        chosen, shares = (
            b.input(f"{type}[1, {tokens}, {top_k}]", name=name)
            for type, name in (("int32", "chosen"), ("fp32", "shares"))
        )
        x = b.input(_type(x_type if narrow else wide, "mmk", f"1, {tokens}, h"), name="x")
        if not narrow and x_type != wide:
            x = b.quantize(x, to=f"{x_type}.mmk", name="narrow_x")
        rows, expert = b.dispatch(x, chosen, over=tuple(atoms), experts=experts, routing=routing)
        y = b.silu_mul(*_grouped(b, (rows, gate, up, expert), **of), name="activation")
        if x_type != wide:
            y = b.quantize(y, to=f"{x_type}.mk", name="narrow_y")
        (y,) = _grouped(b, (y, down, expert), **of)
        y = b.combine(y, shares, over=tuple(atoms))
        b.output(b.all_reduce(y, over=tuple(atoms)) if atoms else y)
    return Program(f"moe {dtype}", {"main": b.graph()}, mesh=Mesh(tuple(atoms.items())))


@lru_cache(maxsize=256)
def moe_products(dtype: str, experts: int, top_k: int, routing: str = "even") -> Program:
    """The two grouped products of a layer alone, the first of gate and up, of rows that come as they are."""
    x_type, w_type = PRODUCTS[dtype]
    rows = top_k * Dim.symbol("t")
    b = Builder()
    with b.block("routed_experts"):
        gate, up = (b.weight(_type(w_type, "bkn", f"{experts}, h, f"), name=n) for n in ("gate", "up"))
        down = b.weight(_type(w_type, "bkn", f"{experts}, f, h"), name="down")
        x, inner = (b.input(_type(x_type, "mk", f"{rows}, {k}"), name=n) for n, k in (("x", "h"), ("y", "f")))
        expert = b.input(f"int32[{rows}]", name="expert")
        wide = x_type if x_type in WIDE.values() else "bf16"
        of = {"top_k": top_k, "experts": experts, "to": wide, "routing": routing}
        b.output(*_grouped(b, (x, gate, up, expert), **of), *_grouped(b, (inner, down, expert), **of))
    return Program(f"moe products {dtype}", {"main": b.graph()})


def _grouped(b: Builder, operands: tuple[Value, ...], **of: Any) -> tuple[Value, ...]:
    """Products of rows and so many weights."""
    many = len(operands) - 2
    einsum = f"s i, {'[e] i o, ' * many}s -> {', '.join(['s o'] * many)}"
    found = b.grouped_linear(*operands, einsum=einsum, **of)
    return found if many > 1 else (found,)


def _moe(t: Table, rows: Array, dtype: str, experts: float, top_k: float, ep: float) -> Found:
    if dtype not in PRODUCTS or experts % ep or top_k > experts:
        known = dtype in PRODUCTS
        reason = (
            f"{ep:g} ranks do not divide {experts:g} experts"
            if known
            else f"dtype {dtype!r} of a moe is not known"
        )
        yield rows, reason, "moe"
        return
    each = laws(t.take(rows))
    for by in dict.fromkeys(each):
        own = rows[each == by]
        sizes = {"t": t["num_tokens"][own], "h": t["hidden"][own], "f": t["inter"][own] / t["moe_tp"][own]}
        program = moe_program(dtype, int(experts), int(ep), int(top_k), str(by))
        yield own, Call("moe", program, t, own, sizes), "moe"


@lru_cache(maxsize=1)
def _copy_program() -> Program:
    b = Builder()
    b.output(b.cast(b.input("bf16[m, n]", name="x"), to="bf16", name="y"))
    return Program("elementwise", {"main": b.graph()})


def _elementwise(t: Table, rows: Array, op: str) -> Found:
    # Whatever it computes, it moves so many bytes: half read, half written, 2 bytes an element each.
    lines = t["rows"][rows]
    sizes = {"m": lines, "n": t["bytes_moved_ideal"][rows] / (4 * lines)}
    yield rows, Call("elementwise", _copy_program(), t, rows, sizes), "elementwise"


def _atoms(ranks: int) -> dict[str, int]:
    """Axes of prime size for so many ranks; none for one."""
    found: list[int] = []
    p = 2
    while ranks > 1:
        while ranks % p == 0:
            found.append(p)
            ranks //= p
        p += 1
    return {f"tp{i}": size for i, size in enumerate(found)}


# A table's word -> the op, and its input as it lies, 2 bytes an element whatever the table's type.
_COLLECTIVES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "all_reduce": ("all_reduce", "bf16[s]+{plus}", {}),
    "all_gather": ("all_gather", "bf16[s@{at}]", {"dim": 0}),
    "reduce_scatter": ("reduce_scatter", "bf16[s]+{plus}", {"dim": 0}),
    "alltoall": ("all_to_all", "bf16[s@{at}, 1]", {"to": "experts"}),
}


@lru_cache(maxsize=64)
def _collective_program(op: str, ranks: int) -> Program:
    atoms = _atoms(ranks)
    opcode, type, options = _COLLECTIVES[op]
    b = Builder()
    x = b.input(parse_tensor(type.format(plus="+".join(atoms), at=".".join(atoms))), name="x")
    b.output(getattr(b, opcode)(x, over=tuple(atoms), name="y", **options))
    return Program(f"{op} {ranks}", {"main": b.graph()}, mesh=Mesh(tuple(atoms.items())))


def _collective(t: Table, rows: Array, op: str, ranks: float, kernel: str) -> Found:
    if op not in _COLLECTIVES or ranks < 2:
        yield (
            rows,
            f"no op is a {op!r}" if ranks > 1 else "a collective takes two ranks at least",
            "collective",
        )
        return
    across = np.array([together(t["note"][i]) < ranks for i in rows])
    if across.any():
        yield rows[across], "between nodes: the table does not say over which network", "collective"
    own = rows[~across]
    if len(own):
        whole = ranks if op == "alltoall" else 1  # of an exchange, the payload is a rank's rows
        program = _collective_program(op, int(ranks))
        yield own, Call("collective", program, t, own, {"s": t["bytes"][own] * whole / 2}), "collective"


FORMS: dict[str, tuple[tuple[str, ...], Callable[..., Found]]] = {
    "gemm": (("dtype",), _gemm),
    "attention": (("dtype", "kv_dtype"), _attention),
    "moe": (("dtype", "num_experts", "topk", "moe_ep"), _moe),
    "elementwise": (("op",), _elementwise),
    "collective": (("op", "num_gpus", "kernel"), _collective),
}
