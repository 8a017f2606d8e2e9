"""Which measured rows each family of kernels is fitted to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llmir.backends.cost.kernels import (
    KERNELS,
    AttentionShape,
    CollectiveShape,
    GemmShape,
    Kernel,
    MoeShape,
    Shape,
    StreamShape,
    SumShape,
)
from llmir.errors import InputError
from llmir.hw import Device
from llmir.routing import CHANCE, Arrived, Even, Groups, PowerLaw

from .rows import LATENCY, MOST, Array, Column, Table

# Elementwise ops that show what a memory can do, and are fitted to nothing.
PEAKS = ("copy", "read")
NCCL = ("NCCL", "nccl")
CUSTOM = ("vLLM_custom", "SGLang_CustomAllReduce")  # all_reduce kernels that engines bring along
TURNS = 5  # weights that the benchmarks of the tables use in turn, so that the L2 should hold none


@dataclass(frozen=True)
class Family:
    """A name in `calibration:`, the kernel it calibrates, and the rows that it is fitted to.

    `where` gives the words that a row of it has; rows alike in the columns `group` are left out together.
    Where `kernel` is among the `words`, an engine's kernels are told apart by it. A fit has this `loss` and
    so many `starts`.
    """

    name: str
    kind: str
    file: str
    columns: Mapping[str, Column]
    group: Sequence[str]
    shape: Callable[[Table], Shape]
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ("gpu", "framework", "source")
    decades: bool = False  # groups are of sizes alike in their decade
    keeps: Callable[[Table], Array] | None = None  # of these rows, those that it is fitted to
    loss: str = "soft_l1"
    starts: int = 3

    def groups(self, table: Table) -> list[tuple[object, ...]]:
        """What is left out together, for each row."""
        columns = [np.floor(np.log10(table[c])) if self.decades else table[c] for c in self.group]
        return list(zip(*columns, strict=True))

    def holds(self, table: Table) -> bool:
        """Whether all rows are of this family."""
        return all(
            w in table.columns and np.isin(table[w].astype(str), x).all() for w, x in self.where.items()
        )

    @property
    def kernel(self) -> type[Kernel]:
        """What is calibrated."""
        return KERNELS[self.name]

    def on(self, device: Device) -> Family:
        """The same rows on this device: a CPU has kernels of its own."""
        own = f"cpu_{self.name}"
        return replace(self, name=own) if device.cores and own in KERNELS else self


def _gemm(name: str, dtypes: Sequence[str], dtype: str, x: float, w: float) -> Family:
    def shape(t: Table) -> GemmShape:
        bits = {"x_bits": x, "w_bits": w, "y_bits": max(x, 16)}
        return GemmShape(t["m"], t["n"], t["k"], **bits, dtype=dtype, turns=t["turns"])

    columns = {**{size: Column() for size in "mnk"}, "turns": Column(empty=TURNS), **LATENCY}
    return Family(name, "gemm", "gemm.csv", columns, ("n", "k"), shape, {"dtype": dtypes})


def _stream(name: str, ops: Sequence[str], group: str) -> Family:
    def shape(t: Table) -> StreamShape:
        return StreamShape(t["rows"], t["bytes_moved_ideal"])

    columns = {"rows": Column(), "cols": Column(), "bytes_moved_ideal": Column(high=1e13)} | LATENCY
    return Family(name, "elementwise", "elementwise.csv", columns, (group,), shape, {"op": ops})


def _collective(name: str, op: str, kernels: Sequence[str]) -> Family:
    made = SumShape if op == "all_reduce" else CollectiveShape

    def shape(t: Table) -> CollectiveShape:
        return made(t["bytes"], t["num_gpus"], adds=t["dtype"] != "int8")

    def inside(t: Table) -> Array:
        return np.asarray(t["num_gpus"] <= t["note"])

    columns = {"bytes": Column(high=1e12), "num_gpus": Column(), "note": TOGETHER} | LATENCY
    words = ("gpu", "framework", "source", "dtype")
    where = {"op": (op,), "kernel": kernels}
    return Family(
        name, "collective", "collective.csv", columns, ("bytes",), shape, where, words, True, inside
    )


def together(note: str) -> float:
    """How many ranks of a collective share a node, as Vidur's tables note it; all if nothing is said.

    >>> together("devices_per_node=4"), together("nccl-tests") == MOST
    (4.0, True)
    """
    found = re.search(r"devices_per_node=(\d+)", note)
    return float(found[1]) if found else MOST


TOGETHER = Column(empty=MOST, reads=together)


HEADS = ("num_heads", "num_kv_heads", "head_dim")
EXPERTS = ("hidden", "inter", "topk", "num_experts")
NAMED = ("gpu", "framework", "kernel", "source")


def _attention(name: str, q: str, kv: str) -> Family:
    def shape(t: Table) -> AttentionShape:
        window = np.where(t["window"] > 0, t["window"], np.inf)
        cached = np.maximum(t["context"] - t["q_len"], 0)
        group = t["num_heads"] / t["num_kv_heads"]
        sizes = t["batch"], t["q_len"], cached, t["num_kv_heads"], group, t["head_dim"], window
        return AttentionShape(*sizes, **bits, dtype=COMPUTES[q])

    bits = {"q_bits": BITS[q], "kv_bits": BITS[kv], "out_bits": max(BITS[q], 16)}
    sizes = {c: Column() for c in ("batch", "q_len", "context", *HEADS)}
    columns = {**sizes, "window": Column(low=0, empty=0), **LATENCY}
    kind = name.removesuffix("_kv8").removesuffix("_fp8").removesuffix("_fp32")
    unsaid = ("",) if kv == q else ()
    words = {"dtype": ALIKE.get(q, (q,)), "kv_dtype": (*ALIKE.get(kv, (kv,)), *unsaid)}
    return Family(name, kind, f"{kind}.csv", columns, HEADS, shape, words, NAMED)


def exponent(distribution: str) -> float:
    """Of the power law that loads of experts follow; 0 if they are balanced. ValueError for other words.

    >>> exponent("balanced"), exponent("power_law_1.2")
    (0.0, 1.2)
    """
    if distribution == "balanced":
        return 0.0
    law, _, value = distribution.rpartition("_")
    if law != "power_law":
        raise ValueError(distribution)
    return float(value)


LAW = Column(0, 10, whole=False, reads=exponent, kind="balanced or power_law_ and its exponent")


# What rows of AIConfigurator's (its word as a source) do not say of themselves, and its collectors' code
# (ai-dynamo/aiconfigurator, collector/) and times do.
COLLECTED = "aic"
# SGLang 0.5.10 got only tokens that a rank has a chosen expert of, with all of their copies to multiply.
ARRIVED = ("sglang-0.5.10",)
# These had the router of DeepSeek-V3's experts, which keeps to half of its groups, and of even loads takes
# the first half. Of uneven ones the busiest rank is as if there were no groups.
LIMITED = ("vllm-0.24.0", "sglang-0.5.14", "moe_torch_flow_min_latency")
DEEPSEEK_V3 = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256}

# ROCm's aiter draws the scores of its router at random, and the table's word for it is balanced: by `even`
# 9 of 308 of its rows were faster than the memory, by chance none.
RANDOM = "aiter"


def _says(t: Table, known: Sequence[str]) -> Array:
    """Whether a row of those collected is of one of these frameworks or kernels."""
    words = [t[w].astype(str) for w in ("framework", "kernel")]
    return np.asarray(np.isin(words, known).any(axis=0) & (t["source"] == COLLECTED))


def laws(t: Table) -> Array:
    """The law of routing under which each row of experts was measured."""
    arrived = _says(t, ARRIVED) & (t["moe_ep"] > 1)
    half = _says(t, LIMITED) & ((t["distribution"] == 0) | (t["moe_ep"] == 1))
    for name, size in DEEPSEEK_V3.items():
        half = half & (t[name] == size)
    found = np.empty(len(half), dtype=object)
    for i, steep in enumerate(t["distribution"]):
        dealt = CHANCE if t["source"][i] == RANDOM else Groups() if half[i] else Even()
        law = PowerLaw(float(steep)) if steep and not half[i] else dealt
        found[i] = Arrived(int(t["moe_ep"][i]), law) if arrived[i] else law
    return found


def _routed(t: Table) -> tuple[Array, Array, Array]:
    """Tokens that a rank is given, rows of them that it multiplies, and experts that these touch."""
    tokens, rows, touched = (np.array(t["num_tokens"], dtype=float) for _ in range(3))
    kinds = list(zip(laws(t), t["topk"], t["num_experts"], t["moe_ep"], strict=True))
    for kind in dict.fromkeys(kinds):
        law, (top_k, experts, ranks) = kind[0], map(int, kind[1:])
        at = np.array([k == kind for k in kinds])
        given, held = tokens[at], experts // ranks
        if isinstance(law, Arrived):
            given = np.minimum(given, law.law.busiest(ranks, top_k, given, experts))
            experts, ranks = held, 1
        tokens[at], rows[at] = given, law.busiest(ranks, top_k, given, experts)
        touched[at] = law.distinct(held, top_k, given, experts)
    return tokens, rows, touched


def _divides(t: Table) -> Array:
    """Whether ranks divide the experts of a row, of which each token chooses some."""
    return np.asarray((t["num_experts"] % t["moe_ep"] == 0) & (t["topk"] <= t["num_experts"]))


def _moe(name: str, dtype: str, computes: str, x: float, w: float) -> Family:
    def shape(t: Table) -> MoeShape:
        tokens, rows, experts = _routed(t)
        inter = t["inter"] / t["moe_tp"]
        return MoeShape(tokens, t["topk"], rows, experts, t["hidden"], inter, x, w, computes)

    sizes = {c: Column() for c in ("num_tokens", "moe_tp", "moe_ep", *EXPERTS)}
    columns = {**sizes, "distribution": LAW, **LATENCY}
    words = {"op": ("moe_layer", ""), "dtype": (dtype,)}
    # Autotuning leaves some shapes with a kernel that takes up to seven times as long as their neighbours'.
    return Family(name, "moe", "moe.csv", columns, EXPERTS, shape, words, NAMED, False, _divides, "cauchy", 5)


ALIKE = {"bfloat16": ("bfloat16", "float16")}  # in time
BITS = {"float32": 32, "bfloat16": 16, "fp8": 8}
COMPUTES = {"float32": "fp32", "bfloat16": "bf16", "fp8": "fp8"}
# Bits of an element with its share of scales: one in fp32 for each 128 (fp8_block), one in 8 bits for each 16
# (nvfp4) or 32 (mxfp4, mxfp8), one in 16 bits for each 128 of int4.
_FAMILIES = (
    _gemm("gemm_bf16", ("bfloat16", "float16"), "bf16", 16, 16),
    _gemm("gemm_fp32", ("float32",), "fp32", 32, 32),
    _gemm("gemm_fp8", ("fp8",), "fp8", 8, 8),
    _gemm("gemm_fp8_block", ("fp8_block",), "fp8", 8.25, 8),
    _gemm("gemm_nvfp4", ("nvfp4",), "nvfp4", 4.5, 4.5),
    _gemm("gemm_int8", ("sq",), "int8", 8, 8),
    _gemm("gemm_int8_weights", ("int8_wo",), "bf16", 16, 8),
    _gemm("gemm_int4_weights", ("int4_wo",), "bf16", 16, 4.125),
    _stream("rms_norm", ("rms_norm",), "rows"),
    _stream("layer_norm", ("input_layernorm", "layernorm"), "rows"),
    _stream("softmax", ("softmax",), "rows"),
    _stream("add", ("add",), "rows"),
    _stream("activation", ("mlp_act", "gelu"), "cols"),
    _stream("rope", ("attn_rope",), "cols"),
    _stream("quantize", ("scale_matrix",), "cols"),
    _stream("scale", ("computescale",), "cols"),
    _collective("all_reduce", "all_reduce", (*NCCL, *(f"{engine}_graph" for engine in CUSTOM), "TRTLLM")),
    _collective("all_reduce_eager", "all_reduce", tuple(f"{engine}_eager" for engine in CUSTOM)),
    _collective("all_gather", "all_gather", ("NCCL",)),
    _collective("reduce_scatter", "reduce_scatter", ("NCCL",)),
    _collective("all_to_all", "alltoall", ("NCCL",)),
    _attention("attention_prefill", "bfloat16", "bfloat16"),
    _attention("attention_prefill_fp32", "float32", "float32"),
    _attention("attention_prefill_kv8", "bfloat16", "fp8"),
    _attention("attention_prefill_fp8", "fp8", "fp8"),
    _attention("attention_decode", "bfloat16", "bfloat16"),
    _attention("attention_decode_fp32", "float32", "float32"),
    _attention("attention_decode_kv8", "bfloat16", "fp8"),
    _moe("moe_bf16", "bfloat16", "bf16", 16, 16),
    _moe("moe_fp8", "fp8", "fp8", 8, 8),
    _moe("moe_fp8_block", "fp8_block", "fp8", 8.25, 8),
    _moe("moe_nvfp4", "nvfp4", "nvfp4", 4.5, 4.5),
    _moe("moe_mxfp4", "w4a8_mxfp4_mxfp8", "fp8", 8.25, 4.25),
    _moe("moe_mxfp4_weights", "w4a16_mxfp4", "bf16", 16, 4.25),
    _moe("moe_int4_weights", "int4_wo", "bf16", 16, 4.125),
)
FAMILIES: dict[str, Family] = {f.name: f for f in _FAMILIES}


def families(name: str | None = None) -> list[Family]:
    """The family of that name, or all of a kind, or all; InputError for a name that is neither."""
    found = [f for f in _FAMILIES if name in (None, f.name, f.kind)]
    if not found:
        known = [*dict.fromkeys(f.kind for f in _FAMILIES), *FAMILIES]
        raise InputError(f"unknown family {name!r}, known are {', '.join(known)}")
    return found
