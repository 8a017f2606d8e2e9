"""Present results: tables, JSON, CSV, Markdown, HTML, pages, pictures, traces and source code.

Start with `table.py` (a report on a terminal), `wording.py` (the words and cells that all formats share)
and `units.py` (numbers with units). `json.py` has JSON, CSV and Markdown of reports, `sections.py` the
frame of all other results. One file per result: `diff.py`, `plan.py`, `serving.py`, `sweep.py`,
`capacity.py`, `catalog.py`, `explanation.py`. `charts` has plots by matplotlib, `dot` pictures by Graphviz,
`page` HTML pages that compute, `timeline.py` traces for Perfetto, `source_code.py` Python and JavaScript.

An exporter registers itself with `llmir.base.formats.exporter`. May import: `llmir.base`, `llmir.ir`,
`llmir.hw`, and the packages tape, work, kernels, cost, memory, step, request, compare, simulate and search.
"""
