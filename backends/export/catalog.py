"""Lists of bundled things: devices with their sources, passes, ops, weights of a model, and models.

Each function returns `Rows` (`sections.py`), which print in every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from llmir.backends.cost.models import roofline_reason
from llmir.backends.cost.transfer import calibration_source, library_sources, relation
from llmir.backends.step.facts import weights
from llmir.base.errors import InputError
from llmir.base.names import unknown
from llmir.hw import library, transfer
from llmir.hw.device import Device
from llmir.ir.core.op import OPS
from llmir.ir.core.program import Program
from llmir.ir.ops import describe as describe_op
from llmir.ir.tools.pipeline import PASSES, describe

from . import table, units, wording
from .sections import Rows
from .table import add, columns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


# Devices and clusters


def devices() -> Rows:
    """All bundled items, one row each."""
    rows = [_overview(n, library.load(n)) for n in (*library.names(), *library.clusters())]
    return Rows(rows, _bundled(rows))


def device(device: Device) -> Rows:
    """One device in full, with a row for each number."""
    rows = _numbers(device)
    return Rows(rows, _device(device, rows))


def _overview(name: str, device: Device) -> dict[str, Any]:
    peaks = {f"{d}_flops": device.matrix_flops.get(d) for d in ("bf16", "fp16", "fp8", "int8", "fp4")}
    node, kernels = device.node, calibration_source(device)
    inside = device.link(node.devices)[1].Bps if node else None
    return {
        "name": name,
        "kind": "cluster" if node else "device",
        "vendor": device.vendor,
        "architecture": device.architecture,
        "isa": device.isa or None,
        **peaks,
        "vector_fp32_flops": device.vector_flops["fp32"],
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_Bps,
        "memory_kind": device.memory_kind or None,
        "kernels_of": kernels.name if kernels else None,
        "library_kernels_of": ", ".join(d.name for d in library_sources(device)) or None,
        "board_power_W": device.board_power_W,
        "price_per_hour_usd": device.price_per_hour_usd,
        "device": device.name,
        "node_devices": node.devices if node else None,
        "node_bytes_per_s": inside,
        "network_bytes_per_s": node.network.Bps if node and node.network else None,
    }


def _bundled(rows: list[dict[str, Any]]) -> RenderableType:
    devices = [row for row in rows if row["kind"] == "device"]
    clusters = [row for row in rows if row["kind"] == "cluster"]
    return table.stack(_devices(devices), "", _kernels(devices), "", _clusters(clusters))


def _kernels(rows: list[dict[str, Any]]) -> RenderableType:
    """The measured devices, and the devices that use the calibration of each."""
    shown = table.columns(("kernels of", "are taken for"))
    for source in sorted({row["kernels_of"] for row in rows}, key=lambda name: name or "~"):
        users = [row["name"] for row in rows if row["kernels_of"] == source]
        for i, line in enumerate(wrap(", ".join(users), 60, break_on_hyphens=False)):
            table.add(shown, ("" if i else source or "none, the roofline", line))
    return table.stack(shown, *(["", said] if (said := _libraries(rows)) else []))


def _libraries(rows: list[dict[str, Any]]) -> str:
    """The devices for which the kernels of a library are preferred, and the device on which it was
    measured.
    """
    lent = [row for row in rows if row["library_kernels_of"]]
    users = ", ".join(row["name"] for row in lent)
    measured = sorted({name for row in lent for name in row["library_kernels_of"].split(", ")})
    where = ", ".join(measured)
    return f"{users} prefer the kernels of aiter, as measured on {where}." if lent else ""


def _clusters(rows: list[dict[str, Any]]) -> RenderableType:
    def rate(value: float | None) -> str:
        return f"{units.bytes(value)}/s" if value else "–"

    headings = ("cluster", "a node", "inside a node", "between nodes")
    shown = table.columns(headings, headings[2:])
    for r in rows:
        node = f"{r['node_devices']} × {r['device']}"
        table.add(shown, (r["name"], node, rate(r["node_bytes_per_s"]), rate(r["network_bytes_per_s"])))
    return table.stack(shown, "", "Bandwidths of one device in one direction; – for one node alone.")


def _devices(rows: list[dict[str, Any]]) -> RenderableType:
    peaks = [key for key in rows[0] if key.endswith("_flops")]
    names = [key.removesuffix("_flops").removesuffix("_fp32") for key in peaks]
    headings = ("device", *names, "memory", "bandwidth")
    shown = table.columns(headings, headings[1:])
    for r in rows:
        rates = (units.digits(r[key] / 1e12) if r[key] else "–" for key in peaks)
        memory = f"{units.digits(r['memory_bytes'] / 2**30)} GiB"
        bandwidth = f"{units.bytes(r['memory_bytes_per_s'])}/s"
        table.add(shown, (r["name"], *rates, memory, bandwidth))
    legend = "Dense peaks: matrix unit by type, vector unit in fp32; TFLOP/s (int8: TOP/s)."
    return table.stack(shown, "", legend)


_JUDGED = "; mean error on shapes held out of the fit"

# Maps the last part of a number's path to a readable name and an SI unit; for peaks, this part is the dtype.
_NAMED = {
    "memory_bytes": ("memory", "B"),
    "physical_bytes": ("physical memory", "B"),
    "memory_Bps": ("memory bandwidth", "B/s"),
    "multiprocessors": ("multiprocessors", ""),
    "l2_bytes": ("L2 cache", "B"),
    "Bps": ("bandwidth", "B/s"),
    "host_Bps": ("copies of the host", "B/s"),
    "latency_s": ("latency", "s"),
    "ranks": ("ranks", ""),
    "devices": ("devices", ""),
    "board_power_W": ("board power", "W"),
    "price_per_hour_usd": ("price", "USD/h"),
}


def _numbers(device: Device) -> list[dict[str, Any]]:
    """Every field with a source, in SI units."""
    found = []
    for path, source in device.sources.items():
        value: Any = device
        for part in path.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        flops = path.startswith(("matrix_flops.", "vector_flops."))
        unit = "FLOP/s" if flops else _NAMED.get(path.rsplit(".", 1)[-1], ("", ""))[1]
        found.append({"field": path, "value": value, "unit": unit, "source": source})
    return [*found, *_calibrated(device)]


def _calibrated(device: Device) -> Iterator[dict[str, Any]]:
    """The mean error of each calibrated kernel family on held-out shapes."""
    for engine, families in device.calibration.engines.items() if device.calibration else ():
        for family, fitted in families.items():
            source = f"{fitted.origin}, {fitted.rows:,} rows{_JUDGED}"
            path = f"calibration.{engine}.{family}"
            yield {"field": path, "value": 100 * fitted.error, "unit": "%", "source": source}


def _called(path: str) -> str:
    """Converts `matrix_flops.bf16` to `matrix bf16`, and `links.nvlink.Bps` to `nvlink bandwidth`."""
    *above, last = path.removeprefix("links.").removeprefix("calibration.").replace("_flops", "").split(".")
    return " ".join([*above, _NAMED.get(last, (last,))[0]])


def _human(value: Any, unit: str) -> str:
    if unit == "FLOP/s":
        return f"{units.flops(value)}/s"
    if unit == "B/s":
        return f"{units.bytes(value)}/s"
    if unit == "B":
        scale, symbol = (2**30, "GiB") if value >= 2**30 else (2**20, "MiB")
        return f"{units.digits(value / scale)} {symbol}"
    if unit == "s":
        return units.time(value)
    if unit == "%":
        return f"± {value:.1f}%"
    return f"{value:g} {unit}" if isinstance(value, float) else str(value)


def _device(device: Device, rows: list[dict[str, Any]]) -> RenderableType:
    kind = " ".join(filter(None, (device.vendor, device.architecture)))
    made = ", ".join(filter(None, (kind, device.isa, device.memory_kind)))
    made += f", {device.node.devices} in a {device.node.name}" if device.node else ""
    title = f"{device.name} ({made})" if made else device.name
    shown = table.columns(("", "value", "source"), ("value",), prose=("", "source"))
    for row in rows:
        if not isinstance(row["value"], str):
            source = row["source"].removesuffix(_JUDGED)
            table.add(shown, (_called(row["field"]), _human(row["value"], row["unit"]), source))
    judged = [f"±{_JUDGED.replace('; ', ' is the ')}."] if device.calibration else []
    return table.stack(wording.plain(title), "", shown, "", _whose(device), *judged)


def _whose(device: Device) -> str:
    """The source of the device's kernels."""
    kernels = calibration_source(device)
    if kernels is None:
        return f"Times are the roofline's: {roofline_reason(device)}."
    if kernels == device:
        return "Times are measured on this device."
    own = (
        sorted({f for families in device.calibration.engines.values() for f in families})
        if device.calibration
        else []
    )
    said = [f"times of {', '.join(own)} are measured on this device"] if own else []
    if lent := " and ".join(d.name for d in library_sources(device) if d != device):
        what = "times of the other aiter kernels" if own else "times of aiter kernels"
        said.append(f"{what} are transferred from {lent}")
    how = relation(device, kernels)
    least, most = (round(100 * f(transfer.table()[how].values())) for f in (min, max))
    off = f"{least}%" if least == most else f"{least} to {most}%"
    others = "the other times" if said else "times"
    said.append(f"{others} are transferred from {kernels.name} ({how}), with a transfer error of {off}.")
    return "T" + "; ".join(said)[1:]


