"""Search over deployments: sweeps of grids, and plans that serve given traffic.

Start with `sweep.py` (`Sweep`: every step of every structure as columns) and `search.py` (`search`: plans
ranked by closed form and decided by simulation). `structures.py` lists the structures (device, precision,
split) and their closed forms, `traffic.py` the requests and limits, `trial.py` the simulated runs
and verdicts, `plan.py` the results, `rejections.py` why plans lose, `front.py` Pareto fronts,
`launch.py` launch commands of engines.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory, step,
request, compare and simulate.
"""
