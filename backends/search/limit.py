"""Limits of latencies, as people write them: `1s`, `p50:30ms`, `mean:30ms`."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.base.values import Array

USUAL = "p99"  # of requests, where a limit does not say of what it is
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LIMIT = re.compile(r"(?:(mean|p\d{1,2}(?:\.\d{1,3})?):)?(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII)


class Limit(NamedTuple):
    """At most so many seconds, of the mean over requests or of a percentile of them, such as `p99`."""

    seconds: float
    of: str = USUAL

    def figure(self, seconds: Array) -> float:
        """What is limited, of the seconds of requests; NaN is none."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return 0.0
        return float(known.mean() if self.of == "mean" else np.percentile(known, float(self.of[1:])))


def limit(name: str, said: object) -> Limit:
    """A limit as it is said, or seconds as a number; InputError for what is none.

    >>> limit("max_tpot", "30ms"), limit("max_tpot", "mean:0.03s"), limit("max_ttft", 1)
    (Limit(seconds=0.03, of='p99'), Limit(seconds=0.03, of='mean'), Limit(seconds=1.0, of='p99'))
    """
    if isinstance(said, Limit):
        return said
    if not isinstance(said, str):
        return Limit(arguments.number(name, said, above=True))
    found = _LIMIT.fullmatch(said.strip())
    if not found:
        expected = "a time such as 30ms, or of a statistic, such as p50:30ms or mean:0.5s"
        arguments.refuse(name, said, expected)
    of, digits, unit = found.groups()
    if unit not in _UNITS:
        raise InputError(f"{name}: {said.strip()[:40]} has no unit; say {digits}ms or {digits}s")
    return Limit(arguments.number(name, float(digits) * _UNITS[unit], above=True), of or USUAL)
