"""The optimizer of calibrations: robust least squares on log time, from several seeded starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import product
from typing import Any

import numpy as np

from llmir.backends.kernels.base import Kernel, parameters
from llmir.backends.silicon.rows import Array
from llmir.base.errors import InputError

# Residuals beyond a tenth count by their size, not its square: engines differ by 8% on the same product.
SOFT = 0.1

Kernels = Mapping[str, Kernel]


def fit_kernels(
    kinds: Mapping[str, type[Kernel]],
    time: Callable[[Kernels], Array],
    seconds: Array,
    *,
    starts: int = 3,
    seed: int = 0,
    prior: float = Kernel.prior,
    loss: str = "soft_l1",
    near: Kernels | None = None,
    weights: Array | None = None,
    held: Collection[str] = (),
) -> Kernels:
    """The kernels of these families whose times are nearest to `seconds`; InputError without scipy or rows.

    Positive parameters move on a logarithmic scale. The first start is the defaults, or the kernels `near`,
    which stand for them in all that follows; others lie around it. Parameters that are one of a few numbers
    are tried in all combinations, from the first start. A parameter
    e times its default costs as much as if every time were wrong by `prior`: what the rows do not tell stays
    at its default, which siblings share, and is not driven to where noise wants it. So does a choice whose
    default is the usual one: another must be worth as much. `loss` is one of scipy's: by "soft_l1" an
    outlier counts by its size, by "cauchy" hardly at all. Rows count by their `weights`, one on average.
    Parameters that are `held` stay at those of `near`, or at their defaults.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("fitting needs scipy: pip install 'llmir[calibrate]'") from None
    if not len(seconds):
        raise InputError(f"no rows to fit {', '.join(kinds)} to")
    every = [(family, p) for family, kind in kinds.items() for p in parameters(kind)]
    kept = [(f, p, getattr(near[f], p.name) if near else p.default) for f, p in every if p.name in held]
    every = [(f, p) for f, p in every if p.name not in held]
    known = [(f, p) for f, p in every if not p.choices]
    built = [(f, p) for f, p in every if p.choices]
    combinations = tuple(product(*(p.choices for _, p in built)))
    logarithmic = np.array([p.low > 0 for _, p in known])

    def scaled(values: Any) -> Array:
        v = np.asarray(values, dtype=float)
        return np.where(logarithmic, np.log(np.where(logarithmic, v, 1)), v)

    def made(x: Array, picked: tuple[float, ...]) -> Kernels:
        moved = map(float, np.where(logarithmic, np.exp(np.where(logarithmic, x, 0)), x))
        values: dict[str, dict[str, float]] = {family: {} for family in kinds}
        for family, p, value in kept:
            values[family][p.name] = value
        for (family, p), value in zip((*known, *built), (*moved, *picked), strict=True):
            values[family][p.name] = value
        return {family: kind(**values[family]) for family, kind in kinds.items()}

    low, high = scaled([p.low for _, p in known]), scaled([p.high for _, p in known])
    usual = scaled([getattr(near[f], p.name) if near else p.default for f, p in known])
    measured = np.log(seconds)
    weight = prior * np.sqrt(len(measured))

    def residuals(x: Array, picked: tuple[float, ...]) -> Array:
        off = np.log(time(made(x, picked))) - measured
        unusual = [p.usual and c != p.default for c, (_, p) in zip(picked, built, strict=True)]
        rows = off if weights is None else np.sqrt(weights) * off
        return np.concatenate([rows, weight * (x - usual), weight * np.array(unusual)])

    margin = 1e-6 * (high - low)  # a start lies inside its bounds

    def descend(start: Array, picked: tuple[float, ...]) -> Any:
        return least_squares(
            residuals,
            np.clip(start, low + margin, high - margin),
            bounds=(low, high),
            loss=loss,
            f_scale=SOFT,
            diff_step=1e-3,  # wide enough to see across the kinks between tiles
            max_nfev=100,
            args=(picked,),
        )

    random = np.random.default_rng(seed)
    around = [random.uniform(-0.25, 0.25, len(known)) * (high - low) for _ in range(starts)]
    best, picked = min(
        ((descend(usual, picked), picked) for picked in combinations), key=lambda found: found[0].cost
    )
    for step in around[1:]:
        found = descend(usual + step, picked)
        best = min(best, found, key=lambda f: f.cost)
    return made(np.clip(best.x, low, high), picked)
