"""Charts of results by matplotlib, an optional dependency (`pip install llmir[plot]`).

Start with `frame.py` (axes, titles, units, marks and labels that all charts share) and `curves.py`. One file
per chart: `front.py` (Pareto front), `memory.py`, `roofline.py`, `serving.py`, `shares.py` and
`validation.py`. `files.py` writes the charts of plans, sweeps and simulations as PNG, SVG and PDF. matplotlib
is imported inside functions.

May import: the imports of `export`, the other modules of `export`, and no frontend or pass.
"""
