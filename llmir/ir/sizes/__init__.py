"""Sizes: integers, or polynomials in named symbols that are evaluated last.

The symbols of a language model are `B` sequences, `T` new tokens per sequence, and `C` tokens cached before
the step. All sizes are non-negative. A polynomial may also contain atoms, which are functions of sizes such
as `ceildiv(a, b)` or the expected number of experts that a batch touches.

Start with `polynomial.py` (`Dim`, `Atom`), then `binding.py` (`Binding`), which evaluates a size. How tokens
choose experts is in `routing_laws.py` (`Law`), and sizes of routed rows are in `ragged.py`.
Imports only `llmir.base`.
"""
