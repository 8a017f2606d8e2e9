"""Transfer calibrations to other devices: find the source of a device's kernels, adapt them, and state the
added error.

Order of the file: the most similar measured GPUs (`transfer_sources`); the transfer of one kernel and its
error (`transfer_to`, `device_error`); the search for a kernel of a family (`nearest_fit`, used by
`calibrated`); and a device with symbolic rates (`symbolic_device`), for code that gets rates later, such as a
page.

Parameters that are shares of a datasheet rate stay the same, and so do times of the most similar GPU's die.
Three parameters change with the chip, as each kernel defines (`Kernel.transfer_parameters`):

- The share of the matrix peak. If the matrix unit is slower, other work on a multiprocessor takes as long as
  before, so the share increases. For example, H20 has H100's multiprocessors with a fifth of the matrix rate,
  and reaches nearly its whole peak. If the matrix unit is faster, the share does not change.
- The power limit. The limit allows the same number of products per clock; a slower unit may not reach it
  (H20: 400 W for 148 TFLOP/s, H100: 700 W for 989).
- The bandwidth of a single decode block. The number of bytes in flight limits it, whatever bandwidth the
  device has.

The ratio of software rates to datasheets differs by vendor: AMD's products reach 0.3 to 0.5 of the matrix
peak, NVIDIA's 0.7 (docs/dev/kernels.md). Another vendor's kernels are scaled by this ratio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from llmir.backends.kernels.base import KERNELS, Kernel, KernelTransfer, parameters
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.backends.tape.outline import ExternalTape
from llmir.base.array_namespace import SCALARS
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.names import suggest
from llmir.hw import library, transfer
from llmir.hw.calibration import DATED, KernelParameters
from llmir.hw.device import Device
from llmir.hw.transfer import OTHER_MEMORY, OTHER_SM, OTHER_VENDOR, SAME_DIE, SAME_SM
from llmir.ir.sizes.polynomial import maximum, minimum

# Nearest measured GPUs

# A GPU has at least this number of multiprocessors (GeForce RTX 3050 laptop: 16). A TPU has one or two large
# cores.
MIN_MULTIPROCESSORS = 16

# Two GPUs have the same die if their matrix rates per multiprocessor differ by less than this ratio. Clocks
# of products with the same die differ by up to 13% (H100's PCIe card and module). The nearest two dies with
# the same instruction set differ by 22% (L4 and L40S).
DIE = 1.15


def nearness(device: Device, other: Device) -> tuple[float, ...]:
    """The distance of a measured GPU from another GPU; its fields are compared from left to right.

    The distance is largest if the vendors differ. Next comes the instruction set for which kernels are
    compiled. Chips with stacked memory (HBM) are made for data centers, and chips with GDDR for graphics. So
    for sm_120 with GDDR7, sm_89 with GDDR6 is nearer than sm_100 with HBM3e. Among chips of other vendors,
    those of the same time are nearest; the smallest float format that both have shows the time. Rates do not
    affect the distance, so that a file with a changed rate uses the same kernels.
    """
    abroad = device.vendor != other.vendor
    return (
        abroad,
        device.isa != other.isa,
        _technology(device) != _technology(other),
        0 if abroad else abs(_generation(device) - _generation(other)),
        not abroad and device.memory_kind != other.memory_kind,
        abs(math.log2(_narrowest(device) / _narrowest(other))),
    )


@lru_cache(maxsize=1024)
def relation(device: Device, other: Device) -> str:
    """The relation of two GPUs, one of `hw.transfer.RELATIONS`.

    GPUs with the same instruction set share a die if the matrix units of their multiprocessors are equally
    fast. H200 and H100 share one, and A30 and A100. H20 does not, because its units are a fifth as fast as
    H100's.
    """
    abroad, generations, technologies, *_ = nearness(device, other)
    if abroad or technologies or generations:
        return OTHER_VENDOR if abroad else OTHER_MEMORY if technologies else OTHER_SM
    ours, theirs = (d.matrix_peak("bf16")[0] / (d.multiprocessors or 1) for d in (device, other))
    return SAME_DIE if max(ours, theirs) <= DIE * min(ours, theirs) else SAME_SM


@lru_cache(maxsize=256)
def transfer_sources(device: Device) -> tuple[Device, ...]:
    """Other bundled GPUs with measured kernels, the most similar to `device` first; empty without a GPU."""
    if (device.multiprocessors or 0) < MIN_MULTIPROCESSORS:
        return ()
    others = (library.load(name) for name in library.calibrated_devices() if name != device.measured_as)
    return tuple(sorted(others, key=lambda other: nearness(device, other)))


def devices_by_nearness(device: Device) -> Iterator[Device]:
    """The device itself, and then similar devices; their files are read only when they are needed."""
    yield device
    yield from transfer_sources(device)


@lru_cache(maxsize=256)
def calibration_source(device: Device) -> Device | None:
    """The device whose calibration is used: the device itself, or the most similar device that has an engine;
    or None.

    `library_sources` lists more similar GPUs on which only a library was measured; the library's kernels are
    used first.
    """
    whole = (d for d in devices_by_nearness(device) if d.calibration and not d.calibration.partial)
    return next(whole, None)


@lru_cache(maxsize=256)
def same_chip(device: Device) -> bool:
    """Whether the kernels were measured on this chip, or on a GPU that differs only in memory; engine CPU
    times are fitted on such devices.
    """
    found = calibration_source(device)
    alike = device.isa, device.multiprocessors
    return found is not None and (found.isa, found.multiprocessors) == alike


@lru_cache(maxsize=256)
def library_sources(device: Device) -> tuple[Device, ...]:
    """The GPUs that are nearer than `kernels_of` and on which only a library was measured; the nearest comes
    first.

    GPUs with kernels that engines do not use (`DATED`) are skipped.
    """
    nearest = devices_by_nearness(device)
    measured = (d for d in nearest if d.calibration and d.calibration.engine not in DATED)
    return tuple(takewhile(lambda d: d.calibration and d.calibration.partial, measured))


def _narrowest(device: Device) -> int:
    """The number of bits of the smallest floats that the device's matrix units multiply."""
    return min(int(name[2:]) for name in ("bf16", *device.matrix_flops) if not name.startswith("int"))


