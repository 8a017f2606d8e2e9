"""What ranks of one node exchange."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import MOST, Array, Column, Table
from llmir.build import Builder
from llmir.errors import InputError
from llmir.graph import Program
from llmir.mesh import Mesh, mesh_of
from llmir.tensor import parse_tensor

from .table import MORE, WHOSE, Kernels, columns

# A table's word -> the op, and its input as it lies, of one byte or two an element.
OPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "all_reduce": ("all_reduce", "{type}[s]+{plus}", {}),
    "all_gather": ("all_gather", "{type}[s@{at}]", {"dim": 0}),
    "reduce_scatter": ("reduce_scatter", "{type}[s]+{plus}", {"dim": 0}),
    "alltoall": ("all_to_all", "{type}[s@{at}, 1]", {"to": "experts"}),
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
    key = ("op", "num_gpus", "dtype")
    variants = True

    def program(self, *key: Any) -> Program:
        """One op."""
        op, ranks, dtype = key
        return collective(op, int(ranks), dtype == "int8")

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Elements; of an exchange, the payload is a rank's rows."""
        whole = np.where(rows["op"] == "alltoall", rows["num_gpus"], 1)
        return {"s": rows["bytes"] * whole / np.where(rows["dtype"] == "int8", 1, 2)}

    def wrong(self, rows: Table) -> dict[str, Array]:
        """What is between nodes, over whatever network."""
        return {
            "between nodes: the table does not say over which network": rows["note"] < rows["num_gpus"],
            "a collective takes two ranks at least": rows["num_gpus"] < 2,
        }

    def left_out_together(self, rows: Table) -> list[tuple[Any, ...]]:
        """Sizes of a decade."""
        return list(zip(np.floor(np.log10(rows["bytes"]))))


@lru_cache(maxsize=64)
def collective(op: str, ranks: int, narrow: bool, nodes: int = 1, slots: int = 0) -> Program:
    """The op among so many ranks, of elements of one byte or of two.

    Those of several `nodes` of so many `slots` leave the rest of each idle.
    """
    if op not in OPS:
        raise InputError(f"no op is a {op!r}")
    mesh, each = mesh_of(tp=ranks), ranks // nodes
    if nodes > 1:
        if ranks % nodes or slots % each:
            raise InputError(f"{ranks} ranks do not lie alike over {nodes} nodes of {slots}")
        mesh = Mesh((("tp0", nodes), ("idle", slots // each), ("tp1", each)))
    atoms = mesh.atoms("tp")
    opcode, type, options = OPS[op]
    b = Builder()
    one = "int8" if narrow else "bf16"
    x = b.input(parse_tensor(type.format(type=one, plus="+".join(atoms), at=".".join(atoms))), name="x")
    b.output(getattr(b, opcode)(x, over=atoms, name="y", **options))
    return Program(f"{op} {ranks}", {"main": b.graph()}, mesh=mesh)
