"""The analyses of a program: time, memory, simulations, searches and reports.

Each package reads `llmir.ir` programs and `llmir.hw` devices. Read `README.md` in this folder first: it
follows one number from a `config.json` to the printed table. The main path is `work/rows.py` (what an op
needs), `cost/calibrated.py` (its time), `step/report.py` (a step) and `request/workload.py` (a request).

Packages in order, where each one imports only earlier ones: tape, work, kernels, cost, memory, step, request,
compare, simulate, search, export, silicon. `interpret` is separate and imports only `llmir.base` and
`llmir.ir`. All packages may import `llmir.base`, `llmir.ir` and `llmir.hw`, but never frontends, passes or
`llmir.api`.
"""