def _technology(device: Device) -> str:
    """HBM, GDDR or DDR: the letters at the beginning of the kind of memory."""
    found = re.match("[A-Z]+", device.memory_kind.upper())
    return found[0] if found else ""


def _generation(device: Device) -> int:
    """The number in the name of an instruction set; AMD writes it in hexadecimal (gfx90a)."""
    found = re.search("[0-9a-f]+$", device.isa.lower())
    return int(found[0], 16) if found else 0


# Transfer of one kernel, and its error


class RateShares(NamedTuple):
    """The shares of the datasheet rates that matrix products reach, or the ratio of these shares on two
    devices.
    """

    matrix: float
    memory: float


ALIKE = RateShares(1.0, 1.0)
# The matrix products by which vendors are compared, with the bits of both operands.
PRODUCTS = {"gemm_bf16": 16, "gemm_fp8": 8, "gemm_fp8_block": 8, "gemm_int8": 8}


def transfer_to(
    kernel: Kernel, device: Device, other: Device, reached: RateShares = ALIKE, dtype: str = "bf16"
) -> Kernel:
    """Transfer a kernel from `other` to `device`, for a dtype of its arithmetic.

    `reached` is the ratio of the rates that matrix products reach.
    """
    travel = KernelTransfer(device, other, dtype, reached.matrix, reached.memory)
    kind, values = type(kernel), kernel.transfer_parameters(travel)
    kind = kind if device == other else kind.transfer_class()
    return kind(**{p.name: minimum(maximum(values[p.name], p.low), p.high) for p in parameters(kind)})


def compute_dtype(family: str) -> str:
    """The dtype of a family's products, from its name.

    >>> compute_dtype("gemm_fp8_block"), compute_dtype("gemm_int8_weights"), compute_dtype("moe_nvfp4")
    ('fp8', 'bf16', 'fp4')
    """
    parts = family.split("_")
    named = {"fp32": "fp32", "fp8": "fp8", "nvfp4": "fp4", "int8": "int8"}
    return "bf16" if parts[-1] == "weights" else next((named[p] for p in parts if p in named), "bf16")


