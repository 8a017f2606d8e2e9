"""The intermediate representation, with the names that plugins import.

- `sizes/`: sizes as polynomials, their atoms, bindings and routing laws
- `core/`: dtypes, meshes, tensors, equations, masks, ops, graphs and programs
- `ops/`: one class for each op
- `tools/`: builder, text form, verifier, rewrite rules, pass pipelines and loops

Start with `core/op.py` (`Op`), then `core/graph.py` (`Graph`) and `core/program.py` (`Program`). Names of
`__all__` are imported on first use. Each folder imports only the folders above it and `llmir.base`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmir.ir.core.dtype import DTYPES, DType, dtype, parse_dtype
    from llmir.ir.core.equation import Equation, equation
    from llmir.ir.core.graph import Graph, Node, Value
    from llmir.ir.core.layers import Layers
    from llmir.ir.core.masks import Mask, mask
    from llmir.ir.core.mesh import ONE_DEVICE, Mesh, Parallelism, mesh_of
    from llmir.ir.core.op import OPS, ExecutionPlace, Gemm, Loop, Op, RankGroup, Work, infer
    from llmir.ir.core.program import PHASES, Instance, Program
    from llmir.ir.core.tensor import Tensor, parse_tensor
    from llmir.ir.sizes.binding import Binding, MixedBinding
    from llmir.ir.sizes.polynomial import Atom, B, C, Dim, Max, Min, Size, T, ceildiv, distinct, product
    from llmir.ir.sizes.routing_laws import CHANCE, Law, Zipf, law
    from llmir.ir.tools.build import Builder
    from llmir.ir.tools.loops import inner_first, iteration
    from llmir.ir.tools.pipeline import PASSES, Pass, option, parse_pipeline, run_passes
    from llmir.ir.tools.rewrite import Match, Rule, rewrite
    from llmir.ir.tools.text import (
        parse_node,
        parse_program,
        print_graph,
        print_node,
        print_program,
        read_program,
    )
    from llmir.ir.tools.verify import verify

# module -> its names, each imported on first use (PEP 562)
_NAMES = {
    "core.dtype": "DTYPES DType dtype parse_dtype",
    "core.equation": "Equation equation",
    "core.graph": "Graph Node Value",
    "core.layers": "Layers",
    "core.masks": "Mask mask",
    "core.mesh": "ONE_DEVICE Mesh Parallelism mesh_of",
    "core.op": "OPS ExecutionPlace Gemm Loop Op RankGroup Work infer",
    "core.program": "PHASES Instance Program",
    "core.tensor": "Tensor parse_tensor",
    "sizes.binding": "Binding MixedBinding",
    "sizes.polynomial": "Atom B C Dim Max Min Size T ceildiv distinct product",
    "sizes.routing_laws": "CHANCE Law Zipf law",
    "tools.build": "Builder",
    "tools.loops": "inner_first iteration",
    "tools.pipeline": "PASSES Pass option parse_pipeline run_passes",
    "tools.rewrite": "Match Rule rewrite",
    "tools.text": "parse_node parse_program print_graph print_node print_program read_program",
    "tools.verify": "verify",
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "CHANCE",
    "DTYPES",
    "ONE_DEVICE",
    "OPS",
    "PASSES",
    "PHASES",
    "Atom",
    "B",
    "Binding",
    "Builder",
    "C",
    "DType",
    "Dim",
    "Equation",
    "ExecutionPlace",
    "Gemm",
    "Graph",
    "Instance",
    "Law",
    "Layers",
    "Loop",
    "Mask",
    "Match",
    "Max",
    "Mesh",
    "Min",
    "MixedBinding",
    "Node",
    "Op",
    "Parallelism",
    "Pass",
    "Program",
    "RankGroup",
    "Rule",
    "Size",
    "T",
    "Tensor",
    "Value",
    "Work",
    "Zipf",
    "ceildiv",
    "distinct",
    "dtype",
    "equation",
    "infer",
    "inner_first",
    "iteration",
    "law",
    "mask",
    "mesh_of",
    "option",
    "parse_dtype",
    "parse_node",
    "parse_pipeline",
    "parse_program",
    "parse_tensor",
    "print_graph",
    "print_node",
    "print_program",
    "product",
    "read_program",
    "rewrite",
    "run_passes",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'llmir.ir' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
