"""Tables of latent attention on one rank: the core (naive or absorbed), and the products that are
absorbed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table, known_sources
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw.device import Device
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.tools.build import Builder

from .attention import prompts
from .gemm import WIDE, tensor
from .table import MORE, WHOSE, KernelTable, columns

TYPES, PRODUCTS = known_sources()["types"], known_sources()["products"]
HIDDEN, QUERY = 7168, 1536  # of DeepSeek-V3, the model of the rows of whole blocks
LATENT, ROTARY, HEAD = 512, 64, 128  # of DeepSeek-V2 and V3, the models of all rows
_PRODUCTS = {"mla_gen_pre": "t g u, l g u -> t g l", "mla_gen_post": "t g l, l g u -> t g u"}


@lru_cache(maxsize=64)
def core(dtype: str, kv: str, form: str, keys: str) -> Program:
    """Latent attention of `b` sequences with `t` new tokens and `g` heads over `keys`: `t`, or
    caches of `c`.
    """
    if dtype not in TYPES or (kv or dtype) not in TYPES:
        raise InputError(f"dtype {dtype!r} with {kv!r} of an attention is not known")
    q_type, kv_type = TYPES[dtype], TYPES[kv or dtype]
    b = Builder()
    head = LATENT if form == "absorbed" else HEAD
    q = b.input(f"{q_type}[b, t, g, {head}]", name="q")
    q_rope = b.input(f"{q_type}[b, t, g, {ROTARY}]", name="q_rope")
    k_rope = b.cache(f"{kv_type}[b, {keys}, {ROTARY}]", name="k_rope")
    if form == "absorbed":
        held: tuple[Value, ...] = (b.cache(f"{kv_type}[b, {keys}, {LATENT}]", name="latents"), k_rope)
    else:
        k, v = (b.input(f"{q_type}[b, {keys}, g, {HEAD}]", name=n) for n in "kv")
        held = (k, k_rope, v)
    b.output(b.latent_attention(q, q_rope, *held, mask="causal", name="o"))
    return Program(f"latent attention {dtype} {kv} {form}", {"main": b.graph()})


@lru_cache(maxsize=64)
def product(dtype: str, scope: str, timed: str) -> Program:
    """The absorbed product of `t` tokens: queries times the weight of keys, or latents times the weight of
    values.

    Each call uses the same weights.
    """
    if dtype not in PRODUCTS:
        raise InputError(f"dtype {dtype!r} of a product is not known")
    x_type, w_type = PRODUCTS["bfloat16" if timed == "widened" else dtype]
    narrow = "fp8" in x_type
    x_size = HEAD if scope == "mla_gen_pre" else LATENT
    b = Builder()
    x = b.input(f"{'bf16' if narrow else x_type}[t, g, {x_size}]", name="x")
    if narrow:
        x = b.quantize(x, to=f"{x_type}.mmk", name="narrow")
    roles = {"mla_gen_pre": ".nbk", "mla_gen_post": ".kbn"}[scope] if narrow else ""
    w = b.weight(f"{w_type}{roles}[{LATENT}, g, {HEAD}]", name="w", turns=1)
    b.output(b.linear(x, w, einsum=_PRODUCTS[scope], to="bf16" if narrow else "", name="product"))
    return Program(f"{scope} {dtype}", {"main": b.graph()})


@lru_cache(maxsize=64)
def block(products: str, kv: str, form: str) -> Program:
    """Attention without its norm; its matrix products have this dtype. A prompt is processed whole."""
    if products not in PRODUCTS or kv not in TYPES:
        raise InputError(f"a block with products in {products!r} and a cache in {kv!r} is not known")
    x_type, w_type = PRODUCTS[products]
    b = Builder()
    names = (f"w{i}" for i in count())

    def weight(type: Tensor | str) -> Value:
        return b.weight(type, name=next(names))

    def linear(x: Value, einsum: str, roles: str, *weights: tuple[object, ...]) -> Any:
        if x_type not in WIDE:
            shape = b.type(x).shape
            x = b.quantize(x, to=tensor(x_type, "mm" + "k" * (len(shape) - 2), *shape).dtype.name)
        made = (weight(tensor(w_type, roles, *shape)) for shape in weights)
        return b.linear(x, *made, einsum=einsum, to="bf16")

    x = b.input(f"bf16[b, t, {HIDDEN}]", name="x")
    down = (QUERY, LATENT, ROTARY)
    q, latents, k_rope = linear(
        x, "b t h, h q, h l, h p -> b t q, b t l, b t p", "kn", *((HIDDEN, n) for n in down)
    )
    q, latents = (b.rms_norm(y, weight(f"bf16[{n}]")) for y, n in ((q, QUERY), (latents, LATENT)))
    heads = "b t q, q g u, q g p -> b t g u, b t g p"
    q, q_rope = linear(q, heads, "knn", (QUERY, "g", HEAD), (QUERY, "g", ROTARY))
    q_rope, k_rope = b.rope(q_rope), b.rope(k_rope)
    caches = (b.cache(f"{TYPES[kv]}[b, p, {n}]", name=f"cache{n}") for n in (LATENT, ROTARY))
    held, ropes = (b.append(cache, y) for cache, y in zip(caches, (latents, k_rope), strict=True))
    if form == "absorbed":
        keys, values = (weight(f"bf16[{LATENT}, g, {HEAD}]") for _ in range(2))
        y = b.linear(q, keys, einsum="b t g u, l g u -> b t g l")
        y = b.latent_attention(y, q_rope, held, ropes, mask="causal")
        y = b.linear(y, values, einsum="b t g l, l g u -> b t g u")
    else:
        up = "b t l, l g u, l g m -> b t g u, b t g m"
        k, v = linear(latents, up, "knn", *((LATENT, "g", HEAD),) * 2)
        y = b.latent_attention(q, q_rope, k, k_rope, v, mask="causal")
    b.output(linear(y, "b t g m, g m h -> b t h", "kkn", ("g", HEAD, HIDDEN)), held, ropes)
    return Program(f"latent block {products} {kv} {form}", {"main": b.graph()})


class LatentTable(KernelTable):
    """Latent attention of uniform sequences.

    `context` includes new tokens; for products, `batch` counts tokens.
    """

    name = "mla"
    numbers = columns("batch", "q_len", "num_heads", context=Column(low=0))
    words = (*WHOSE, "dtype", "phase", "scope")
    more = ("kv_dtype", *MORE)
    key = ("dtype", "kv_dtype", "scope", "timed", "keys")
    symbols = FrozenDict(b="batch", g="num_heads", c="context")
    groups = ("num_heads", "context")
    finer = ("batch",)
    variants = True
    fits = ("mla_", "bmm_")

    def program(self, *key: Any) -> Program:
        dtype, kv, scope, timed, keys = key
        if scope in _PRODUCTS:
            return product(dtype, scope, timed)
        if scope.startswith("module:DeepseekV3ForCausalLM:gemm="):
            return block(scope.partition("=")[2], kv or dtype, timed or "naive")
        if scope != "attn_core":
            raise InputError(f"scope {scope!r} is not known, only cores, products and DeepSeek-V3's blocks")
        return core(dtype, kv, timed or "naive", keys)

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """Prompts without cached tokens attend only to their own keys."""
        return Table({**rows.columns, "keys": prompts(rows)})

    def sizes(self, rows: Table) -> dict[str, Array]:
        new = np.where(rows["phase"] == "bmm", rows["batch"], rows["q_len"])
        return {**super().sizes(rows), "t": new, "p": rows["context"] - new}

    def row_kinds(self, rows: Table) -> Array:
        """The phase, with a prefix for whole blocks."""
        block = np.array([str(scope).startswith("module") for scope in rows["scope"]], dtype=bool)
        return np.where(block, "mla_block_", "mla_").astype(object) + rows["phase"]