# Passes and ops


def passes(default: str, engines: Mapping[str, str]) -> Rows:
    """A row for each pass with its options; then the `default` pipelines of each engine, and the pipeline
    without an engine.
    """
    found = [{"name": name, **describe(kind)} for name, kind in PASSES.items()]
    shown = table.columns(("pass", "what it does"), prose=("what it does",))
    for p in found:
        table.add(shown, (p["name"], p["summary"]), styles=["bold"])
        for option in p["options"]:
            table.add(shown, ("", f"  {_option(option)}"))
    rows = [{**p, "options": " ".join(map(_option, p["options"]))} for p in found]
    runs: dict[str, list[str]] = {}
    for engine, pipeline in (*engines.items(), ("a program without an engine", default)):
        runs.setdefault(pipeline, []).append(engine)
    usual: list[str] = []
    for pipeline, of in runs.items():
        steps = wrap(pipeline.replace(",", ", "), 76, break_on_hyphens=False)
        usual += [f"default of {', '.join(of)}:", *(f"  {line}" for line in steps)]
    data = {"default": default, "engines": dict(engines), "passes": found}
    return Rows(rows, table.stack(shown, "", *usual), data)


def ops(name: str | None = None) -> Rows:
    """A row for each op; with a name, all facts about one op. InputError for an unknown name."""
    if name is not None and name not in OPS:
        raise InputError(unknown("op", name, OPS, "llmir ops"))
    found = [describe_op(OPS[name])] if name else [describe_op(kind) for kind in OPS.values()]
    rows = [{**op, "attributes": " ".join(map(_attribute, op["attributes"]))} for op in found]
    return Rows(rows, _one(found[0]), found[0]) if name else Rows(rows, _all(found), found)


