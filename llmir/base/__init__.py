"""Helpers that every other package may use: errors, frozen values, checks, readers and the registry.

- `errors.py`: the exceptions, all under `LlmirError`
- `values.py`, `dataclass.py`: immutable mappings, arrays and records, and a fast `dataclass`
- `arguments.py`, `names.py`: checks of arguments, and names in error messages
- `readers.py`: YAML, JSON and CSV within a budget
- `registry.py`, `formats.py`: definitions by kind and name (`Kind`), and the output formats of results

Start with `registry.py` (`Kind`): ops, passes, families, cost models, exporters and commands register there.
Imports no other package of llmir.
"""
