"""The optimizer of calibrations: robust least squares on log time, from several seeded starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import product
from typing import Any

import numpy as np

from llmir.backends.kernels.base import Kernel, parameters
from llmir.backends.silicon.rows import Array
from llmir.base.errors import InputError

# Residuals above 10% count linearly, not squared: engines differ by 8% on equal products.
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
    """Fit kernels to measured times by robust least squares on the logarithm of time.

    Positive parameters vary on a logarithmic scale. The first starting point is the defaults, or `near`; the
    other starting points are random points around it. If parameters have only a few possible values, all
    combinations are tried from the first starting point. The prior keeps parameters that the rows do not
    determine near their defaults, because similar devices share these values. It also applies to a choice
    among values if its default is the usual one.

    Args:
        kinds: Kernel classes by family.
        time: Estimates all rows with given kernels, in seconds.
        seconds: The measured times.
        starts: Number of starting points.
        seed: Seed of the random starting points.
        prior: A parameter that is e times its default costs as much as this relative error in every time.
        loss: A loss function of scipy: with "soft_l1", outliers count linearly; with "cauchy", they hardly
            count.
        near: Kernels whose parameters replace the defaults.
        weights: Weights of the rows, 1 on average.
        held: Names of parameters that keep the values of `near` or their defaults.

    Returns:
        The fitted kernels by family.

    Raises:
        InputError: scipy is not installed, or there are no rows.
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

    margin = 1e-6 * (high - low)  # a starting point must be inside its bounds

    def descend(start: Array, picked: tuple[float, ...]) -> Any:
        return least_squares(
            residuals,
            np.clip(start, low + margin, high - margin),
            bounds=(low, high),
            loss=loss,
            f_scale=SOFT,
            diff_step=1e-3,  # larger than the kinks between tiles
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
