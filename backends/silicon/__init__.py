"""Measurements on real devices: tables of times, fits, validation, and timing of this machine.

Start with `tables/table.py` (a measured row is a small program with sizes, estimated like a model). Then read
`validate/run.py` (`validate` estimates each row and compares) and `calibrate/cases.py` (the rows that fit the
kernels of a device and engine). `measure` times kernels of this machine. `rows.py` reads CSV files and device
names; `closed_loop.py` simulates a measured closed loop; `sources.yaml` contains facts about whole tables.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and every other package of backends except `interpret`.
"""
