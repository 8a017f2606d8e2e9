"""What ranks exchange, in one node or in several of a known cluster."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import MOST, Array, Column, Table
from llmir.build import Builder
from llmir.errors import InputError
from llmir.graph import Program
from llmir.hw import Device
from llmir.mesh import Mesh
from llmir.tensor import parse_tensor

from .table import MORE, WHOSE, Kernels, columns

SEND = "send_recv"
# A table's word -> the op, and its input as it lies, of one byte or two an element.
OPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "all_reduce": ("all_reduce", "{type}[s]+{plus}", {}),
    "all_gather": ("all_gather", "{type}[s@{at}]", {"dim": 0}),
    "reduce_scatter": ("reduce_scatter", "{type}[s]+{plus}", {"dim": 0}),
    "alltoall": ("all_to_all", "{type}[s@{at}, 1]", {"to": "experts"}),
    SEND: ("send", "{type}[s]", {"to": 1}),
}


def together(note: str) -> float:
    """How many ranks of a collective share a node, as Vidur's tables note it; all if nothing is said.

    >>> together("devices_per_node=4"), together("nccl-tests") == MOST
    (4.0, True)
    """
    found = re.search(r"devices_per_node=(\d+)", note)
    return float(found[1]) if found else MOST


class Collective(Kernels):
    """`bytes` as nccl-tests count them, among `num_gpus`."""

    name = "collective"
    numbers = columns("num_gpus", bytes=Column(high=1e13), note=Column(empty=MOST, reads=together))
    words = (*WHOSE, "dtype", "op")
    more = MORE
    key = ("op", "num_gpus", "dtype", "nodes", "slots")
    variants = True

    def completed(self, rows: Table, device: Device) -> Table:
        """Over how many nodes the ranks lie, and how many devices each has, 0 where nothing joins them."""
        slots = device.node.devices if device.node and device.node.network else 0
        nodes = rows["num_gpus"] / np.minimum(rows["note"], rows["num_gpus"])
        return Table({**rows.columns, "nodes": nodes, "slots": np.full(len(rows), slots)})

    def program(self, *key: Any) -> Program:
        """One op."""
        op, ranks, dtype, nodes, slots = key
        return collective(op, int(ranks), dtype == "int8", nodes, int(slots))

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Elements; of an exchange, the payload is a rank's rows."""
        whole = np.where(rows["op"] == "alltoall", rows["num_gpus"], 1)
        return {"s": rows["bytes"] * whole / np.where(rows["dtype"] == "int8", 1, 2)}

    def wrong(self, rows: Table) -> dict[str, Array]:
        """What is between nodes, over whatever network."""
        return {
            "between nodes: the table does not say over which network": (rows["nodes"] > 1)
            & (rows["slots"] == 0),
            "a collective takes two ranks at least": rows["num_gpus"] < 2,
        }

    def left_out_together(self, rows: Table) -> list[tuple[Any, ...]]:
        """Sizes of a decade."""
        return list(zip(np.floor(np.log10(rows["bytes"]))))


@lru_cache(maxsize=64)
def collective(op: str, ranks: int, narrow: bool, nodes: float = 1, slots: int = 0) -> Program:
    """The op among so many ranks, of elements of one byte or of two.

    Those of several `nodes` of so many `slots` leave the rest of each idle.
    """
    if op not in OPS:
        raise InputError(f"no op is a {op!r}")
    opcode, type, options = OPS[op]
    if ranks % nodes or slots % (ranks / nodes):
        raise InputError(f"{ranks} ranks do not lie alike over {nodes:g} nodes of {slots}")
    each = int(ranks / nodes)
    if op == SEND and ranks != 2:
        raise InputError(f"a send is between two ranks, not {ranks}")
    idle = slots // each if nodes > 1 else 1
    axes = ("tp0", int(nodes)), ("idle", idle), ("tp1", each)
    mesh = Mesh(axes[1:2] if op == SEND else axes)  # each stage has a mesh
    atoms = mesh.atoms("tp")
    b = Builder()
    one = "int8" if narrow else "bf16"
    x = b.input(parse_tensor(type.format(type=one, plus="+".join(atoms), at=".".join(atoms))), name="x")
    over = {"over": atoms} if atoms else {}
    b.output(getattr(b, opcode)(x, **over, name="y", **options))
    return Program(f"{op} {ranks}", {"main": b.graph()}, mesh=mesh)