def _option(option: Mapping[str, Any]) -> str:
    """An option as text: `tp: int = 1`, or `tp: int` if it is required."""
    default = "" if option["required"] else f" = {option['default']!r}"
    return f"{option['name']}: {option['type']}{default}"


def _attribute(attribute: Mapping[str, Any]) -> str:
    """An attribute as text: `eps: float = 1e-06`, or `einsum: str` if it is required."""
    return _option({"required": "default" not in attribute, **attribute})


def _all(found: list[dict[str, Any]]) -> RenderableType:
    shown = table.columns(("op", "kind", "what it does"), prose=("what it does",))
    for op in found:
        table.add(shown, (op["name"], op["kind"], op["summary"]), styles=["bold"])
    return shown


def _one(op: Mapping[str, Any]) -> RenderableType:
    given = ", ".join(filter(None, (op["takes"], *map(_attribute, op["attributes"]))))
    facts = [(name.replace("_", " "), op[name]) for name in ("kind", "equation", "flops", "defined_in")]
    return table.stack(
        table.pairs([("method", f"{op['name']}({given})"), *facts]), "", *op["doc"].splitlines()
    )


# Weights of a model

HEADINGS = ("block", "weight", "dtype", "layers", "× params", "× bytes", "params", "bytes", "share")


def weight_table(program: Program) -> Table:
    """A row for each kind of weight, per layer and in total; the last row is the sum."""
    rows = weights(program)
    whole = sum(w.bytes for w in rows)
    shown = columns(HEADINGS, HEADINGS[3:], gap=1)
    for i, w in enumerate(rows):
        inside = w.layers is not None and w.layer_parameters is not None and w.layer_bytes is not None
        each = ("", "", "")
        if inside:
            each = (str(w.layers), units.count(w.layer_parameters or 0), units.bytes(w.layer_bytes or 0))
        block = w.block if not i or rows[i - 1].block != w.block else ""
        total = (units.count(w.parameters), units.bytes(w.bytes), units.percent(w.bytes / whole))
        add(shown, (block, w.name, w.dtype, *each, *total))
    shown.add_section()
    sums = (units.count(program.parameters), units.bytes(whole), "100%")
    add(shown, ("total", *[""] * 5, *sums), "bold")
    return shown


# Models


def models(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """A row for each model."""
    return Rows(rows, _sizes(rows))


def model(program: Program, row: Mapping[str, Any]) -> Rows:
    """A row for each kind of weight; the JSON form is the row of the model, with these weights."""
    parts = [vars(w) for w in weights(program)]
    sizes = {"weight_bytes": sum(w.bytes for w in weights(program)), "weights": parts}
    whole = {**row, **sizes, "notes": list(program.notes)}
    later = f"KV/tok once windows are full: {units.bytes(row['kv_cache_bytes_per_later_token'])}"
    grows = row["kv_cache_bytes_per_later_token"] != row["kv_cache_bytes_per_token"]
    notes = ("", *(f"note: {note}" for note in program.notes)) if program.notes else ()
    return Rows(parts, table.stack(_sizes([row]), *[later] * grows, "", weight_table(program), *notes), whole)


def _sizes(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    numeric = ("size", "active", "layers", "heads", "KV/tok", "state")
    shown = table.columns(("model", *numeric), numeric)
    for r in rows:
        active = units.count(r["active_parameters"]) if r["active_parameters"] != r["parameters"] else ""
        heads = f"{r['heads']}/{r['kv_heads']}" if r["heads"] else ""
        numbers = (str(r["layers"]), heads)
        caches = (r["kv_cache_bytes_per_token"], r["state_bytes_per_sequence"])
        kept = (units.bytes(n) if n else "" for n in caches)
        table.add(shown, (r["name"], units.count(r["parameters"]), active, *numbers, *kept))
    words = (
        "Sizes are in parameters, heads are query/key-value heads, KV/tok is the cache of the first "
        "token (less of later ones where windows are full or tokens compressed), state what a sequence has "
        "besides."
    )
    return table.stack(shown, "", words)
