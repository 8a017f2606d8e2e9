"""Requests from prompt to last token: batches, closed loops, speculation, beams, largest loads.

Start with `workload.py` (`Workload`, the result of `llmir.workload`: prefill steps, decode steps, memory).
`closed_loop.py` computes the steady state of a number of users, `largest.py` the largest batch, context or
number of users. `speculation.py` and `beams.py` change how tokens are decoded. `candidates.py` evaluates
competing programs together; `portable.py` turns a program into functions for pages and other languages.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory and
step.
"""
