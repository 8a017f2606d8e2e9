"""The intermediate representation, and what a plugin imports from it.

- `sizes/`: sizes as polynomials, their atoms, bindings and routing laws
- `core/`: dtypes, meshes, tensors, equations, masks, ops, graphs and programs
- `ops/`: one class for each op
- `tools/`: builder, text form, verifier, rewrite rules, pass pipelines and loops

Start with `core/op.py` (`Op`), then `core/graph.py` (`Graph`) and `core/program.py` (`Program`).
Names of `__all__` are imported on first use. Each folder imports only those above it and `llmir.base`.
"""
