"""The keys of a device file, the checks of their values, and the file as plain data.

`DEVICE`, `LINK` and `NODE` are tables of keys; each names its field, its kind of value and its factor to SI
units. A file is read without executing anything, merged over the file that it extends, and each number gets
its source.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from llmir.base import readers
from llmir.base.arguments import parse_field as read_value
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, UnreadableError
from llmir.base.names import plain, suggest
from llmir.base.readers import read_bytes
from llmir.ir.core.dtype import WIDER

from .calibration import Calibration, KernelParameters
from .link import Link, MachineNode

# --- Keys and values ---


@dataclass(frozen=True)
class Key:
    """One key of a file: the field that it fills, the kind of its value, and the factor to SI units."""

    field: str
    kind: Callable[[object, str, float], object]
    unit: float = 1.0
    required: bool = False


def text(value: object, where: str, unit: float) -> str:
    """A name."""
    if not isinstance(value, str) or not value.strip():
        raise HardwareError(f"{where} must be text, got {show(value)}")
    return value


def label(value: object, where: str, unit: float) -> str:
    """A name for headers, as one printable line."""
    shown = plain(text(value, where, unit))
    if not shown:
        raise HardwareError(f"{where} must be text that can be shown, got {show(value)}")
    return shown


def number(value: object, where: str, unit: float) -> float:
    """A positive finite number, in SI units."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # YAML reads 9.89e14 as text, the most common mistake here.
        raise HardwareError(f"{where} must be a number above 0, got {type(value).__name__} {show(value)}")
    si = float(Decimal(str(value)) * Decimal(str(unit)))  # 66.9e12, which 66.9 * 1e12 is not
    if not 0 < si < math.inf:
        raise HardwareError(f"{where} must be a number above 0, got {show(value)}")
    return si


def amount(value: object, where: str, unit: float) -> float:
    """A finite number that is not below 0, in SI units."""
    return 0.0 if value == 0 and not isinstance(value, bool) else number(value, where, unit)


def size(value: object, where: str, unit: float) -> int:
    """A positive number of bytes."""
    return max(1, round(number(value, where, unit)))


def count(value: object, where: str, unit: float) -> int:
    """A positive whole number."""
    if number(value, where, unit) % 1:
        raise HardwareError(f"{where} must be an integer, got {show(value)}")
    return int(number(value, where, unit))


def spellings(value: object, where: str, unit: float) -> tuple[str, ...]:
    """Other names of a device."""
    if not isinstance(value, list) or not value:
        raise HardwareError(f"{where} must be a list of names, got {show(value)}")
    return tuple(label(name, where, unit) for name in value)


def flag(value: object, where: str, unit: float) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise HardwareError(f"{where} must be true or false, got {show(value)}")
    return value


def peaks(value: object, where: str, unit: float) -> dict[str, float]:
    """Peak rates by dtype, in FLOP/s."""
    return {_dtype(d, where): number(v, f"{where}.{d}", unit) for d, v in mapping(value, where).items()}


def renames(value: object, where: str, unit: float) -> dict[str, str]:
    """The dtype whose unit computes each dtype."""
    pairs = mapping(value, where).items()
    return {_dtype(d, where): _dtype(v, f"{where}.{show(d)}") for d, v in pairs}


def links(value: object, where: str, unit: float) -> dict[str, Link]:
    """Links by name."""
    pairs = mapping(value, where).items()
    return {text(name, where, unit): network(link, f"{where}.{name}", unit) for name, link in pairs}


def network(value: object, where: str, unit: float) -> Link:
    """One link."""
    return Link(**read_fields(value, where, LINK))


