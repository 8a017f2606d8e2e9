"""Tables of linear attention on one rank: scans of states, and short convolutions before them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.ops.delta import GatedDelta
from llmir.ir.ops.scan import Scan, SsdScan
from llmir.ir.tools.build import Builder

from .table import MORE, WHOSE, KernelTable, columns

CONVS = {"conv": 1, "conv_qkv": 3, "conv_k": 1}  # kernels per call
HEADS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
SSD = ("nheads", "head_dim", "d_state", "n_groups")
# The scan of each family with its operands; the last operand is the state.
KEYS, HEAD, VALUES = "bf16[b, t, g, d]", "bf16[b, t, g, r]", "bf16[b, t, g, r, e]"
SCANS: dict[str, tuple[type[Scan], tuple[str, ...]]] = {
    "gdn": (GatedDelta, (KEYS, KEYS, VALUES, "fp32[b, t, g, r]", HEAD, "fp32[b, g, r, d, e]")),
    "kda": (GatedDelta, (KEYS, KEYS, VALUES, "fp32[b, t, g, r, d]", HEAD, "fp32[b, g, r, d, e]")),
    "mamba2": (SsdScan, (VALUES, HEAD, KEYS, KEYS, *("fp32[g, r]",) * 3, "fp32[b, g, r, e, d]")),
}


@lru_cache(maxsize=64)
def linear_attention(family: str, timed: str, taps: float) -> Program:
    """A scan or convolution of `t` tokens of `b` sequences.

    Scans have `g`·`r` heads with keys of size `d` and values of size `e`; convolutions have `f` channels.
    """
    b = Builder()
    if timed in CONVS and taps >= 2:
        for i in range(CONVS[timed]):
            x, w = b.input("bf16[b, t, f]", name=f"x{i}"), b.weight(f"bf16[f, {int(taps)}]", name=f"w{i}")
            kept = b.cache(f"bf16[b, {int(taps) - 1}, f]", name=f"s{i}")
            b.output(b.causal_conv_silu(x, w, kept)[0])
    elif timed in ("chunks", "update") and family in SCANS:
        kind, (*given, state) = SCANS[family]
        operands = [b.input(type, name=f"x{i}") for i, type in enumerate(given)]
        scan = kind(chunk=kind.usual if timed == "chunks" else 1)
        b.output(b.apply(scan, *operands, b.cache(state, name="state"))[0])
    else:
        raise InputError(f"no model of the scan {timed!r} of {family!r} with {taps:g} taps is known")
    return Program(f"{family} {timed}", {"main": b.graph()})


class LinearAttentionTable(KernelTable):
    """Linear attention of `seq_len` tokens of `batch` sequences.

    `phase` is context (a prompt), generation (a step) or verify (draft tokens). The heads are those of delta
    nets. Mamba 2 has separate columns for heads, head size, state and groups.
    """

    name = "linear_attention"
    numbers = columns("batch", "seq_len", **dict.fromkeys((*HEADS, *SSD, "d_conv"), Column(low=0, empty=0)))
    words = (*WHOSE, "family", "phase")
    more = MORE
    key = ("family", "timed", "d_conv", "single")
    groups = ("num_k_heads", "num_v_heads", "nheads", "d_state")
    finer = ("batch",)

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The timed kernel, from the source, the kernel name or the phase.

        Rows with a single token are a separate group, because another kernel processes them.
        """
        convolves = np.array(["conv1d" in kernel for kernel in rows["kernel"]], dtype=bool)
        usual = np.where(convolves, "conv", np.where(rows["phase"] == "context", "chunks", "update"))
        timed = np.where(rows["timed"] == "", usual, rows["timed"])
        return Table({**rows.columns, "timed": timed, "single": rows["seq_len"] == 1})

    def program(self, *key: Any) -> Program:
        """One op, or one each for q, k and v."""
        family, timed, taps, _ = key
        return linear_attention(family, timed, taps)

    def sizes(self, rows: Table) -> dict[str, Array]:
        """The sizes. A step that verifies drafts stores a state after each token, so each token counts as a
        sequence for a convolution.
        """
        ssd, timed = rows["family"] == "mamba2", rows["timed"]
        keys, values = (rows[f"num_{x}_heads"] * rows[f"head_{x}_dim"] for x in "kv")
        wide = rows["nheads"] * rows["head_dim"] + 2 * rows["n_groups"] * rows["d_state"]
        channels = np.where(ssd, wide, 2 * keys + values)
        channels = np.where(timed == "conv_k", keys, np.where(timed == "conv_qkv", channels / 3, channels))
        single = (rows["phase"] == "verify") & np.isin(timed, tuple(CONVS))
        groups = np.where(ssd, rows["n_groups"], rows["num_k_heads"])
        return {
            "b": rows["batch"] * np.where(single, rows["seq_len"], 1),
            "t": np.where(single, 1, rows["seq_len"]),
            "g": groups,
            "r": np.where(ssd, rows["nheads"], rows["num_v_heads"]) / groups,
            "d": np.where(ssd, rows["d_state"], rows["head_k_dim"]),
            "e": np.where(ssd, rows["head_dim"], rows["head_v_dim"]),
            "f": channels,
        }

    def invalid_rows(self, rows: Table) -> dict[str, Array]:
        heads = np.where(rows["family"] == "mamba2", rows["nheads"], rows["num_v_heads"])
        groups = np.where(rows["family"] == "mamba2", rows["n_groups"], rows["num_k_heads"])
        with np.errstate(invalid="ignore"):
            return {"heads are not a multiple of groups, or key heads": ~(heads % groups == 0) | (heads == 0)}

    def row_kinds(self, rows: Table) -> Array:
        """The family and the phase; convolutions are separate."""
        convolves = np.char.startswith(rows["timed"].astype(str), "conv")
        return np.where(convolves, "conv_", rows["family"] + "_").astype(object) + rows["phase"]
