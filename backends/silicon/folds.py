"""Errors, and the folds that leave whole groups of shapes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Errors(NamedTuple):
    """Of (predicted − measured)/measured: mean and median size, mean with its sign, 90th percentile."""

    n: int
    mape: float
    median: float
    bias: float
    p90: float


def errors(predicted: Array, measured: Array) -> Errors:
    """How far `predicted` is from `measured`; NaN of none.

    >>> [round(e, 3) for e in errors(np.array([1.1, 0.9, 1.0, 1.2]), np.ones(4))]
    [4, 0.1, 0.1, 0.05, 0.17]
    """
    if not len(measured):
        return Errors(0, nan, nan, nan, nan)
    e = predicted / measured - 1
    size = np.abs(e)
    found = size.mean(), np.median(size), e.mean(), np.quantile(size, 0.9)
    return Errors(len(e), *map(float, found))


def group_folds(groups: Sequence[object], *, folds: int = 5, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Pairs of row numbers to fit to and to judge by; the rows of a group are all in one or all in the other.

    Each row is judged by once. Fewer groups than folds make fewer folds.

    >>> [(fit.tolist(), judge.tolist()) for fit, judge in group_folds(["a", "b", "a"], folds=2)]
    [([1], [0, 2]), ([0, 2], [1])]
    """
    names = list(dict.fromkeys(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    place = {names[g]: n % folds for n, g in enumerate(order)}
    fold = np.array([place[g] for g in groups])
    for n in range(min(folds, len(names))):
        yield np.flatnonzero(fold != n), np.flatnonzero(fold == n)
