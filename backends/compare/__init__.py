"""Compare and explain results: differences between programs, explanation of an op, sensitivity, conservation.

Start with `diff.py` (`diff`: which ops changed between two programs or devices) and `explain.py` (`explain`:
the equation, cost, limits and kernel arithmetic of one op). `sensitivity.py` estimates how much time is saved
if a resource of the device is faster. `conservation.py` checks that all ranks of a sharded program together
do the work of one device.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory, step
and request.
"""
