"""Tables of collectives within one node or between the nodes of a known cluster, and of token dispatch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.sizes.polynomial import Dim
from llmir.ir.sizes.ragged import sent
from llmir.ir.sizes.routing_laws import CHANCE
from llmir.ir.tools.build import Builder

from .table import MORE, WHOSE, KernelTable, columns

SEND = "send_recv"
SENT_TYPES = {"fp8": "fp8_e4m3_b1x128.mmk"}  # one scale per token and 128 values, as in DeepEP
# For each op name in a table: the opcode, and its sharded input with one or two bytes per element.
OPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "all_reduce": ("all_reduce", "{type}[s]+{plus}", {}),
    "all_gather": ("all_gather", "{type}[s@{at}]", {"dim": 0}),
    "reduce_scatter": ("reduce_scatter", "{type}[s]+{plus}", {"dim": 0}),
    "alltoall": ("all_to_all", "{type}[s@{at}, 1]", {"to": "experts"}),
    SEND: ("send", "{type}[s]", {"to": 1}),
}


ROUTED, LENGTHS = ("topk", "experts", "sms"), ("tokens", "hidden")
# For each op name in a table: whether tokens return, and the mode of DeepEP's kernels.
DISPATCH = {
    "deepep_normal_dispatch": (False, "normal"),
    "deepep_normal_combine": (True, "normal"),
    "deepep_ll_dispatch": (False, "low_latency"),
    "deepep_ll_combine": (True, "low_latency"),
}


@lru_cache(maxsize=1 << 12)
def noted(note: str) -> Mapping[str, float]:
    """The numbers in a note by name, in the notation of the tables of Vidur and AIConfigurator.

    >>> noted("devices_per_node=4"), noted("nccl-tests"), noted("topk=8;experts=128")
    ({'devices_per_node': 4.0}, {}, {'topk': 8.0, 'experts': 128.0})
    """
    return {name: float(n) for name, n in re.findall(r"(\w+)=(\d+(?:\.\d+)?)", note) if float(n) > 0}


class CollectiveTable(KernelTable):
    """Collectives of `bytes` bytes, counted as in nccl-tests, among `num_gpus` ranks."""

    name = "collective"
    numbers = columns("num_gpus", bytes=Column(high=1e13))
    words = (*WHOSE, "dtype", "op")
    more = (*MORE, "note")
    key = ("op", "num_gpus", "dtype", "nodes", "slots", *ROUTED)
    variants = True

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The number of nodes, and the devices per node (`slots`, 0 without a known network).

        For dispatch and combine, the notes also give tokens per rank, hidden size, top-k, experts and SMs.
        """
        slots = device.node.devices if device.node and device.node.network else 0
        notes = [noted(note) for note in rows["note"]]
        ranks = rows["num_gpus"]
        each = [
            note.get("devices_per_node", n / note.get("nodes", 1))
            for note, n in zip(notes, ranks, strict=True)
        ]
        said = {name: np.array([note.get(name, 0.0) for note in notes]) for name in (*ROUTED, *LENGTHS)}
        nodes = ranks / np.minimum(each, ranks)
        return Table({**rows.columns, **said, "nodes": nodes, "slots": np.full(len(rows), slots)})

    def program(self, *key: Any) -> Program:
        op, ranks, dtype, nodes, slots, *routed = key
        if op in DISPATCH:
            top_k, experts, sms = map(int, routed)
            return dispatch(op, int(ranks), dtype, nodes, int(slots), top_k, experts, sms)
        return collective(op, int(ranks), dtype == "int8", nodes, int(slots))

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Elements. The payload of an exchange is the rows of one rank; for a dispatch, it is the tokens of
        all ranks.
        """
        whole = np.where(rows["op"] == "alltoall", rows["num_gpus"], 1)
        elements = rows["bytes"] * whole / np.where(rows["dtype"] == "int8", 1, 2)
        return {"s": elements, "t": rows["tokens"] * rows["num_gpus"], "h": rows["hidden"]}

    def invalid_rows(self, rows: Table) -> dict[str, Array]:
        return {
            "between nodes: the table does not say over which network": (rows["nodes"] > 1)
            & (rows["slots"] == 0),
            "a collective takes two ranks at least": rows["num_gpus"] < 2,
        }

    def held_out_groups(self, rows: Table) -> list[tuple[Any, ...]]:
        """Rows are grouped by order of magnitude of their bytes; rows of a dispatch, by the shape of the
        layer.
        """
        notes = [noted(note) for note in rows["note"]]
        shapes = [tuple(note.get(name, 0.0) for name in ("hidden", "topk", "experts")) for note in notes]
        decades = np.floor(np.log10(rows["bytes"]))
        return [shape if any(shape) else (decade,) for shape, decade in zip(shapes, decades, strict=True)]


@lru_cache(maxsize=64)
def collective(op: str, ranks: int, narrow: bool, nodes: float = 1, slots: int = 0) -> Program:
    """The program of an op among `ranks` ranks; an element has one byte (`narrow`) or two.

    If the ranks are on several `nodes` with `slots` devices each, the other devices of these nodes are idle.
    """
    if op not in OPS:
        raise InputError(f"no op is a {op!r}")
    opcode, type, options = OPS[op]
    mesh = laid(ranks, nodes, slots)
    if op == SEND and ranks != 2:
        raise InputError(f"a send is between two ranks, not {ranks}")
    mesh = Mesh(mesh.axes[1:2]) if op == SEND else mesh  # each stage has a mesh
    atoms = mesh.atoms("tp")
    b = Builder()
    one = "int8" if narrow else "bf16"
    x = b.input(parse_tensor(type.format(type=one, plus="+".join(atoms), at=".".join(atoms))), name="x")
    over = {"over": atoms} if atoms else {}
    b.output(getattr(b, opcode)(x, **over, name="y", **options))
    return Program(f"{op} {ranks}", {"main": b.graph()}, mesh=mesh)


def laid(ranks: int, nodes: float, slots: int) -> Mesh:
    """The mesh of `ranks` ranks over `nodes` nodes with `slots` devices each."""
    if ranks % nodes or slots % (ranks / nodes):
        raise InputError(f"{ranks} ranks are not distributed evenly over {nodes:g} nodes of {slots}")
    each = int(ranks / nodes)
    return Mesh((("tp0", int(nodes)), ("idle", slots // each if nodes > 1 else 1), ("tp1", each)))


@lru_cache(maxsize=256)
def dispatch(
    op: str, ranks: int, dtype: str, nodes: float, slots: int, top_k: int, experts: int, sms: int
) -> Program:
    """Dispatch or combine of `t` tokens of all ranks with `h` values, to uniformly random experts."""
    back, mode = DISPATCH[op]
    mesh = laid(ranks, nodes, slots)
    at = ".".join(mesh.atoms("tp"))
    b = Builder()
    how: dict[str, Any] = {"over": mesh.atoms("tp"), "mode": mode, "sms": sms}
    weights = b.input(f"fp32[t@{at}, 1, {top_k}]", name="weights")
    if back:
        there = sent(Dim.symbol("t"), top_k, experts, CHANCE)
        sums = b.input(f"{SENT_TYPES.get(dtype, dtype)}[{there}@{at}, 1, h]", name="sums")
        b.output(b.return_tokens(sums, weights, name="y", **how))
    else:
        chosen = b.input(f"int64[t@{at}, 1, {top_k}]", name="chosen")
        x = b.input(f"{SENT_TYPES.get(dtype, dtype)}[t@{at}, 1, h]", name="x")
        b.output(*b.send_tokens(x, chosen, weights, top_k=top_k, experts=experts, name="y", **how))
    return Program(f"{op} {ranks}", {"main": b.graph()}, mesh=mesh)
