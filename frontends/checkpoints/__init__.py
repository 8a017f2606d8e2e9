"""Checkpoints: the names, shapes and dtypes of stored tensors, compared with a program.

Start with `weights.py` (`expected`, `compare`): the tensors that a program needs, and how a checkpoint
differs from them. `tensors.py` (`read`) reads safetensors headers and indexes, never a weight. `packing.py`
(`packing`) defines the storage of a matrix in each quantization method. Imports `llmir.base`, `llmir.ir` and
the other packages of `llmir.frontends`.
"""
