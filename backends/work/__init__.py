"""What an op needs, before any device is known: operands, bytes, FLOPs, messages.

Start with `rows.py`: `rows(program)` returns one `Row` for each op, with its symbolic sizes on one rank.
`Limit` and `Basis` describe the bound of a time and where the time comes from. `network.py` has the
algorithms of collectives, the fastest route over the links of a device, and the placement of ranks on nodes.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the package `tape`.
"""