def reached_rates(kernel: GemmKernel, device: Device, family: str) -> RateShares:
    """Shares of the rates of the measured device that a large product reaches, and a product of a single
    row.
    """
    dtype, bits = compute_dtype(family), PRODUCTS[family]
    large = GemmShape(m=8192, n=8192, k=8192, x_bits=bits, w_bits=bits, dtype=dtype)
    single = replace(large, m=1, n=16384, k=16384)
    flops, moved = 2 * 8192**3, 16384**2 * bits / 8
    return RateShares(
        flops / device.matrix_peak(dtype)[0] / float(kernel.seconds(device, large)),
        moved / device.memory_Bps / float(kernel.seconds(device, single)),
    )


@lru_cache(maxsize=4096)
def device_error(device: Device, other: Device, family: str) -> float:
    """The additional mean relative error of a kernel of `other` on `device`; 0 on the same device.

    A device file with other rates than those of the measured device counts as the same die.
    """
    if device == other:
        home = measured_device(device, family)
        return _error_of(relation(device, home), family) if home else 0.0
    return _error_of(relation(device, other), family)


def rate_error(device: Device, other: Device, family: str) -> float:
    """The part of this error that whole runs do not cover, if both devices have the same chip: the part for
    rates that a device file changes.

    Whole runs were measured on unchanged devices, and on devices that differ only in memory; a device file
    may set the rates of another die.
    """
    if device == other:
        return device_error(device, other, family)
    apart = relation(device, other) == transfer.SAME_SM
    least, most = (_error_of(kind, family) for kind in (transfer.SAME_DIE, transfer.SAME_SM))
    return math.sqrt(max(0.0, most**2 - least**2)) if apart else 0.0


def measured_device(device: Device, family: str) -> Device | None:
    """The bundled device on which a kernel was measured, if the device's file extends it and sets other
    rates.

    For collectives, the rates of links count; for all other kernels, the rates of the chip and its memory.
    """
    if device.own_calibration or not device.measured_as:
        return None
    home = library.load(device.measured_as)
    if KERNELS[family].group == "collectives":
        pairs = ((link, device.links.get(name)) for name, link in home.links.items())
        return home if any(there and here.Bps != there.Bps for here, there in pairs) else None
    ours, theirs = ((d.matrix_flops, d.vector_flops, d.memory_Bps) for d in (device, home))
    return home if ours != theirs else None


def engine_error(family: str) -> float:
    """The error that is added for a kernel of another engine."""
    return _error_of(transfer.ENGINE, family)


def _error_of(relation: str, family: str) -> float:
    known = transfer.table()[relation]
    group = KERNELS[family].group
    return known.get(group) or max(known.values())


def combine_errors(*errors: float) -> float:
    """Combine independent errors: the root of the sum of their squares.

    >>> combine_errors(0.03, 0.04), combine_errors(0.1, 0.0)
    (0.05, 0.1)
    """
    return math.hypot(*errors)


