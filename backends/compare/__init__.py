"""Compare and explain results: diff of programs, explanation of an op, sensitivity, conservation.

Start with `diff.py` (`diff`: which ops changed between two programs or devices) and `explain.py` (`explain`:
the equation, cost, limits and kernel arithmetic of one op). `sensitivity.py` estimates the savings with more
of each resource. `conservation.py` checks that all ranks of a sharded program together do the work of one
device.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory, step
and request.
"""
