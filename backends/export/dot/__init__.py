"""Pictures of programs with their costs, drawn by Graphviz: op columns, overviews and diffs.

Start with `render.py` (`draw`: from a report, workload or diff to a file) and `outline.py` (what a picture
contains: boxes, layers, dataflow). `columns.py` draws the levels `overview`, `layer` and `full`, `diff.py`
two sides next to each other, `labels.py` the text, tiles and frames. llmir computes all positions; Graphviz's
engine `nop2` only draws.

May import: the imports of `export`, and the other modules of `export`.
"""
