"""Measure this machine: times of PyTorch's eager kernels as CSV files that calibration reads.

Start with `machine.py` (`measurement_plan`: the sizes to time; `record` and `write`) and `kernels.py`
(`EagerMachine`, which times kernels; `collectives`; `copy_rate`). `engine_cpu.py` measures the CPU time of
eager transformers, and `device_file.py` writes the YAML of a device that is not bundled. torch is imported
inside functions.

May import: what `silicon` may, and the module `calibrate` of `silicon`.
"""
