"""Formulas for the times of kernels (laws): one family of kernels per file, with a few physical parameters
each.

A law is a class with a method `seconds(device, shape, xp)`. Its fields are parameters, which
`silicon/calibrate` fits to measurements and `hw/calibrations` stores. Start with `base.py` (`Kernel`,
`Shape`, `Call`, `kernel_calls`), then `stream.py`, the shortest law, and `gemm.py`. `@families` registers a
class under the names of its calibrations, `@kernel_call` registers the function that makes a shape from a
row.

A law may apply only operators and functions of the array namespace `xp` to sizes, so that it works with
numbers, arrays and tape symbols. May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages `tape`
and `work`.
"""
