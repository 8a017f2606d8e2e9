"""Whose calibration prices a kernel: the device's own, a relative's, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from llmir.backends.kernels.base import KERNELS, Kernel
from llmir.backends.kernels.engine_cpu import Host
from llmir.backends.kernels.gemm import Gemm
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.names import suggest
from llmir.hw import library
from llmir.hw.calibration import DATED, Fitted
from llmir.hw.device import Device

from .relatives import by_nearness, kernels_of
from .transfer import ALIKE, PRODUCTS, Reached, carried, computes, reached


@dataclass(frozen=True, eq=False)
class Fit:
    """A kernel and what it was fitted on: `device` is the one that was measured."""

    family: str
    kernel: Kernel
    device: Device
    engine: str
    fitted: Fitted


@lru_cache(maxsize=1024)
def basis(device: Device, family: str, engine: str | None = None) -> Fit | None:
    """The kernels of a family on a device, by its own calibration or else the nearest relative's; or None.

    `engine` None is the device's first one; `sglang-triton` is sglang with its kernel triton. What an engine
    lacks it borrows from the others, in the order of the file; from those of years ago last of all.
    """
    fits = (_of(d, family, engine, last) for last in ((), DATED) for d in by_nearness(device))
    found = next(filter(None, fits), None)
    return lent(found, device) if found else None


def lent(fit: Fit, device: Device) -> Fit:
    """The kernel as it is on that device, if it was fitted on another."""
    if fit.device == device:
        return fit
    reach = _reach(device, fit.device)
    return replace(fit, kernel=carried(fit.kernel, device, fit.device, reach, computes(fit.family)))


def known(device: Device) -> None:
    """HardwareError for a family, or a parameter, that a file's own calibration makes up."""
    for engine, families in (device.own_calibration.engines if device.own_calibration else {}).items():
        for family, fitted in families.items():
            _kernel(family, fitted, f"{device.name}: calibration.{engine}.{family}")


def first(device: Device) -> str | None:
    """The engine to take where none is named; None where there are no kernels to take."""
    whose = kernels_of(device)
    return whose.calibration.engine if whose and whose.calibration else None


@lru_cache(maxsize=256)
def engines(device: Device) -> tuple[str, ...]:
    """Names of engines, and of kernels of theirs, that the device's calibration or a relative's has.

    The first is the default one; there are none where the device can borrow nothing.
    """
    known = [d.calibration for d in by_nearness(device) if d.calibration]
    firsts = (calibration.engine for calibration in known if not calibration.partial)
    others = (name for calibration in known for name in calibration.engines)
    return tuple(dict.fromkeys((*firsts, *others)))


def nearest(device: Device, families: Sequence[str], engine: str | None = None) -> Fit | None:
    """The fit of the first of these families that there is; the last stands in for the others.

    Before another engine's kernel for the first, the engine's own for one of the others is taken.
    """
    found = [b for family in families if (b := basis(device, family, engine))]
    own = (b for b in found if b.family != families[-1] and b.engine in (engine, owner(engine or "")))
    return next(own, None) or next(iter(found), None)


def _of(device: Device, family: str, engine: str | None, dated: Sequence[str] = DATED) -> Fit | None:
    """The engine's own, else of the device's others; of those of years ago these `dated` ones alone."""
    if device.calibration is None:
        return None
    engines, family = device.calibration.engines, own(family, device)
    asked = (engine, owner(engine)) if engine else ()
    others = (name for name in engines if name not in DATED or name in dated)
    for name in (*asked, device.calibration.engine, *others):
        if fitted := engines.get(name, {}).get(family):
            where = f"{device.name}: calibration.{name}.{family}"
            return Fit(family, _kernel(family, fitted, where), device, name, fitted)
    return None


@lru_cache(maxsize=256)
def _reach(device: Device, other: Device) -> Reached:
    """How near products come to the datasheet on the device, or the nearest of its vendor, beside `other`.

    Both as they were measured: a file that extends another's may state other rates.
    """
    from statistics import geometric_mean  # which is slow to import

    home = next((d for d in by_nearness(device) if d.vendor == device.vendor and d.calibration), None)
    if device.vendor == other.vendor or home is None:
        return ALIKE
    home = library.load(home.measured_as) if home.measured_as else home
    shares: list[tuple[Reached, Reached]] = []
    for family in PRODUCTS:
        fits = _of(home, family, None), _of(other, family, None)
        here, there = (fit.kernel if fit else None for fit in fits)
        if isinstance(here, Gemm) and isinstance(there, Gemm):
            shares.append((reached(here, home, family), reached(there, other, family)))
    if not shares:
        return ALIKE
    matrix, memory = (
        min(1.0, geometric_mean(ours[i] / theirs[i] for ours, theirs in shares)) for i in (0, 1)
    )
    return Reached(matrix, memory)


def own(family: str, device: Device) -> str:
    """The family on this device: a CPU has kernels of its own, and so has CDNA (of gfx9)."""
    kind = "cpu" if device.cores else "cdna" if device.isa.startswith("gfx9") else ""
    return f"{kind}_{family}" if f"{kind}_{family}" in KERNELS else family


def owner(engine: str) -> str:
    """The engine that one of several kernels belongs to.

    >>> owner("sglang-triton"), owner("sglang")
    ('sglang', 'sglang')
    """
    return engine.partition("-")[0]


def host(device: Device, engine: str | None = None) -> tuple[Host, float] | None:
    """What an engine adds to its kernels on this very device, where its file says so, and its error."""
    calibration = device.calibration
    if calibration is None or (engine and engine not in calibration.engines):
        return None
    name = engine or calibration.engine
    found = _of(device, "host", name) if own("host", device) in calibration.engines[name] else None
    return (found.kernel, found.fitted.error) if found and isinstance(found.kernel, Host) else None


def _kernel(family: str, fitted: Fitted, where: str) -> Kernel:
    if family not in KERNELS:
        near = suggest(family, KERNELS) or f", known are {', '.join(KERNELS)}"
        raise HardwareError(f"{where}: unknown family{near}")
    return KERNELS[family].of(fitted.parameters, where)
