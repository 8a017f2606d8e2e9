"""Devices and clusters by name or file: YAML whose keys carry units, and whose `sources` say where from."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmir.errors import HardwareError
from llmir.hw import schema
from llmir.hw.calibration import Calibration, Fitted
from llmir.hw.device import Device
from llmir.hw.document import cite, leaves, merge, parse
from llmir.hw.link import Link, Node
from llmir.names import normalize, suggest

__all__ = [
    "Calibration",
    "Device",
    "Fitted",
    "Link",
    "Node",
    "cluster",
    "clusters",
    "engine",
    "engines",
    "load",
    "names",
]

_DEVICES, _CLUSTERS, _ENGINES = (Path(__file__).parent / n for n in ("devices", "clusters", "engines"))

# Other names of a device, besides its file's: what people type, and what drivers report.
_ALIASES = {
    "v100-16": "v100-16gb v100-sxm2-16gb",
    "v100-32": "v100 v100-32gb v100-sxm v100-sxm2 v100-sxm2-32gb",
    "a6000": "rtx-a6000",
    "a100-40-sxm": "a100-40 a100-40gb a100-40gb-sxm a100-sxm-40 a100-sxm-40gb a100-sxm4-40gb",
    "a100-40-pcie": "a100-40gb-pcie a100-pcie-40 a100-pcie-40gb",
    "a100-80-sxm": "a100 a100-sxm a100-sxm4 a100-80 a100-80gb a100-80gb-sxm a100-sxm-80 a100-sxm-80gb "
    "a100-sxm4-80gb",
    "a100-80-pcie": "a100-pcie a100-80gb-pcie a100-pcie-80 a100-pcie-80gb",
    "rtx3090": "3090",
    "rtx4090": "4090",
    "rtx-pro-6000": "pro6000 rtx6000pro rtx6000-blackwell rtx-pro-6000-blackwell "
    "rtx-pro-6000-blackwell-workstation-edition",
    "h20": "h20-sxm h20-96 h20-96gb",
    "h800": "h800-sxm h800-sxm5 h800-80gb",
    "h100-sxm": "h100 h100-sxm5 h100-80 h100-80gb h100-80gb-sxm h100-sxm-80gb h100-80gb-hbm3",
    "h100-pcie": "h100-80gb-pcie h100-pcie-80gb",
    "h200": "h200-sxm h200-sxm5 h200-141gb",
    "gh200": "gh200-96 gh200-96gb gh200-480gb",
    "b200": "b200-sxm b200-sxm6 b200-180gb",
    "gb200": "gb200-sxm gb200-nvl72",
    "b300": "b300-sxm b300-sxm6",
    "mi250": "mi250-oam",
    "mi300x": "mi300x-oam",
    "mi325x": "mi325x-oam",
    "mi355x": "mi355x-oam",
    "tpu-v5p": "v5p",
    "tpu-v6e": "v6e tpu-v6 trillium",
    "cpu": "xeon xeon-8480+",
    "dgx-a100": "hgx-a100 dgx-a100-80gb hgx-a100-80gb",
    "dgx-h100": "hgx-h100",
    "hgx-h200": "dgx-h200",
    "dgx-b200": "hgx-b200",
    "rtx3090-pcie-8": "8x3090-pcie 8x3090 8xrtx3090 rtx3090x8",
    "rtx4090-pcie-8": "8x4090-pcie 8x4090 8xrtx4090 rtx4090x8",
}
_BRANDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "google", "cloud", "intel")


def load(device: str | os.PathLike[str] | Device) -> Device:
    """The device or cluster of this name (any case, dashes or brand), or YAML file; a Device is itself.

    A file may `extend` a known device or another file, and then says only what differs. HardwareError for an
    unknown name, a file that cannot be read, and a key or number that is wrong.

    >>> load("nvidia/H100_SXM") is load("h100")
    True
    """
    if isinstance(device, Device):
        return device
    if not isinstance(device, (str, os.PathLike)):
        raise HardwareError(f"a device is a name or a YAML file, got {schema.show(device)}")
    spelled = os.fsdecode(device)
    path = _as_path(spelled)
    return _bundled(_stem(spelled)) if path is None else _read(path, f"user file {path.name}")


def cluster(name: str | os.PathLike[str] | Device) -> Device:
    """As `load`, of a cluster: a device in a node. HardwareError for a device alone.

    >>> cluster("dgx-h100").node.devices
    8
    """
    found = load(name)
    if found.node is None:
        raise HardwareError(f"{found.name} is a device and no cluster; clusters are {', '.join(clusters())}")
    return found


def names() -> list[str]:
    """The names of the bundled devices, sorted."""
    return sorted(path.stem for path in _DEVICES.glob("*.yaml"))


def clusters() -> list[str]:
    """The names of the bundled clusters, sorted."""
    return sorted(path.stem for path in _CLUSTERS.glob("*.yaml"))


def engines() -> list[str]:
    """The names of the bundled engines, sorted: what they add to their kernels was fitted."""
    return sorted(path.stem for path in _ENGINES.glob("*.yaml"))


def engine(name: str, kernels: Iterable[str] = ()) -> Fitted:
    """What an engine, bundled or of a YAML file, adds to its kernels.

    HardwareError for an unknown one, which may be meant for one of `kernels` too.
    """
    path = _as_path(name)
    if path is not None:
        return schema.fitted(parse(path), path.name)
    if name not in engines():
        near = suggest(name, (*engines(), *kernels)) or f", known are {', '.join(engines())}"
        raise HardwareError(f"unknown engine {schema.show(name)}{near}")
    return _engine(name)


@functools.cache
def _engine(name: str) -> Fitted:
    path = _ENGINES / f"{name}.yaml"
    return schema.fitted(parse(path), path.name)


@functools.cache
def _bundled(stem: str) -> Device:
    return _read(_file(stem), f"{stem}.yaml")


def _file(stem: str) -> Path:
    """The bundled file of this name."""
    return next(p for folder in (_DEVICES, _CLUSTERS) if (p := folder / f"{stem}.yaml").exists())


@functools.cache
def _spellings() -> dict[str, str]:
    """Stem by normalized name or alias."""
    known = (*names(), *clusters())
    aliases = {alias: stem for stem, line in _ALIASES.items() for alias in line.split()}
    return {normalize(name): stem for name, stem in ({n: n for n in known} | aliases).items()}


def _stem(name: str) -> str:
    spelling = normalize(name)
    while brand := next((b for b in _BRANDS if spelling.startswith(b)), None):
        spelling = spelling.removeprefix(brand)
    if spelling not in _spellings():
        known = (*names(), *clusters())
        near = suggest(spelling, known) or f", known are {', '.join(known)}"
        raise HardwareError(f"unknown device {schema.show(name)}{near}")
    return _spellings()[spelling]


def _as_path(name: str, folder: Path = Path()) -> Path | None:
    """The file that `name` means, or None where it is the name of a device."""
    is_file_name = name.lower().endswith((".yaml", ".yml"))
    try:
        path = folder / Path(name).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, an unknown ~user
        exists = False
    if exists and (is_file_name or os.sep in name):
        return path
    if is_file_name:
        near = suggest(Path(name).stem, (*names(), *clusters()))
        raise HardwareError(f"no such hardware file {schema.show(name)}{near}")
    return None


def _read(path: Path, source: str) -> Device:
    doc, sources = _resolve(path, source, ())
    fields = schema.read(doc, path.name, schema.DEVICE)
    if "fp32" not in fields["vector_flops"]:
        raise HardwareError(f"{path.name}: vector_tflops must give fp32, which all else can fall back on")
    return Device(**fields, sources=sources)


def _resolve(path: Path, source: str, above: tuple[Path, ...]) -> tuple[dict[Any, Any], dict[str, str]]:
    """A file's keys laid over those it extends, and each number's source; `source` where none is stated."""
    here = path.resolve()
    if here in above:
        circle = " -> ".join(p.name for p in (*above[above.index(here) :], here))
        raise HardwareError(f"{path.name}: extend goes round in a circle, {circle}")
    own = parse(path)
    stated = own.pop("sources", {})
    below: dict[Any, Any] = {}
    sources: dict[str, str] = {}
    if "extend" in own:
        base = schema.text(own.pop("extend"), f"{path.name}: extend", 1)
        file = _as_path(base, path.parent)
        if file is None:
            file = _file(_stem(base))
        in_box = file.parent in (_DEVICES, _CLUSTERS)
        below, sources = _resolve(file, file.name if in_box else f"user file {file.name}", (*above, here))
    doc = merge(below, own)
    present = {schema.field_path(leaf) for leaf in leaves(doc)}
    kept = {leaf: s for leaf, s in sources.items() if leaf in present}
    numbers = {
        key: value for key, value in own.items() if key != "calibration"
    }  # which says its origin itself
    return doc, kept | cite(numbers, stated, path.name, source)