# Search for the kernel of a family


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A kernel with its calibration; `device` is the measured device."""

    family: str
    kernel: Kernel
    device: Device
    engine: str
    fitted: KernelParameters


@lru_cache(maxsize=1024)
def basis(device: Device, family: str, engine: str | None = None) -> KernelFit | None:
    """The kernel of a family on a device, from its own calibration or from the most similar device; None if
    there is none.

    If `engine` is None, the device's default engine is used; `sglang-triton` means sglang with its kernel
    triton. If an engine lacks a kernel, it comes from another engine: in the order of the file, with outdated
    engines last.
    """
    fits = (_fit_of(d, family, engine, last) for last in ((), DATED) for d in devices_by_nearness(device))
    found = next(filter(None, fits), None)
    return transfer_kernel(found, device) if found else None


def transfer_kernel(fit: KernelFit, device: Device) -> KernelFit:
    """The kernel on a device; it is transferred if it was fitted on another device."""
    if fit.device == device:
        return fit
    reach = _reach(device, fit.device)
    return replace(fit, kernel=transfer_to(fit.kernel, device, fit.device, reach, compute_dtype(fit.family)))


def check_families(device: Device) -> None:
    """HardwareError for a kernel family, or a parameter, that does not exist."""
    for engine, families in (device.own_calibration.engines if device.own_calibration else {}).items():
        for family, fitted in families.items():
            _kernel(family, fitted, f"{device.name}: calibration.{engine}.{family}")


def first_engine(device: Device) -> str | None:
    """The default engine; None without kernels."""
    whose = calibration_source(device)
    return whose.calibration.engine if whose and whose.calibration else None


@lru_cache(maxsize=256)
def kernel_sources(device: Device) -> tuple[str, ...]:
    """The engines, and variants of their kernels, in the calibrations of the device or similar ones.

    The first is the default; empty if no calibration can be transferred.
    """
    known = [d.calibration for d in devices_by_nearness(device) if d.calibration]
    firsts = (calibration.engine for calibration in known if not calibration.partial)
    others = (name for calibration in known for name in calibration.engines)
    return tuple(dict.fromkeys((*firsts, *others)))


def nearest_fit(device: Device, families: Sequence[str], engine: str | None = None) -> KernelFit | None:
    """The fit of the first family that is available; the last family is a substitute for the others.

    A kernel of the engine itself for a later family is preferred to another engine's kernel for the first
    family.
    """
    found = [b for family in families if (b := basis(device, family, engine))]
    own = (b for b in found if b.family != families[-1] and b.engine in (engine, kernel_engine(engine or "")))
    return next(own, None) or next(iter(found), None)


def _fit_of(
    device: Device, family: str, engine: str | None, dated: Sequence[str] = DATED
) -> KernelFit | None:
    """The engine's kernel, or else another engine's kernel on the device; an outdated engine is used only if
    it is in `dated`.
    """
    if device.calibration is None:
        return None
    engines, family = device.calibration.engines, device_family(family, device)
    asked = (engine, kernel_engine(engine)) if engine else ()
    known = (device.calibration.engine, *engines)
    for name in (*asked, *(name for name in known if name not in DATED or name in dated)):
        if fitted := engines.get(name, {}).get(family):
            where = f"{device.name}: calibration.{name}.{family}"
            return KernelFit(family, _kernel(family, fitted, where), device, name, fitted)
    return None


@lru_cache(maxsize=256)
def _reach(device: Device, other: Device) -> RateShares:
    """The share of datasheet rates that products reach on the device (or on the most similar one of its
    vendor), relative to the share on `other`.

    The measured peaks of both devices are used, because a file that extends another may set other rates.
    """
    from statistics import geometric_mean  # imported here, because the import is slow

    home = next((d for d in devices_by_nearness(device) if d.vendor == device.vendor and d.calibration), None)
    if device.vendor == other.vendor or home is None:
        return ALIKE
    home = library.load(home.measured_as) if home.measured_as else home
    shares: list[tuple[RateShares, RateShares]] = []
    for family in PRODUCTS:
        fits = _fit_of(home, family, None), _fit_of(other, family, None)
        here, there = (fit.kernel if fit else None for fit in fits)
        if isinstance(here, GemmKernel) and isinstance(there, GemmKernel):
            shares.append((reached_rates(here, home, family), reached_rates(there, other, family)))
    if not shares:
        return ALIKE
    matrix, memory = (
        min(1.0, geometric_mean(ours[i] / theirs[i] for ours, theirs in shares)) for i in (0, 1)
    )
    return RateShares(matrix, memory)


def device_family(family: str, device: Device) -> str:
    """The name of the family on this device; CPUs have separate kernels, and so have GPUs with CDNA (from
    gfx9 on).
    """
    kind = "cpu" if device.cores else "cdna" if device.isa.startswith("gfx9") else ""
    return f"{kind}_{family}" if f"{kind}_{family}" in KERNELS.own() else family


def kernel_engine(engine: str) -> str:
    """The engine to which one of several kernels belongs.

    >>> kernel_engine("sglang-triton"), kernel_engine("sglang")
    ('sglang', 'sglang')
    """
    return engine.partition("-")[0]


def engine_cpu(device: Device, engine: str | None = None) -> tuple[EngineCpu, float] | None:
    """The engine CPU time that the device's own file states, and its error."""
    calibration = device.calibration
    if calibration is None or (engine and engine not in calibration.engines):
        return None
    name = engine or calibration.engine
    found = (
        _fit_of(device, "host", name) if device_family("host", device) in calibration.engines[name] else None
    )
    return (found.kernel, found.fitted.error) if found and isinstance(found.kernel, EngineCpu) else None


