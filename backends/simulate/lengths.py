"""Distributions of lengths in words: `512`, `uniform:100,900`, `lognormal:512,0.6` …

>>> import numpy as np
>>> draw = lengths("prompt", "uniform:1,3")
>>> sorted(set(draw(np.random.default_rng(0), 100).tolist()))
[1, 2, 3]
>>> lengths("prompt", "pareto:3")
Traceback (most recent call last):
...
llmir.base.errors.InputError: prompt: expected constant, uniform, normal, exponential or lognormal, got 'pareto'
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import NamedTuple

import numpy as np

from llmir.backends.request.workload import LONGEST
from llmir.base.arguments import choice, integer, number, read
from llmir.base.errors import InputError

from .load import Array

Draw = Callable[[np.random.Generator, int], Array]


class Law(NamedTuple):
    """A distribution: what its numbers are, the least of each, and how so many lengths are drawn."""

    takes: tuple[str, ...]
    least: tuple[float, ...]
    draw: Callable[..., Array]


LAWS = {
    "constant": Law(("tokens",), (1,), lambda rng, count, tokens: np.full(count, tokens)),
    "uniform": Law(("least", "most"), (1, 1), lambda rng, n, a, b: rng.integers(int(a), int(b) + 1, n)),
    "normal": Law(("mean", "deviation"), (1, 0), lambda rng, n, mean, by: rng.normal(mean, by, n)),
    "exponential": Law(("mean",), (1,), lambda rng, n, mean: rng.exponential(mean, n)),
    # `sigma` is the deviation of the logarithm; the mean is median · exp(sigma² / 2).
    "lognormal": Law(("median", "sigma"), (1, 0), lambda rng, n, m, s: rng.lognormal(log(m), s, n)),
}


def lengths(name: str, said: object) -> Draw:
    """What draws lengths as `said`, a number of tokens or a law with its numbers; at least 1, rounded.

    InputError for a law that nobody knows, or numbers that it does not take.
    """
    word, _, numbers = said.strip().partition(":") if isinstance(said, str) else ("", "", "")
    if not word.isidentifier():
        tokens = integer(name, read(said) if isinstance(said, str) else said, 1, LONGEST)
        word, values = "constant", [float(tokens)]
    else:
        law = LAWS[choice(name, word, tuple(LAWS))]
        values = [read(value.strip()) for value in numbers.split(",")] if numbers else []
        if len(values) != len(law.takes):
            raise InputError(f"{name}: {word} takes {' and '.join(law.takes)}, got {said!r}")
        pairs = zip(law.takes, values, law.least, strict=True)
        values = [number(f"{name}: {what} of {word}", value, least, LONGEST) for what, value, least in pairs]
        if word == "uniform" and values[1] < values[0]:
            raise InputError(f"{name}: uniform from {values[0]:g} to {values[1]:g}, the least goes first")

    def draw(rng: np.random.Generator, count: int) -> Array:
        with np.errstate(over="ignore"):
            found = np.maximum(np.rint(LAWS[word].draw(rng, count, *values)), 1)
        if found.max(initial=0) > LONGEST:
            raise InputError(f"{name}: {said!r} gave more than {LONGEST:,} tokens, which are the most")
        return np.asarray(found.astype(np.int64))

    return draw
