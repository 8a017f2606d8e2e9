"""Record arithmetic on sizes, and print it as Python, numpy, numba or JavaScript."""
