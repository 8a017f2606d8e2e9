"""Inference engines by version: a folder each, with a file for each measured range of versions.

A file contains only the differences from the file of the next newer range, or from the file that it extends.
If a section is a list by device, the first entry that matches the device applies (`ByDevice`). If a section
is listed by first release, the newest entry that is not later than the release applies (`Releases`).
`engine_sections.py` defines the sections.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.names import suggest
from llmir.base.registry import Kind
from llmir.base.values import Record

from . import schema
from .calibration import KernelParameters
from .device import Device
from .schema import Key, merge, parse

# --- Values by device ---


@dataclass(frozen=True, eq=False, kw_only=True)
class ByDevice(Record):
    """An entry for devices with at least `memory_bytes` and at least `tp` ranks, but not for the ISA
    `unless`.
    """

    memory_bytes: int = 0
    tp: int = 1
    unless: str = ""

    def fits(self, device: Device, tp: int) -> bool:
        """Whether the entry applies to a device with `tp` tensor-parallel ranks."""
        other_isa = not self.unless or device.isa != self.unless
        return device.capacity_bytes >= self.memory_bytes and tp >= self.tp and other_isa


B = TypeVar("B", bound=ByDevice)

KEYS = {
    "memory_GiB": Key("memory_bytes", schema.size, 2**30),
    "tp": Key("tp", schema.count),
    "unless": Key("unless", schema.label),
}


def first_match(known: Sequence[B], device: Device, tp: int) -> B:
    """The first rule that applies to a device; the last one applies to all."""
    return next(each for each in known if each.fits(device, tp))


def options(kind: Callable[..., B], keys: Mapping[str, Key]) -> Callable[[object, str, float], tuple[B, ...]]:
    """A reader of lists of these entries; HardwareError if the last entry does not apply to all devices."""
    keys = {**KEYS, **keys}

    def read(value: object, where: str, unit: float) -> tuple[B, ...]:
        if not isinstance(value, list) or not value:
            raise HardwareError(f"{where} must be a list by device, got {schema.show(value)}")
        found = tuple(kind(**schema.read_fields(each, f"{where}[{i}]", keys)) for i, each in enumerate(value))
        if found[-1].memory_bytes or found[-1].unless or found[-1].tp > 1:
            raise HardwareError(f"{where}: the last entry must apply to all devices")
        return found

    return read


# --- Values by release ---

S = TypeVar("S")

NUMBERS = r"v?(\d{1,6}(?:\.\d{1,6})*)"
VERSION = NUMBERS + r"(?:[.+_-]?[a-zA-Z][\w.+-]*|[+_-][\w.+-]*)?"  # and rc6.post1, .dev12+g1a2b, -1


def number(version: str) -> tuple[int, ...]:
    """The numbers of a version; ValueError for another text.

    >>> number("0.12.0"), number("v1.2.0rc6.post1")
    ((0, 12, 0), (1, 2, 0))
    """
    found = re.fullmatch(VERSION, version.strip())
    if not found:
        raise ValueError(version)
    return tuple(map(int, found[1].split(".")))


@dataclass(frozen=True, eq=False)
class Releases(Record, Generic[S]):
    """The values of a section by first release, the newest first."""

    known: tuple[tuple[str, S], ...]

    def at(self, version: str = "") -> S:
        """The value for a version; by default the newest value, and for versions before all entries the
        oldest.
        """
        wanted = number(version or self.known[0][0])
        fit = (value for first, value in self.known if number(first) <= wanted)
        return next(fit, self.known[-1][1])


def releases(value: object, where: str, read: Callable[[Mapping[Any, Any], str], S]) -> Releases[S]:
    """Read a section by first release; HardwareError for invalid releases or values."""
    said = schema.mapping(value, where)
    for first in said:
        if not isinstance(first, str) or not re.fullmatch(NUMBERS, first):
            wanted = 'the first release of each, such as "0.17"'
            raise HardwareError(f"{where}: expected {wanted}, got {schema.show(first)}")
    below: dict[Any, Any] = {}
    found = []
    for first in sorted(said, key=number, reverse=True):
        below = merge(below, schema.mapping(said[first], f"{where}.{first}"))
        found.append((first, read(below, f"{where}.{first}")))
    return Releases(tuple(found))


def records(kind: Callable[..., S], keys: Mapping[str, schema.Key]) -> Callable[[object, str], Releases[S]]:
    """A reader of sections by release in which each value is a record with these keys."""

    def read(said: Mapping[Any, Any], where: str) -> S:
        return kind(**schema.read_fields(said, where, keys))

    return lambda value, where: releases(value, where, read)


# --- Engines and their files ---

FOLDER = Path(__file__).parent / "engines"


# Readers of the sections of an engine file, by name: functions of the value and its path that return an
# immutable value of a separate class. Each is defined in a module of `hw` with this name.
SECTIONS: Kind[Callable[[object, str], object]] = Kind("engine section", "llmir.hw.engine_sections")
section = SECTIONS.register
ENGINE_CPU_FAMILIES = (
    "host",
    "overlapped_host",
    "async_host",
    "eager_host",
)  # families of engine CPU times on GPUs; a file has one of them
_GONE = "interference"  # a former parameter of CPU times, which is ignored now
_OTHERS = "other_versions_percent"
_ALONE = ("origin", "rows", "error_percent")  # a file with these keys at the top contains only a CPU time


@dataclass(frozen=True, eq=False)
class Engine(Record):
    """An engine in a range of versions: its fitted CPU time, and the other sections of its file.

    `family` is the kernel family of its CPU time. `versions` contains the first and the last measured version
    (empty for a user's file), and `release` the requested version, if any. `kernels` is the engine whose
    kernels it runs, if known. `elsewhere` is the mean error of the CPU time on runs of other versions.
    `title` is the official spelling, such as vLLM.
    """

    name: str
    versions: tuple[str, ...]
    host: KernelParameters
    sections: Mapping[str, Any] = field(default_factory=dict)
    kernels: str = ""
    elsewhere: float = 0.0
    release: str = ""
    family: str = "host"
    title: str = ""

    @property
    def asked(self) -> str:
        """The requested release, if it is in no range and this range is the nearest one."""
        return self.release if self.release and distance(self, self.release) else ""

    @property
    def error(self) -> float:
        """The mean error of whole runs that the CPU fit does not use: of these versions, or of others."""
        return max(self.host.error, self.elsewhere) if self.asked else self.host.error

    def section(self, kind: type[S]) -> S | None:
        """The section of a class at the release; None if the file lacks it."""
        return next((value for value in _engine_sections(self) if isinstance(value, kind)), None)

    @property
    def range(self) -> str:
        """`0.11–0.12`, or one version; empty for a user's file."""
        return "–".join(dict.fromkeys(self.versions))

    def __str__(self) -> str:
        """`vllm 0.18`, with the requested release if it is outside the measured ranges."""
        instead = f", nearest to {self.asked}" if self.asked else ""
        return f"{self.name} {self.range}".strip() + instead


@functools.lru_cache(maxsize=256)
def _engine_sections(engine: Engine) -> tuple[Any, ...]:
    """The sections of an engine at its release."""
    release = engine.release or "".join(engine.versions[-1:])
    return tuple(v.at(release) if isinstance(v, Releases) else v for v in engine.sections.values())


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the bundled engines, sorted."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


def check_engine(name: str, more: tuple[str, ...] = ()) -> str:
    """The name of a known engine; HardwareError for an unknown one, which may suggest one of `more`."""
    if name not in names():
        near = suggest(name, (*names(), *more)) or f", known are {', '.join(names())}"
        raise HardwareError(f"unknown engine {schema.show(name)}{near}")
    return name


@functools.cache
def ranges(name: str) -> tuple[Engine, ...]:
    """The known ranges of a bundled engine, the newest first."""
    return tuple(_engine(doc, name, where, name) for where, doc in _documents(name))


@functools.cache
def engine_at(name: str, version: str | None = None) -> Engine:
    """The bundled engine at a version, by default the newest range; else the nearest version.

    HardwareError for an invalid version.
    """
    engine = ranges(name)[_place(name, version)]
    return engine if version is None else replace(engine, release=version)


def read_engine(path: Path) -> Engine:
    """The engine of a user's file, which may `extend` a bundled one, such as vllm@0.12."""
    doc, kernels = parse(path), ""
    if any(key in doc for key in _ALONE):
        doc = {"host": doc}
    if "extend" in doc:
        kernels, _ = engine_spelling(schema.text(doc["extend"], f"{path.name}: extend", 1))
        doc = _laid({}, {"versions": None, **doc}, path.name)
    return _engine(doc, path.name, path.name, kernels)


@functools.cache
def _documents(name: str) -> tuple[tuple[str, dict[Any, Any]], ...]:
    """The files of an engine with the keys that they extend, the newest versions first."""
    files = sorted((FOLDER / name).glob("*.yaml"), key=lambda file: number(file.stem), reverse=True)
    found: list[tuple[str, dict[Any, Any]]] = []
    for file in files:
        where = f"{name}/{file.name}"
        found.append((where, _laid(found[-1][1] if found else {}, parse(file), where)))
    return tuple(found)


def _laid(newer: dict[Any, Any], own: dict[Any, Any], where: str) -> dict[Any, Any]:
    """Merge the keys of a file over the keys of the file that it extends, or of the next newer versions."""
    if "extend" in own:
        name, version = engine_spelling(schema.text(own["extend"], f"{where}: extend", 1))
        newer = _documents(check_engine(name))[_place(name, version)][1]
    if any(family in own for family in ENGINE_CPU_FAMILIES):
        newer = {key: value for key, value in newer.items() if key in own or key not in ENGINE_CPU_FAMILIES}
    return merge(newer, {key: value for key, value in own.items() if key != "extend"})


def _engine(doc: Mapping[Any, Any], name: str, where: str, kernels: str) -> Engine:
    said = dict(doc)
    versions = _versions(said.pop("versions", []), f"{where}: versions")
    family = next((key for key in ENGINE_CPU_FAMILIES if key in said), None)
    if family is None:
        raise HardwareError(f"{where}: missing key host")
    of_host = dict(schema.mapping(said.pop(family), f"{where}: {family}"))
    of_host.pop(_GONE, None)
    others = of_host.pop(_OTHERS, None)
    elsewhere = 0.0 if others is None else schema.number(others, f"{where}: {family}.{_OTHERS}", 0.01)
    host = schema.kernel_parameters(of_host, f"{where}: {family}")
    title = schema.label(said.pop("title", name), f"{where}: title", 1)
    for key in said:
        if key not in SECTIONS:
            may = ("versions", "extend", "title", *ENGINE_CPU_FAMILIES, *SECTIONS)
            near = suggest(str(key), may) or f", known are {', '.join(may)}"
            raise HardwareError(f"{where}: unknown key {schema.show(key)}{near}")
    sections = {key: SECTIONS[key](value, f"{where}: {key}") for key, value in said.items()}
    return Engine(name, versions, host, sections, kernels, elsewhere=elsewhere, family=family, title=title)


def _versions(value: object, where: str) -> tuple[str, ...]:
    """The first and the last version of a range, or the only version."""
    found = value if isinstance(value, list) else [value]
    if len(found) > 2 or not all(isinstance(v, str) and re.fullmatch(VERSION, v) for v in found):
        wanted = 'the first and the last, such as ["0.11", "0.12"]'
        raise HardwareError(f"{where} must be {wanted}, got {schema.show(value)}")
    return tuple(found)


def _place(name: str, version: str | None) -> int:
    """The range of an engine that is nearest to a version; if several are equally near, the newest."""
    if version is None:
        return 0
    distances = [distance(engine, version) for engine in ranges(name)]
    return distances.index(min(distances))


def engine_spelling(engine: str) -> tuple[str, str | None]:
    """Split a name from its version.

    >>> engine_spelling("vllm@0.12"), engine_spelling("vllm")
    (('vllm', '0.12'), ('vllm', None))
    """
    name, at, version = engine.partition("@")
    return name, version if at else None


def distance(engine: Engine, version: str) -> int:
    """The distance of a version from the range in minor versions; a major version counts as a thousand minor
    ones.
    """
    try:
        asked = number(version)
    except ValueError:
        said = ", ".join(each.range for each in ranges(engine.name))
        got = schema.show(version)
        raise HardwareError(f"engine {engine.name}: {got} is no version; known are {said}") from None
    first, last = number(engine.versions[0]), number(engine.versions[-1])
    if first <= asked[: len(first)] and asked[: len(last)] <= last:
        return 0
    minor, edge = ((1000 * v[0] + (*v, 0)[1]) for v in (asked, first if asked < first else last))
    return max(1, abs(minor - edge))
