"""Passes: rewrites from program to program, one per file, registered by name in `PASSES`.

A pass is a frozen dataclass under `llmir.ir.Pass`; its fields are its options. Start with `fuse.py` (`Fuse`),
a list of rewrite rules; then read `shard.py` (`Shard`), which walks a graph once, places tensors and inserts
collectives; and `quantize.py` (`Quantize`).

Helpers without a pass: `plan.py` (placements for `shard`), `retype.py`, `formats.py`, `modules.py` and
`collectives.py` (for `quantize`). Imports `llmir.base`, `llmir.ir` and other passes; never frontends,
backends or hw.
"""
