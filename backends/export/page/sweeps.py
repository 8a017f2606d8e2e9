"""The page of a sweep: the front of each device, any column over any other, and the table of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from llmir.backends.search.sweep import POINTS, SHARES, Sweep

from .document import Document, column, document, json_value, sheet

_TITLES = {
    "hw": "device",
    "new": "new tokens each",
    "context": "cached tokens each",
    "time_s": "time of a step",
    "ideal_time_s": "ideal time",
    "error": "±",
    "weight_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "activation_peak_bytes": "activations",
    "peak_memory_bytes": "peak memory",
    "flops": "FLOPs",
    "read_bytes": "bytes read",
    "write_bytes": "bytes written",
    "comm_bytes": "bytes sent",
    "cost_usd_per_mtok": "$ a million tokens",
    "energy_j_per_token": "J a token",
}
_RATES = {
    "tokens_per_s": "tokens/s",
    "tokens_per_s_device": "tokens/s of a GPU",
    "tokens_per_s_user": "tokens/s of a user",
}
_FRONT = "tokens_per_s_user", "tokens_per_s_device"
_ENDS = {"_bytes": "bytes", "flops": "flops", "_per_mtok": "usd", "_per_token": "digits", "_s": "time"}
REASONS = 5  # number of reasons for rejected rows


def sweep(found: Sweep) -> Mapping[str, Any]:
    """The data of the page."""
    rows = [_with_rates(row) for row in found.rows()]
    axes = [name for name, values in found.axes.items() if len(values) > 1]
    names = [*(name for name in found.names if name not in found.axes), *_RATES]
    known = [name for name in names if any(row[name] is not None for row in rows)]
    first = ["time_s", *_RATES]
    keys = [*axes, *first, *(name for name in known if name not in first)]
    columns = [_column(key) for key in keys]
    cells = [[json_value(row[key]) for key in keys] for row in rows]
    about = [", ".join(f"{key} {row[key]}" for key in axes) or found.model for row in rows]
    views = [_chart(found, axes, columns), sheet("Rows", columns, cells, file="rows", choosable=True)]
    return document(
        found.model,
        _fixed(found),
        (),
        views,
        basis=f"{len(rows):,} rows; times: {'; '.join(found.basis)}",
        notes=_refused(found),
        about=about,
    )


def _fixed(found: Sweep) -> Iterator[tuple[str, str]]:
    """The values that all rows share."""
    for name, values in found.axes.items():
        given = values[0]
        if len(values) == 1 and (given or name in POINTS):
            yield _title(name), f"{given:,}" if isinstance(given, int) else str(given)


def _with_rates(row: dict[str, Any]) -> dict[str, Any]:
    """A row, with tokens per second in total, per device and per user."""
    time = row["time_s"]
    if not time:
        return {**row, **dict.fromkeys(_RATES)}
    tokens = row["batch"] * row["new"] / time
    return {**row, **dict(zip(_RATES, (tokens, tokens / row["devices"], row["new"] / time), strict=True))}


def _column(key: str) -> Document:
    return column(key, _title(key), _kind(key), prose=key == "refused")


def _title(key: str) -> str:
    plain = key.removesuffix("_s").removesuffix("_bytes") + (" bytes" if key.endswith("_bytes") else "")
    return _RATES.get(key) or _TITLES.get(key) or plain.replace("_", " ")


def _kind(key: str) -> str:
    if key in _RATES:
        return "digits"
    if key in SHARES or key == "error":
        return "percent"
    if found := next((kind for end, kind in _ENDS.items() if key.endswith(end)), None):
        return found
    if key == "fits":
        return "flag"
    whole = (*POINTS, "devices", "tp", "pp", "micro_batches", "dp", "ep", "sp", "redundant_experts")
    return "whole" if key in whole else "text"


def _chart(found: Sweep, axes: list[str], columns: list[Document]) -> Document:
    """If structures and batches differ, the front of each device; otherwise tokens/s, or the time, along an
    axis.

    Larger values are better in the columns in `better`; the page draws fronts of these columns.
    """
    structure = [name for name in axes if name not in POINTS]
    along = next((name for name in ("batch", "context", "new", *axes) if name in axes), "batch")
    keys = [each["key"] for each in columns]
    numbers = [each["key"] for each in columns if each["kind"] not in ("text", "flag")]
    x, y = (along if along in numbers else "time_s"), ("tokens_per_s" if along == "batch" else "time_s")
    by = next((name for name in (*structure, *axes) if name != x), None)
    if structure and "batch" in axes and found.axes["new"] == (1,):
        x, y = _FRONT
        by = "hw" if "hw" in axes else None
    return {
        "kind": "picked",
        "title": "Any figure against any other",
        "look": "wide",
        "file": "chart",
        "note": "",
        "of": "rows",
        "axes": [key for key in keys if key in axes],
        "along": along,
        "better": list(_RATES),
        "x": x,
        "y": y,
        "by": by,
    }


def _refused(found: Sweep) -> Iterator[str]:
    """The number of rows without results, and the reasons."""
    count = Counter[str]()
    for part in found.parts:
        if part.refusals:
            count[str(part.why)] += part.refusals
    for why, n in count.most_common(REASONS):
        yield f"{n:,} refused: {why}"
