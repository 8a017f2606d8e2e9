"""Robust least squares on the logarithm of the time, from several seeded starts."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from llmir.backends.cost.kernels import Kernel, Shape, parameters
from llmir.errors import InputError
from llmir.hw import Device

K = TypeVar("K", bound=Kernel)
Array = np.ndarray[Any, np.dtype[Any]]

# Residuals beyond a tenth count by their size, not its square: engines differ by 8% on the same product.
SOFT = 0.1


def fit(
    kernel: type[K], device: Device, shape: Shape, seconds: Array, *, starts: int = 4, seed: int = 0
) -> K:
    """The parameters whose times are nearest to `seconds`; InputError without scipy or without rows.

    Positive parameters move on a logarithmic scale. The first start is the defaults, others lie around it.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("fitting needs scipy: pip install 'llmir[calibrate]'") from None
    if not len(seconds):
        raise InputError(f"{device.name}: no rows to fit {kernel.__name__} to")
    known = parameters(kernel)
    logarithmic = np.array([p.low > 0 for p in known])

    def scaled(values: Any) -> Array:
        v = np.asarray(values, dtype=float)
        return np.where(logarithmic, np.log(np.where(logarithmic, v, 1)), v)

    def made(x: Array) -> K:
        return kernel(*map(float, np.where(logarithmic, np.exp(np.where(logarithmic, x, 0)), x)))

    low, high = scaled([p.low for p in known]), scaled([p.high for p in known])
    measured = np.log(seconds)

    def residuals(x: Array) -> Array:
        return np.asarray(np.log(made(np.clip(x, low, high)).seconds(device, shape)) - measured)

    random = np.random.default_rng(seed)
    middle = scaled([p.default for p in known])
    best: Any = None
    for n in range(starts):
        x = middle if n == 0 else middle + random.uniform(-0.25, 0.25, len(known)) * (high - low)
        inside = np.clip(x, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
        found = least_squares(
            residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=SOFT, diff_step=1e-3, max_nfev=200
        )
        if best is None or found.cost < best.cost:
            best = found
    return made(np.clip(best.x, low, high))
