"""Measurements on real devices: tables of times, fits, validation, and timing of this machine.

Start with `tables/table.py` (a measured row is a small program with sizes, estimated like a model), then
`validate/run.py` (`validate`: every row beside its prediction) and `calibrate/cases.py` (the rows that fit
the kernels of a device and engine). `measure` times kernels of this machine. `rows.py` reads CSV files and
names devices; `closed_loop.py` simulates a measured closed loop; `sources.yaml` has facts about whole
tables.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and every other package of backends except `interpret`.
"""
