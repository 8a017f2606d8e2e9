"""Engines by version: a folder each, and in it a file for each range of versions that was measured.

A file says what differs from the file of the next newer range, or from what it extends.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.names import suggest
from llmir.base.registry import Kind
from llmir.base.values import Record

from . import schema
from .calibration import Fitted
from .document import merge, parse
from .releases import VERSION, Releases, number

FOLDER = Path(__file__).parent / "engines"

S = TypeVar("S")

# What reads a section of an engine's file, by name: a function of the value and of where it stands, which
# returns an immutable value of a class of its own. Each is defined in a module of `hw` of that name.
SECTIONS: Kind[Callable[[object, str], object]] = Kind("engine section", "llmir.hw")
section = SECTIONS.register
HOSTS = ("host", "overlapped_host", "eager_host")  # families of hosts of GPUs, of which a file has one
_GONE = "interference"  # of a host's files until chunks were priced beside decodes; means nothing now
_OTHERS = "other_versions_percent"
_ALONE = ("origin", "rows", "error_percent")  # a file that says these on top is of a host alone


@dataclass(frozen=True, eq=False)
class Engine(Record):
    """An engine in a range of versions: its host, which was fitted, and other sections of its file.

    `family` is that of its host. `versions` are the first and the last that were measured, none of a file of
    the user's own; `release` is the one that was asked for, if any. `kernels` names whose kernels it runs,
    where that is known; `elsewhere` is the mean error of the host on runs of other versions.
    """

    name: str
    versions: tuple[str, ...]
    host: Fitted
    sections: Mapping[str, Any] = field(default_factory=dict)
    kernels: str = ""
    elsewhere: float = 0.0
    release: str = ""
    family: str = "host"

    @property
    def asked(self) -> str:
        """The release, if it lies in no range, so that this is the nearest."""
        return self.release if self.release and distance(self, self.release) else ""

    @property
    def error(self) -> float:
        """The mean error of whole runs that the host was not fitted to: of such versions, or of others."""
        return max(self.host.error, self.elsewhere) if self.asked else self.host.error

    def section(self, kind: type[S]) -> S | None:
        """What the file says in the section of that class, at the release; None where it says nothing."""
        return next((value for value in _said(self) if isinstance(value, kind)), None)

    @property
    def range(self) -> str:
        """`0.11–0.12`, or one version; empty of a file of the user's own."""
        return "–".join(dict.fromkeys(self.versions))

    def __str__(self) -> str:
        """`vllm 0.18`, and which version that is the nearest to, if it was not measured."""
        instead = f", nearest to {self.asked}" if self.asked else ""
        return f"{self.name} {self.range}".strip() + instead


@functools.lru_cache(maxsize=256)
def _said(engine: Engine) -> tuple[Any, ...]:
    """What an engine's sections say at its release."""
    release = engine.release or "".join(engine.versions[-1:])
    return tuple(v.at(release) if isinstance(v, Releases) else v for v in engine.sections.values())


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the bundled engines, sorted."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


def known(name: str, more: tuple[str, ...] = ()) -> str:
    """The name, if there is such an engine; HardwareError, which may mean one of `more` too."""
    if name not in names():
        near = suggest(name, (*names(), *more)) or f", known are {', '.join(names())}"
        raise HardwareError(f"unknown engine {schema.show(name)}{near}")
    return name


@functools.cache
def ranges(name: str) -> tuple[Engine, ...]:
    """What is known of a bundled engine, the newest versions first."""
    return tuple(_engine(doc, name, where, name) for where, doc in _documents(name))


@functools.cache
def at(name: str, version: str | None = None) -> Engine:
    """The bundled engine at this version, by default the newest range; else that of the nearest version.

    HardwareError for what is no version.
    """
    engine = ranges(name)[_place(name, version)]
    return engine if version is None else replace(engine, release=version)


def read(path: Path) -> Engine:
    """The engine of a user's file, which may `extend` a bundled one, such as vllm@0.12."""
    doc, kernels = parse(path), ""
    if any(key in doc for key in _ALONE):
        doc = {"host": doc}
    if "extend" in doc:
        kernels, _ = spelled(schema.text(doc["extend"], f"{path.name}: extend", 1))
        doc = _laid({}, {"versions": None, **doc}, path.name)
    return _engine(doc, path.name, path.name, kernels)


@functools.cache
def _documents(name: str) -> tuple[tuple[str, dict[Any, Any]], ...]:
    """The files of an engine with all that they take from others, the newest versions first."""
    files = sorted((FOLDER / name).glob("*.yaml"), key=lambda file: number(file.stem), reverse=True)
    found: list[tuple[str, dict[Any, Any]]] = []
    for file in files:
        where = f"{name}/{file.name}"
        found.append((where, _laid(found[-1][1] if found else {}, parse(file), where)))
    return tuple(found)


def _laid(newer: dict[Any, Any], own: dict[Any, Any], where: str) -> dict[Any, Any]:
    """A file's keys over those of what it extends, or of the next newer versions."""
    if "extend" in own:
        name, version = spelled(schema.text(own["extend"], f"{where}: extend", 1))
        newer = _documents(known(name))[_place(name, version)][1]
    if any(family in own for family in HOSTS):
        newer = {key: value for key, value in newer.items() if key in own or key not in HOSTS}
    return merge(newer, {key: value for key, value in own.items() if key != "extend"})


def _engine(doc: Mapping[Any, Any], name: str, where: str, kernels: str) -> Engine:
    said = dict(doc)
    versions = _versions(said.pop("versions", []), f"{where}: versions")
    family = next((key for key in HOSTS if key in said), None)
    if family is None:
        raise HardwareError(f"{where}: missing key host")
    of_host = dict(schema.mapping(said.pop(family), f"{where}: {family}"))
    of_host.pop(_GONE, None)
    others = of_host.pop(_OTHERS, None)
    elsewhere = 0.0 if others is None else schema.number(others, f"{where}: {family}.{_OTHERS}", 0.01)
    host = schema.fitted(of_host, f"{where}: {family}")
    for key in said:
        if key not in SECTIONS:
            may = ("versions", "extend", *HOSTS, *SECTIONS)
            near = suggest(str(key), may) or f", known are {', '.join(may)}"
            raise HardwareError(f"{where}: unknown key {schema.show(key)}{near}")
    sections = {key: SECTIONS[key](value, f"{where}: {key}") for key, value in said.items()}
    return Engine(name, versions, host, sections, kernels, elsewhere=elsewhere, family=family)


def _versions(value: object, where: str) -> tuple[str, ...]:
    """The first and the last of a range, or one, or none."""
    found = value if isinstance(value, list) else [value]
    if len(found) > 2 or not all(isinstance(v, str) and re.fullmatch(VERSION, v) for v in found):
        wanted = 'the first and the last, such as ["0.11", "0.12"]'
        raise HardwareError(f"{where} must be {wanted}, got {schema.show(value)}")
    return tuple(found)


def _place(name: str, version: str | None) -> int:
    """Which of an engine's ranges is nearest to a version; the newest of equally near ones."""
    if version is None:
        return 0
    distances = [distance(engine, version) for engine in ranges(name)]
    return distances.index(min(distances))


def spelled(engine: str) -> tuple[str, str | None]:
    """A name and the version asked for.

    >>> spelled("vllm@0.12"), spelled("vllm")
    (('vllm', '0.12'), ('vllm', None))
    """
    name, at, version = engine.partition("@")
    return name, version if at else None


def distance(engine: Engine, version: str) -> int:
    """How far a version lies from the range: minor versions, of which a major one is a thousand."""
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
