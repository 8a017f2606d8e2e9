"""The meaning of a program: run its ops in numpy, on one rank or on all ranks in lockstep.

Start with `program.py` (`interpret`: the outputs and caches of one step). `equivalence.py` shortens the
axes of two programs and compares their outputs (`llmir.equivalent`), by which many tests prove passes. The
numpy code of each op is in its class in `llmir.ir.ops`.

May import: `llmir.base` and `llmir.ir` only; no other package of backends, and not `llmir.hw`.
"""
