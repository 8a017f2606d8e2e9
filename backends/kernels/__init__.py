"""Laws of kernel time: one family of kernels per file, with a few physical parameters each.

A law is a class with a method `seconds(device, shape, xp)`; its fields are parameters that
`silicon/calibrate` fits to measurements and `hw/calibrations` stores. Start with `base.py` (`Kernel`,
`Shape`, `Call`, `kernel_calls`), then `stream.py`, the shortest law, and `gemm.py`. `@families` registers a
class under the names of its calibrations, `@kernel_call` registers the function that makes a shape from a
row.

Laws may use on sizes only operators and functions of the array namespace `xp`, so that they run on numbers,
arrays and tape symbols. May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages `tape` and
`work`.
"""
