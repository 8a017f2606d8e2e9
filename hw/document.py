"""A device file as plain data: read without running anything, laid over another, each number cited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmir.base import readers
from llmir.base.errors import HardwareError, UnreadableError
from llmir.base.names import suggest
from llmir.base.reading import contents

from .schema import FIELDS, field_path, mapping, show, text


def parse(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; HardwareError if it cannot be read, is no mapping or repeats a key."""
    if path.exists() and not path.is_file():
        raise HardwareError(f"{path.name}: not a file{' but a folder' if path.is_dir() else ''}")
    try:
        doc = readers.load(contents(path, readers.BUDGET))
    except UnreadableError as error:
        raise HardwareError(f"{path.name}: {error}") from None
    return checked(doc, path.name)


def checked(doc: object, where: str) -> dict[Any, Any]:
    """The keys of a device, if they are a mapping and not nested too deep; HardwareError names `where`."""
    _check_depth(found := mapping(doc, f"{where}: a hardware file"), where, 4)
    return dict(found)


def merge(below: Mapping[Any, Any], above: Mapping[Any, Any]) -> dict[Any, Any]:
    """`above` laid over `below`, mapping by mapping; a null takes the key away.

    >>> merge({"memory_GiB": 80, "runs_as": {"a": "b", "c": "d"}}, {"memory_GB": 94, "runs_as": {"a": None}})
    {'runs_as': {'c': 'd'}, 'memory_GB': 94}
    """
    # Two keys of one field, such as memory in GB and in GiB, are one thing said in two units.
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
    """The source of each value by dotted field: the nearest stated one, or else `unstated`.

    `stated` maps keys to a source; a key may be dotted, and several share a source when joined by commas.
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
    # Anchors can make a few lines of YAML endlessly deep, or wide beyond any memory.
    for key, value in doc.items():
        if isinstance(value, Mapping):
            if levels == 1:
                raise HardwareError(f"{where}: key {show(key)} is nested too deep, four levels are the most")
            _check_depth(value, where, levels - 1)
