"""Tables of matrix products y[m,n] = x[m,k]·w[k,n], alone or after the quantization of x."""

from __future__ import annotations

from functools import lru_cache
from math import inf, nan
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Column, Table, known_sources
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.tools.build import Builder

from .table import MORE, WHOSE, KernelTable, columns

PRODUCTS = known_sources()["products"]
WIDE = ("bf16", "fp16", "fp32")
TIMED = ("product", "quantize+product", "static+product")


def tensor(scheme: str, roles: str, *shape: object) -> Tensor:
    """A tensor type whose scales, if any, follow the roles of its dimensions."""
    plain = parse_tensor(f"{scheme}[{', '.join(map(str, shape))}]")
    return plain.to(plain.dtype.laid(roles))


def wide_type(dtype: str) -> str:
    """The dtype of results, and of x before quantization."""
    return PRODUCTS[dtype][0] if PRODUCTS[dtype][0] in WIDE else "bf16"


class GemmTable(KernelTable):
    """Matrix products. A quantized dtype of the table applies to x and w."""

    name = "gemm"
    numbers = columns("m", "n", "k", turns=Column(low=0, empty=nan))
    words = (*WHOSE, "dtype")
    more = MORE
    key = ("dtype", "timed", "turns")
    symbols = FrozenDict(m="m", n="n", k="k")
    groups = ("n", "k")

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The timed ops and the number of weights used in turn, from the rows and their source."""
        narrow = [PRODUCTS.get(d, WIDE)[0] not in WIDE for d in rows["dtype"]]
        usual = np.where(narrow, "quantize+product", "product")
        timed = np.where(rows["timed"] == "", usual, rows["timed"])
        turns = np.nan_to_num(rows["turns"])
        bits = np.array([_weight_bits(d) for d in rows["dtype"]])
        filling = np.ceil((device.l2_bytes or inf) * 8 / (rows["n"] * rows["k"] * bits))
        turns = np.where(rows["fills"] == "L2", np.minimum(turns, filling), turns)
        return Table({**rows.columns, "timed": timed, "turns": turns})

    @staticmethod
    @lru_cache(maxsize=1024)
    def program(*key: Any, m: object = "m", n: object = "n", k: object = "k") -> Program:
        """The product, with weights that are used in rotation."""
        dtype, timed, turns = key
        if dtype not in PRODUCTS:
            raise InputError(f"dtype {dtype!r} of a gemm is not known")
        if timed not in TIMED:
            raise InputError(f"timed {timed!r} of a gemm is not known; known are {', '.join(TIMED)}")
        x_type, w_type = PRODUCTS[dtype]
        to = wide_type(dtype)
        b = Builder()
        narrow = tensor(x_type, "mk", m, k)
        if timed == "product":
            x = b.input(narrow, name="x")
        else:
            x = b.input(f"{to}[{m}, {k}]", name="x")
            x = b.quantize(x, to=narrow.dtype.name, static=timed.startswith("static"), name="narrow")
        weight = tensor(w_type, "kn", k, n)
        w = b.weight(weight, name="w", turns=int(turns))
        b.output(b.linear(x, w, einsum="m k, k n -> m n", to=to, name="y"))
        return Program(f"gemm {dtype}", {"main": b.graph()})


def _weight_bits(dtype: str) -> float:
    return tensor(PRODUCTS[dtype][1], "kn", 1, 1).dtype.bits if dtype in PRODUCTS else 16
