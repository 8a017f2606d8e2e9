"""Sizes: integers, or polynomials in named symbols whose value is asked for last.

The symbols of a language model are `B` sequences, `T` new tokens per sequence and `C` tokens already
cached. All symbols are non-negative. Besides symbols, a polynomial may hold `atoms`, functions of sizes such
as `ceildiv(a, b)`.

>>> B, T = Dim.symbol("B"), Dim.symbol("T")
>>> print(2 * T * (B + 3))
2*B*T + 6*T
>>> Binding(B=4, T=10)(2 * T * (B + 3))
140
"""
