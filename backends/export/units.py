"""Numbers with units: three significant digits, never an exponent."""

from __future__ import annotations

import math

_DASH = "–"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))
_PREFIXES = (*((10.0 ** (24 - 3 * i), p) for i, p in enumerate("YZEPTGMk")), (1.0, ""))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def digits(x: float) -> str:
    """Three significant digits, with a thousands separator.

    >>> [digits(x) for x in (0.1666, 1, 31.74, 870.9, 2368.8, 0)]
    ['0.167', '1.00', '31.7', '871', '2,370', '0']
    """
    if not math.isfinite(x):
        return _DASH if math.isnan(x) else f"{'-' if x < 0 else ''}∞"
    if x < 0:
        return f"-{digits(-x)}"
    if x < 0.001:
        return "<0.001" if x else "0"
    rounded = _rounded(x)
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def time(seconds: float) -> str:
    """A duration.

    >>> time(52.11e-6), time(2.0786e-3), time(0.99996e-3), time(0)
    ('52.1 µs', '2.08 ms', '1.00 ms', '0 s')
    """
    return _scaled(seconds, _TIMES)


def flops(n: float) -> str:
    """A number of FLOPs.

    >>> flops(85899345920), flops(12)
    ('85.9 GFLOP', '12 FLOP')
    """
    return _scaled(n, _PREFIXES, "FLOP")


def bytes(n: float) -> str:
    """An amount of memory, in powers of 1000.

    >>> bytes(134_234_112), bytes(80e9), bytes(32)
    ('134 MB', '80.0 GB', '32 B')
    """
    return _scaled(n, _PREFIXES, "B")


def intensity(x: float) -> str:
    """FLOPs per byte of memory traffic.

    >>> intensity(870.9), intensity(float("nan"))
    ('871 F/B', '–')
    """
    return f"{digits(x)} F/B" if math.isfinite(x) else digits(x)


def percent(x: float) -> str:
    """A share from 0 to 1 as a percentage, with one decimal below ten percent.

    >>> [percent(x) for x in (0.312, 0.0441, 0.0004, 0, 1)]
    ['31%', '4.4%', '<0.1%', '0%', '100%']
    """
    if not math.isfinite(x):
        return digits(x)
    if not x:
        return "0%"
    whole = 100 * x
    if abs(whole) < 0.1:
        return "<0.1%"
    return f"{whole:.1f}%" if abs(whole) < 9.95 else f"{whole:.0f}%"


def share_met(share: float) -> str:
    """A share of requests, rounded down, so that it is 100% only if all requests meet the limit.

    >>> [share_met(x) for x in (1, 0.9999, 0.5)]
    ['100.0%', '99.9%', '50.0%']
    """
    return f"{math.floor(1000 * share) / 10:.1f}%"


def count(n: float) -> str:
    """A count, such as the number of parameters.

    >>> count(8_030_261_248), count(137_000), count(80)
    ('8.03B', '137k', '80')
    """
    return _scaled(n, _COUNTS).replace(" ", "")


def _rounded(x: float) -> float:
    """`x` > 0 with three significant digits."""
    return round(x, 2 - math.floor(math.log10(x)))


def _scaled(x: float, scales: tuple[tuple[float, str], ...], unit: str = "") -> str:
    """`x` in the largest unit in which it is at least 1; small integers stay integers."""
    x = float(x)
    if not math.isfinite(x):
        return digits(x)
    if x < 0:
        return f"-{_scaled(-x, scales, unit)}"
    whole = next(symbol for scale, symbol in scales if scale == 1.0) + unit
    if not x:
        return f"0 {whole}".rstrip()
    size = _rounded(x)
    scale, symbol = next(((s, p) for s, p in scales if size >= s * (1 - 1e-9)), scales[-1])
    counted = size < 1000 and symbol != "s" and x == int(x)
    return f"{int(x) if counted else digits(x / scale)} {symbol}{unit}".rstrip()