def _kernel(family: str, fitted: KernelParameters, where: str) -> Kernel:
    if family not in KERNELS:
        near = suggest(family, KERNELS) or f", known are {', '.join(KERNELS)}"
        raise HardwareError(f"{where}: unknown family{near}")
    return KERNELS[family].of(fitted.parameters, where)


# Devices with symbolic rates

TERA, GIGA = 1e12, 1e9


class DatasheetRate(NamedTuple):
    """One rate: its key in the device file, the factor from its unit to SI, and its value."""

    key: str
    unit: float
    value: float


def rates(device: Device) -> Iterator[DatasheetRate]:
    """The rates in a device file: peaks, bandwidth, links."""
    for group, peaks in (("matrix", device.matrix_flops), ("vector", device.vector_flops)):
        yield from (DatasheetRate(f"{group}_tflops.{name}", TERA, peak) for name, peak in peaks.items())
    yield DatasheetRate("memory_GBps", GIGA, device.memory_Bps)
    yield from (DatasheetRate(f"links.{name}.GBps", GIGA, link.Bps) for name, link in device.links.items())
    if device.node and device.node.network:
        yield DatasheetRate("node.network.GBps", GIGA, device.node.network.Bps)


def peak_key(device: Device, unit: str) -> str:
    """The key of the peak rate of the unit that computes matrix products."""
    return f"{'matrix' if unit in device.matrix_flops else 'vector'}_tflops.{unit}"


def with_rates(device: Device, known: Mapping[str, Any]) -> Device:
    """The device with these rates; rates are given in SI units by key."""
    matrix, vector = (
        {name: known.get(f"{group}_tflops.{name}", peak) for name, peak in peaks.items()}
        for group, peaks in (("matrix", device.matrix_flops), ("vector", device.vector_flops))
    )
    links = {
        name: replace(link, Bps=known.get(f"links.{name}.GBps", link.Bps))
        for name, link in device.links.items()
    }
    node = device.node
    if node and node.network and "node.network.GBps" in known:
        node = replace(node, network=replace(node.network, Bps=known["node.network.GBps"]))
    peaks: dict[str, Any] = {"matrix_flops": matrix, "vector_flops": vector}
    memory = known.get("memory_GBps", device.memory_Bps)
    return replace(device, **peaks, memory_Bps=memory, links=links, node=node)


@lru_cache(maxsize=64)
def symbolic_device(device: Device) -> Device:
    """The device with all its rates as symbols of an `Outside`, by key."""
    usual = {rate.key: rate.value for rate in rates(device)}
    tape = ExternalTape(SCALARS, usual)
    return with_rates(device, {key: tape.symbol(key) for key in usual})


class CalibrationSource(NamedTuple):
    """The device of the calibration: the device itself (`own`) or a similar one; devices with nearly equal
    peaks have the same die.

    `usual` is the value of `key`; `alike` is the value if the multiprocessors of the other device are equal.
    `others` are two copies of the device with lower rates: one counts as the calibrated die, the other as
    another die.
    """

    key: str
    own: bool
    usual: float
    alike: float
    others: tuple[Device, Device]


@lru_cache(maxsize=64)
def transfer_source(device: Device) -> CalibrationSource | None:
    """The calibration source of a device, if its rates determine the similarity."""
    own = device.own_calibration is None and device.calibration is not None
    other = library.load(device.measured_as) if own else calibration_source(device)
    if other is None or relation(device, other) not in (SAME_DIE, SAME_SM):
        return None
    alike = other.matrix_peak("bf16")[0] / (other.multiprocessors or 1) * (device.multiprocessors or 1)
    usual, unit = device.matrix_peak("bf16")
    slower = {rate.key: rate.value / 2 for rate in rates(device)}
    key = peak_key(device, unit)
    die, chip = (with_rates(device, {**slower, key: peak}) for peak in (alike, alike / 4))
    return CalibrationSource(key, own, usual, alike, (die, chip))
