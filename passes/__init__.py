"""Passes: rewrites from program to program, one per file, registered by name in `PASSES`.

A pass is a frozen dataclass under `llmir.ir.Pass`; its fields are its options. Start with `fuse.py` (`Fuse`),
which is a list of rewrite rules, then `shard.py` (`Shard`), one walk that places tensors and inserts
collectives, and `quantize.py` (`Quantize`).

Helpers without a pass: `plan.py` (placements for `shard`), `retype.py`, `formats.py`, `modules.py` and
`collectives.py` (for `quantize`). Imports `llmir.base`, `llmir.ir` and other passes; never frontends,
backends or hw.
"""
