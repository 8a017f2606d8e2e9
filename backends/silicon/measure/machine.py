"""What is timed, and what times it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import spelled

# Of a row's `framework` the part before the dash is the engine's name.
FRAMEWORK = "eager"
# Tensors that elementwise ops read and write; of rope without its table, which all heads share.
STREAMED = {"add": 3, "mlp_act": 3, "rms_norm": 2, "softmax": 2, "attn_rope": 2, "copy": 2, "read": 1}


@dataclass(frozen=True)
class Point:
    """One call to time: the file that its row goes to, and the row's own cells."""

    file: str
    cells: Mapping[str, str | int]

    @property
    def size(self) -> int:
        """Bytes an element."""
        return spelled(str(self.cells["dtype"])).bits // 8

    def __getitem__(self, name: str) -> int:
        return int(self.cells[name])

    @property
    def flops(self) -> float:
        """Of its matrix products, attention as if it were not causal."""
        if self.file == "gemm":
            return 2.0 * self["m"] * self["n"] * self["k"]
        if self.file == "elementwise":
            return 0.0
        return 4.0 * self["batch"] * self["num_heads"] * self["head_dim"] * self["q_len"] * self["context"]

    @property
    def result_bytes(self) -> int:
        """Of its result."""
        if self.file == "gemm":
            return self.size * self["m"] * self["n"]
        if self.file == "elementwise":
            return self.size * self["rows"] * self["cols"]
        return self.size * self["batch"] * self["q_len"] * self["num_heads"] * self["head_dim"]

    @property
    def bytes(self) -> int:
        """Of its operands, each once."""
        if self.file == "gemm":
            m, n, k = self["m"], self["n"], self["k"]
            return self.size * (m * k + k * n + m * n)
        if self.file == "elementwise":
            return self["bytes_moved_ideal"]
        cache = self["context"] * self["num_kv_heads"]
        return 2 * self.size * self["batch"] * self["head_dim"] * (self["q_len"] * self["num_heads"] + cache)


def product(dtype: str, m: int, n: int, k: int, turns: int) -> Point:
    """y[m,n] = x[m,k]·w[k,n], of `turns` weights one after another."""
    return Point("gemm", {"dtype": dtype, "m": m, "n": n, "k": k, "turns": turns})


def attention(dtype: str, batch: int, new: int, context: int, heads: tuple[int, int, int]) -> Point:
    """Causal attention; `heads` of queries, of keys and values, and their size."""
    sizes = dict(zip(("num_heads", "num_kv_heads", "head_dim"), heads, strict=True))
    step = {"batch": batch, "q_len": new, "context": context}
    file = "attention_decode" if new == 1 else "attention_prefill"
    return Point(file, {"dtype": dtype, "kv_dtype": dtype, **step, **sizes, "window": 0})


def stream(op: str, dtype: str, rows: int, cols: int) -> Point:
    """An elementwise op or a norm."""
    moved = STREAMED[op] * rows * cols * spelled(dtype).bits // 8
    sizes = {"rows": rows, "cols": cols, "bytes_moved_ideal": moved}
    return Point("elementwise", {"dtype": dtype, "op": op, **sizes})


# Elementwise ops that show what a memory can do, and are fitted to nothing.
PEAKS = ("copy", "read")


class Machine(Protocol):
    """What can time a point."""

    def seconds(self, point: Point) -> float | None:
        """The median of several calls, after some to warm up; None where the machine cannot do it."""
