"""What an op requires from a device, before any device time: operands, bytes, FLOPs, messages.

Start with `rows.py`: `rows(program)` returns one `Row` for each op with its symbolic sizes on one rank, and
`Limit` and `Basis` state what bounds a time and how it was obtained. `network.py` has the algorithms of
collectives, the fastest route over the links of a device, and which ranks share a node.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the package `tape`.
"""
