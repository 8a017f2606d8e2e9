"""The core of the IR: dtypes, meshes, tensors, equations, ops, graphs and programs.

Start with `op.py` (`Op`): an op has one index equation, and overrides only the rules that do not follow from
the equation. Then read `equation.py` (`Equation`), `tensor.py` (`Tensor`), `graph.py` (`Node`, `Graph`) and
`program.py` (`Program`). Element types with their scales are in `dtype.py`, mesh axes in `mesh.py`, and
attention masks in `masks.py`. Imports `llmir.base` and `llmir.ir.sizes`.
"""
