"""Record arithmetic on symbols, and print it as Python, NumPy, Numba or JavaScript.

A function that computes with the operators and the array namespace of `llmir.base` runs on numbers, arrays
and symbols. On symbols it records its arithmetic on a `Tape`; the printers compile it into fast code without
the objects that recorded it, and `derivatives.py` differentiates it.

Start with `record.py` (`Tape`, `Symbol`, `Function`), then `python.py`, the simplest printer. `outline.py`
and `pruning.py` remove the arguments of minima, maxima and `where` that never decide.

May import: `llmir.base`, `llmir.ir`. It is the first package of backends.
"""
