"""Validation: compare predictions with measurements of kernels, models, memory and chat logs.

Start with `run.py` (`validate` estimates every row of some CSV files) and `rows.py` (`Validation`, its groups
and statistics). `estimates.py` chooses the cost model of a row, `requests.py` turns a row of a whole model
into a setup, and `bounds.py` computes the lower bound of a kernel row. `chat.py`, `memory.py` and
`memory_series.py` process their tables; `show.py` prints.

May import: what `silicon` may, and the modules `tables`, `rows` and `closed_loop` of `silicon`.
"""
