"""Calibration: fit the parameters of kernel laws and of engine CPU time to measured times.

Start with `refit.py` (`fit_cases` fits the cases of a folder and writes YAML files) and `cases.py`
(`CalibrationCase`: rows of one device and engine, with the kernels that they fit). `fit.py` is the optimizer.
`runs.py` and `engine_cpu.py` fit engine CPU time to whole models. `transfer.py` measures the error of
calibrations that are transferred between devices.

May import: what `silicon` may, and the modules `tables` and `validate` of `silicon`.
"""
