"""Validation: compare predictions with measurements of kernels, models, memory and chat logs.

Start with `run.py` (`validate`: every row of some CSV files beside its prediction) and `rows.py`
(`Validation`, its groups and statistics). `estimates.py` chooses the cost model of a row, `requests.py`
turns a row of a whole model into a layout, `bounds.py` has the lower bound of a kernel row. `chat.py`,
`memory.py` and `memory_series.py` handle their tables; `show.py` prints.

May import: what `silicon` may, and the modules `tables`, `rows` and `closed_loop` of `silicon`.
"""
