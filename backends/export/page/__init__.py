"""HTML pages that show results, or that compute `llmir.workload` in the browser.

Start with `results.py` (the page of each result), `bundle.py` (one file with its scripts and content policy)
and `setups.py` (the data of a page that computes). `functions.py` has a program's functions as JavaScript or
as lists; `document.py` the parts of a page of results. The JavaScript modules are in the same folder as the
Python files: `main.js` starts the page that computes, `results.js` a page of results. `make web` bundles them
into `made/`.

May import: the imports of `export`, and the other modules of `export`.
"""
