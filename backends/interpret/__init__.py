"""Run a program: its ops in NumPy, on one rank or on all ranks in lockstep.

Start with `program.py` (`interpret`: the outputs and caches of one step). `equivalence.py` shortens the axes
of two programs and compares their outputs (`llmir.equivalent`); many tests use it to check passes. The NumPy
code of each op is in its class in `llmir.ir.ops`.

May import: `llmir.base` and `llmir.ir` only; no other package of backends, and not `llmir.hw`.
"""
