"""Record arithmetic on symbols, and print it as Python, NumPy, Numba or JavaScript code.

A function that computes with the operators and the array namespace of `llmir.base` runs on numbers, arrays
and symbols. With symbols, it records its arithmetic on a `Tape`. Printers compile the tape into fast code
that does not use the original objects, and `derivatives.py` differentiates it.

Start with `record.py` (`Tape`, `Symbol`, `Function`), then `python.py`, the simplest printer. `outline.py`
and `pruning.py` remove the arguments of minima, maxima and `where` that never decide.

May import: `llmir.base`, `llmir.ir`. It is the first package of backends.
"""
