"""Cost models: the time of an op on a device, its bound, its basis and its error.

Start with `op_time.py` (`OpTime`, `DeviceCostModel`) and `models.py` (`model`, which chooses the model that
the options name). `roofline.py` contains `ideal` and `efficiency`. `calibrated.py` contains `calibrated`,
which combines the kernel laws of `kernels` with the parameters in `hw/calibrations`. `transfer.py` finds the
parameters for a device that was not measured. `batch.py` evaluates many op times as one array. `registry.py`
registers models.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages `tape`, `work` and `kernels`.
"""
