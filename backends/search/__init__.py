"""Search over deployments: sweeps of grids, and plans that serve given traffic.

Start with `sweep.py` (`Sweep`: every step of every structure as columns) and `search.py` (`search`: plans
ranked by closed form and decided by simulation). `structures.py` lists the structures (device, precision,
split) and their closed forms. `traffic.py` has the requests and limits, `trial.py` the simulated runs and
verdicts, and `plan.py` the results. `rejections.py` explains why plans lose, `front.py` computes Pareto
fronts, and `launch.py` has launch commands of engines.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory, step,
request, compare and simulate.
"""
