"""Formats of measured tables: one file per format, with its columns and the program of a row.

Start with `table.py` (`TableFormat`, `KernelTable`, `load`), and then read `gemm.py`, a short example. A
format is a class that registers itself under its name; a file's columns determine its format. Rows that
differ only in sizes share one program with symbolic dimensions. `whole.py`, `chat.py` and `engine_memory.py`
are tables of whole models.

May import: what `silicon` may, and `silicon/rows.py`; not `calibrate`, `validate` or `measure`.
"""