def link_rate(said: str, name: str = "link") -> Link:
    """Parse a link: GB/s each way and optionally µs per hop; HardwareError for another text.

    >>> link_rate("12.5GBps").Bps
    12500000000.0
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*GBps\s*(?:,\s*([\d.]+)\s*us\s*)?", said, re.IGNORECASE)
    if not match:
        raise HardwareError(f"{name}: expected a rate and a latency such as 25GBps,5us, got {said[:40]!r}")
    numbers = {"GBps": match[1], "latency_us": match[2]}
    doc = {key: read_value(text) for key, text in numbers.items() if text is not None}
    return network(doc, name, 1)


def node(value: object, where: str, unit: float) -> MachineNode:
    """The box that the devices are in."""
    return MachineNode(**read_fields(value, where, NODE))


def calibration(value: object, where: str, unit: float) -> Calibration:
    """Read the fitted kernels by engine and family; `engine` names the default."""
    said = dict(mapping(value, where))
    first = text(said.pop("engine", None), f"{where}.engine", unit)
    engines = {str(name): families(of, f"{where}.{name}") for name, of in said.items()}
    if first not in engines:
        raise HardwareError(f"{where}.engine is {show(first)}, calibrated are {', '.join(engines) or 'none'}")
    return Calibration(first, engines)


def families(value: object, where: str) -> Mapping[str, KernelParameters]:
    """Read the fitted parameters of each kernel family."""
    return {str(name): kernel_parameters(of, f"{where}.{name}") for name, of in mapping(value, where).items()}


def kernel_parameters(value: object, where: str) -> KernelParameters:
    """Parameters with their origin, the number of rows and the error."""
    said = dict(mapping(value, where))
    about = {key: said.pop(key, None) for key in ("origin", "rows", "error_percent")}
    parameters = {str(key): amount(v, f"{where}.{key}", 1) for key, v in said.items()}
    return KernelParameters(
        mapping(parameters, where),
        text(about["origin"], f"{where}.origin", 1),
        count(about["rows"], f"{where}.rows", 1),
        number(about["error_percent"], f"{where}.error_percent", 0.01),
    )


DEVICE = {
    "name": Key("name", label, required=True),
    "aliases": Key("aliases", spellings),
    "vendor": Key("vendor", label),
    "architecture": Key("architecture", label),
    "isa": Key("isa", label),
    "matrix_tflops": Key("matrix_flops", peaks, 1e12),
    "vector_tflops": Key("vector_flops", peaks, 1e12, required=True),
    "memory_GiB": Key("memory_bytes", size, 2**30, required=True),
    "memory_GB": Key("memory_bytes", size, 1e9, required=True),
    "physical_GiB": Key("physical_bytes", size, 2**30),
    "memory_GBps": Key("memory_Bps", number, 1e9, required=True),
    "memory_kind": Key("memory_kind", label),
    "multiprocessors": Key("multiprocessors", count),
    "cores": Key("cores", count),
    "l2_MiB": Key("l2_bytes", size, 2**20),
    "links": Key("links", links),
    "node": Key("node", node),
    "hides_launches": Key("hides_launches", flag),
    "runs_as": Key("runs_as", renames),
    "price_per_hour_usd": Key("price_per_hour_usd", number),
    "board_power_W": Key("board_power_W", number),
    "calibration": Key("own_calibration", calibration),
}
LINK = {
    "GBps": Key("Bps", number, 1e9, required=True),
    "latency_us": Key("latency_s", number, 1e-6),
    "ranks": Key("ranks", count),
    "direct": Key("direct", flag),
    "peers": Key("peers", count),
    "reduces": Key("reduces", flag),
    "host_GBps": Key("host_Bps", number, 1e9),
}
NODE = {
    "name": Key("name", label, required=True),
    "devices": Key("devices", count, required=True),
    "network": Key("network", network),
}
# Additional keys of a file: its base, and the sources of its numbers.
ABOUT = ("extend", "sources")
FIELDS = {key: spec.field for table in (DEVICE, LINK, NODE) for key, spec in table.items()}


def read_fields(doc: object, where: str, table: Mapping[str, Key]) -> dict[str, Any]:
    """Read values by field, in SI units; HardwareError names the key, the value and the allowed values."""
    found: dict[str, Any] = {}
    for key, value in mapping(doc, where).items():
        if key not in table:
            known = (*table, *ABOUT) if table is DEVICE else tuple(table)
            near = suggest(str(key), known) or f", known are {', '.join(known)}"
            raise HardwareError(f"{where}: unknown key {show(key)}{near}")
        spec = table[key]
        if spec.field in found:
            same = " and ".join(k for k, s in table.items() if s.field == spec.field)
            raise HardwareError(f"{where}: give one of {same}, not both")
        found[spec.field] = spec.kind(value, f"{where}: {key}", spec.unit)
    for field in dict.fromkeys(spec.field for spec in table.values() if spec.required):
        if field not in found:
            missing = " or ".join(k for k, s in table.items() if s.field == field)
            raise HardwareError(f"{where}: missing key {missing}")
    return found


def mapping(value: object, where: str) -> Mapping[Any, Any]:
    """The value, if it is a non-empty mapping."""
    if not isinstance(value, Mapping) or not value:
        raise HardwareError(f"{where} must be a mapping of keys to values, got {show(value)}")
    return value


def show(value: object) -> str:
    """A value as an error message shows it: on one short line."""
    return reprlib.repr(value)


def field_path(key: str) -> str:
    """The field that a dotted key fills, also with dots.

    >>> field_path("links.nvlink.GBps"), field_path("matrix_tflops.fp8")
    ('links.nvlink.Bps', 'matrix_flops.fp8')
    """
    return ".".join(FIELDS.get(part, part) for part in key.split("."))


def _dtype(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in WIDER:
        near = suggest(str(value), WIDER)
        raise HardwareError(f"{where}: unknown dtype {show(value)}, known are {', '.join(WIDER)}{near}")
    return value


# --- Files ---


def parse(path: Path) -> dict[Any, Any]:
    """Read the mapping in a YAML file; HardwareError if it is unreadable, not a mapping, or repeats a key."""
    if path.exists() and not path.is_file():
        raise HardwareError(f"{path.name}: {'is a folder, not a file' if path.is_dir() else 'is not a file'}")
    try:
        doc = readers.load_yaml(read_bytes(path, readers.BUDGET))
    except UnreadableError as error:
        raise HardwareError(f"{path.name}: {error}") from None
    return check_keys(doc, path.name)


def check_keys(doc: object, where: str) -> dict[Any, Any]:
    """The keys of a device, if they are a mapping that is not nested too deeply; HardwareError contains
    `where`.
    """
    _check_depth(found := mapping(doc, f"{where}: a hardware file"), where, 4)
    return dict(found)


def merge(below: Mapping[Any, Any], above: Mapping[Any, Any]) -> dict[Any, Any]:
    """Merge `above` over `below`, mapping by mapping; null deletes a key.

    >>> merge({"memory_GiB": 80, "runs_as": {"a": "b", "c": "d"}}, {"memory_GB": 94, "runs_as": {"a": None}})
    {'runs_as': {'c': 'd'}, 'memory_GB': 94}
    """
    # Two keys of one field, such as memory in GB and in GiB, are one fact in two units.
    said = {FIELDS.get(key, key) for key in above}
    merged = {k: v for k, v in below.items() if k in above or FIELDS.get(k, k) not in said}
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and value:
            merged[key] = merge(under if isinstance(under, Mapping) else {}, value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def leaves(doc: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """The dotted path of every value that is not a mapping.

    >>> list(leaves({"name": "X", "links": {"pcie": {"GBps": 32}}}))
    ['name', 'links.pcie.GBps']
    """
    for key, value in doc.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        elif value is not None:
            yield path


def cite(doc: Mapping[Any, Any], stated: object, where: str, unstated: str) -> dict[str, str]:
    """The source of each value, by dotted field: the nearest source that is stated, or else `unstated`.

    `stated` maps keys to sources; a key may have dots, and several keys that are joined by commas share a
    source.
    """
    sources: dict[str, str] = {}
    if stated:
        for keys, source in mapping(stated, f"{where}: sources").items():
            for key in map(str.strip, str(keys).split(",")):
                if key in sources:
                    raise HardwareError(f"{where}: sources names {show(key)} twice")
                sources[key] = text(source, f"{where}: sources.{key}", 1)
    found = {}
    unused = set(sources)
    for leaf in leaves(doc):
        parts = leaf.split(".")
        above = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
        unused.difference_update(above)
        found[field_path(leaf)] = next((sources[key] for key in above if key in sources), unstated)
    if unused:
        key = min(unused)
        near = suggest(key, map(str, doc))
        raise HardwareError(f"{where}: sources names {show(key)}, which the file does not set{near}")
    return found


def _check_depth(doc: Mapping[Any, Any], where: str, levels: int) -> None:
    # Anchors can make a few lines of YAML endlessly deep, or larger than any memory.
    for key, value in doc.items():
        if isinstance(value, Mapping):
            if levels == 1:
                raise HardwareError(
                    f"{where}: key {show(key)} is nested too deeply; the limit is four levels"
                )
            _check_depth(value, where, levels - 1)
