"""Tools for graphs: builder, text form, verifier, rewrite rules, pass pipelines and loops.

Start with `build.py` (`Builder`), which builds a graph by calling ops as methods, and `pipeline.py` (`Pass`,
`run_passes`). `rewrite.py` (`Rule`, `rewrite`) replaces patterns of ops, `verify.py` (`verify`) checks a
program after each pass, and `text.py` (`print_program`, `parse_program`) is the text form. `loops.py` unrolls
iterations of `repeat` and cuts a program into pipeline stages. `ranks.py` finds data-parallel ranks that do
not communicate. `op_methods.pyi` is generated. Imports `llmir.base` and the other packages of `llmir.ir`.
"""
