"""The public Python functions, one topic per file; `llmir/__init__.py` exports them by name.

- `load.py`, `deployment.py`: programs from models, the default passes, and how ranks share a model
- `estimate.py`, `compile.py`, `sweep.py`: steps and requests, alone or in large numbers
- `compare.py`, `capacity.py`: differences, explanations, correctness checks and limits
- `serve.py`, `plan.py`: simulated servers, and plans for given traffic
- `draw.py`, `page.py`, `save.py`: plots, pages and files;  `measure.py`: measurements and fits

Start with `estimate.py` (`analyze`, `workload`). May import every package below: base, ir, hw, passes,
frontends and backends; never `llmir.page_server` or `llmir.cli`.
"""
