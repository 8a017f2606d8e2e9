"""Devices, clusters and engines by name or by file.

A file is YAML with units in its keys and a source for each number. It may `extend` a bundled device or
another file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmir.base import arguments
from llmir.base.errors import HardwareError, InputError
from llmir.base.names import normalize, suggest

from . import calibration_files, schema
from . import engine as versions
from .device import Device
from .engine import Engine
from .link import BOX, MachineNode
from .prices import at_prices, list_prices
from .schema import check_keys, cite, leaves, merge, parse

__all__ = [
    "calibrated_devices",
    "cluster",
    "clusters",
    "default_node",
    "engine",
    "engines",
    "from_keys",
    "join",
    "load",
    "names",
    "with_prices",
]

_DEVICES, _CLUSTERS = (Path(__file__).parent / name for name in ("devices", "clusters"))

# The aliases of a bundled file, which are read without parsing the file.
_ALIASES = re.compile(r"^aliases: \[([^]]*)\]", re.MULTILINE)
_BRANDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "google", "cloud", "intel")


def load(device: str | os.PathLike[str] | Device) -> Device:
    """Load a device or cluster by name (ignoring case, dashes and brand) or YAML file; a Device is returned
    unchanged.

    A file may `extend` a known device or another file, and then contains only differences. HardwareError for
    an unknown name, an unreadable file, and a wrong key or number.

    >>> load("nvidia/H100_SXM") is load("h100")
    True
    """
    if isinstance(device, Device):
        return device
    if not isinstance(device, (str, os.PathLike)):
        raise HardwareError(f"a device is a name or a YAML file, got {schema.show(device)}")
    spelled = os.fsdecode(device)
    path = _as_path(spelled)
    return _bundled(_stem(spelled)) if path is None else _read_device(path, f"user file {path.name}")


def from_keys(fields: Mapping[str, Any], name: str = "device") -> Device:
    """A device of the keys of a YAML file, which may `extend` a bundled one by name; errors call it `name`.

    HardwareError as of a file.

    >>> from_keys({"extend": "h100-sxm", "name": "H100 96GB", "memory_GB": 96}).memory_bytes
    96000000000
    """
    name = arguments.text("name", name, error=HardwareError)
    return _device(*_laid(check_keys(fields, name), name, None, name, (), ""), name)


def cluster(name: str | os.PathLike[str] | Device) -> Device:
    """Load a cluster, a device in a node. HardwareError for a single device.

    >>> cluster("dgx-h100").node.devices
    8
    """
    found = load(name)
    if found.node is None:
        raise HardwareError(f"{found.name} is a device, not a cluster; clusters: {', '.join(clusters())}")
    return found


def default_node(device: str | os.PathLike[str] | Device) -> MachineNode:
    """The node of the bundled cluster of these devices that has a network; otherwise a node of eight devices
    without one.

    >>> default_node("h100-sxm").name, default_node("l40s").network
    ('DGX-H100', None)
    """
    return _default_node(load(device).measured_as)


@functools.lru_cache(maxsize=64)
def _default_node(measured_as: str) -> MachineNode:
    known = (load(name) for name in clusters())
    alike = (c.node for c in known if c.measured_as == measured_as and c.node and c.node.network)
    return replace(next(alike, MachineNode(f"box of {BOX}", BOX)), assumed=True)


def join(device: str | os.PathLike[str] | Device, network: str) -> Device:
    """The device in its node, or the default node, with nodes connected by `network`: GB/s each way, µs per
    hop.

    The network has switches; HardwareError for an invalid rate.

    >>> join("rtx4090-pcie-8", "25GBps,5us").node.network.Bps
    25000000000.0
    """
    found, said = load(device), arguments.text("network", network, error=HardwareError)
    link = replace(schema.link_rate(said, "network"), direct=True)
    node = replace(found.node or default_node(found), network=link, assumed=False)
    sources = dict.fromkeys(("node.network.Bps", "node.network.latency_s"), f"stated as {said.strip()}")
    return replace(found, node=node, sources={**found.sources, **sources})


def with_prices(
    devices: Iterable[str | os.PathLike[str] | Device], prices: Mapping[str, float]
) -> list[Device]:
    """The devices with the prices in USD per hour in `prices`, by name, instead of their list prices.

    The price of a device also applies to its clusters. InputError for a price that is not positive, and for a
    device that is not in the list.

    >>> [device.price_per_hour_usd for device in with_prices(["hgx-h200", "h100"], {"h200": 3.5})]
    [3.5, 3.99]
    """
    found = [load(device) for device in arguments.items("devices", devices, "devices")]
    said = arguments.mapping("price", prices, "USD an hour by device")
    usd = {name: arguments.number(f"price of {name}", value, above=True) for name, value in said.items()}
    return at_prices(found, {name: (load(name), price) for name, price in usd.items()})


def check_unique(devices: Sequence[Device]) -> None:
    """InputError if a device occurs twice, under one name or two.

    >>> check_unique([load("h200"), load("h200-sxm")])
    Traceback (most recent call last):
        ...
    llmir.base.errors.InputError: hw: H200-SXM occurs twice
    """
    if twice := next((each.name for i, each in enumerate(devices) if each in devices[:i]), None):
        raise InputError(f"hw: {twice} occurs twice")


def names() -> list[str]:
    """The names of the bundled devices, sorted."""
    return sorted(path.stem for path in _DEVICES.glob("*.yaml"))


def clusters() -> list[str]:
    """The names of the bundled clusters, sorted."""
    return sorted(path.stem for path in _CLUSTERS.glob("*.yaml"))


def calibrated_devices() -> list[str]:
    """The names of the bundled devices with a calibration, sorted."""
    return sorted(calibration_files.names())


def engines() -> list[str]:
    """The names of the bundled engines with fitted CPU times, sorted."""
    return list(versions.names())


def engine(name: str, kernels: Iterable[str] = ()) -> Engine:
    """An engine, bundled or from a YAML file: `vllm@0.12` at this version, and otherwise at the newest
    measured version.

    HardwareError for an unknown name, with suggestions that include `kernels`, and for an invalid version.

    >>> print(engine("vllm@0.14"))
    vllm 0.11–0.12, nearest to 0.14
    """
    path = _as_path(arguments.text("engine", name, error=HardwareError))
    if path is not None:
        return versions.read_engine(path)
    stem, version = versions.engine_spelling(name)
    more = arguments.items("kernels", kernels, "names", error=HardwareError)
    return versions.engine_at(versions.check_engine(stem, tuple(map(str, more))), version)


@functools.cache
def _bundled(stem: str) -> Device:
    return _read_device(_file(stem), f"{stem}.yaml")


def _file(stem: str) -> Path:
    """The bundled file of this name."""
    return next(p for folder in (_DEVICES, _CLUSTERS) if (p := folder / f"{stem}.yaml").exists())


@functools.cache
def _spellings() -> dict[str, str]:
    """The name for a normalized name or alias, for all bundled files."""
    found: dict[str, str] = {}
    for name in (*names(), *clusters()):
        said = _ALIASES.search(_file(name).read_text(encoding="utf-8"))
        aliases = said[1].split(",") if said else ()
        found |= {normalize(spelling.strip(' "\n')): name for spelling in (name, *aliases)}
    return found


@functools.lru_cache(maxsize=1024)
def _stem(name: str) -> str:
    spelling = normalize(name).removesuffix("gpu")
    while brand := next((b for b in _BRANDS if spelling.startswith(b)), None):
        spelling = spelling.removeprefix(brand)
    if spelling not in _spellings():
        known = (*names(), *clusters())
        raise HardwareError(f"unknown device {schema.show(name)}{suggest(spelling, known)} (list: llmir hw)")
    return _spellings()[spelling]


def _as_path(name: str, folder: Path = Path()) -> Path | None:
    """The file of `name`, or None for the name of a device."""
    is_file_name = name.lower().endswith((".yaml", ".yml"))
    if not is_file_name and os.sep not in name:
        return None
    try:
        path = folder / Path(name).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, contains NUL, or an unknown ~user
        exists = False
    if exists:
        return path
    if is_file_name:
        near = suggest(Path(name).stem, (*names(), *clusters()))
        raise HardwareError(f"no such hardware file {schema.show(name)}{near}")
    return None


def _read_device(path: Path, source: str) -> Device:
    return _device(*_resolve(path, source, ()), path.name)


def _device(doc: dict[Any, Any], sources: dict[str, str], calibrated: str, where: str) -> Device:
    fields = schema.read_fields(doc, where, schema.DEVICE)
    if "fp32" not in fields["vector_flops"]:
        raise HardwareError(f"{where}: vector_tflops must contain fp32, because other dtypes may run as fp32")
    if fields.get("physical_bytes", 0) > fields["memory_bytes"]:
        raise HardwareError(f"{where}: physical_GiB exceeds the nominal memory")
    return Device(**fields, measured_as=calibrated, sources=sources)


Resolved = tuple[dict[Any, Any], dict[str, str], str]


def _resolve(path: Path, source: str, above: tuple[Path, ...]) -> Resolved:
    """Merge the keys of a file over the keys that it extends, with the source of each number; `source` is the
    default source.

    The last result is the bundled device whose calibration applies, if no file in between has one.
    """
    here = path.resolve()
    if here in above:
        circle = " -> ".join(p.name for p in (*above[above.index(here) :], here))
        raise HardwareError(f"{path.name}: extend is circular: {circle}")
    calibrated = here.stem if here.parent == _DEVICES.resolve() else ""
    own = parse(path)
    if listed := list_prices().get(calibrated):
        own["price_per_hour_usd"] = listed.usd_per_hour
        own["sources"] = {**own.get("sources", {}), "price_per_hour_usd": listed.source}
    return _laid(own, path.name, path.parent, source, (*above, here), calibrated)


def _laid(
    own: dict[Any, Any],
    where: str,
    folder: Path | None,
    source: str,
    above: tuple[Path, ...],
    calibrated: str,
) -> Resolved:
    """Merge keys over the keys that they extend: those of a bundled file, or of a file in the `folder`."""
    stated = own.pop("sources", {})
    below: dict[Any, Any] = {}
    sources: dict[str, str] = {}
    if "extend" in own:
        base = schema.text(own.pop("extend"), f"{where}: extend", 1)
        file = None if folder is None else _as_path(base, folder)
        if file is None:
            file = _file(_stem(base))
        in_box = file.parent in (_DEVICES, _CLUSTERS)
        named = file.name if in_box else f"user file {file.name}"
        below, sources, calibrated = _resolve(file, named, above)
        below.pop("aliases", None)
        if {"memory_GiB", "memory_GB"} & own.keys():
            below.pop("physical_GiB", None)  # for another memory size
    if "calibration" in own and calibrated:
        below["calibration"] = calibration_files.document(calibrated)
        calibrated = ""
    doc = merge(below, own)
    present = {schema.field_path(leaf) for leaf in leaves(doc)}
    kept = {leaf: s for leaf, s in sources.items() if leaf in present}
    # Aliases are not numbers, and a calibration contains its origin.
    numbers = {key: value for key, value in own.items() if key not in ("aliases", "calibration")}
    return doc, kept | cite(numbers, stated, where, source), calibrated
