"""Which table a CSV file is, by its header, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llmir import strict_csv
from llmir.backends.analysis.workload import LONGEST
from llmir.backends.silicon.calibrate import Column, Table, read
from llmir.backends.silicon.calibrate.families import LAW, TURNS
from llmir.backends.silicon.calibrate.rows import LATENCY
from llmir.errors import InputError, UnreadableError
from llmir.names import plain

_WORDS = ("gpu", "framework")
_SECONDS = Column(1e-9, 1e6, whole=False, empty=float("nan"))
_MS = Column(1e-3, 1e9, whole=False, empty=float("nan"))  # 1 µs to 11 days
_BYTES = Column(high=1e13)  # more than any device holds
_DEGREE = Column(0, 1e5, empty=float("nan"))  # some tables write 0 for no such ranks


class Format(NamedTuple):
    """Columns that a table of this kind has, and those that it may have."""

    numbers: Mapping[str, Column]
    words: Sequence[str]
    more_numbers: Mapping[str, Column] = {}
    more_words: Sequence[str] = ()


def _sizes(*names: str, zero: Sequence[str] = ()) -> dict[str, Column]:
    return {n: Column(0 if n in zero else 1) for n in names}


_HEADS = ("batch", "q_len", "context", "num_heads", "num_kv_heads", "head_dim")
FORMATS = {
    "chat": Format(dict.fromkeys(("input_tokens", "output_tokens"), Column(1, LONGEST / 2)), ()),
    "model": Format(
        {},
        ("model", "gpu", "kind", "isl", "osl", "batch_or_concurrency"),
        dict.fromkeys(("num_gpus", "tp", "pp", "ep", "dp"), _DEGREE)
        | dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_latency_ms"), _MS)
        | {"throughput_tok_s": Column(1e-6, 1e12, whole=False, empty=float("nan"))},
        ("framework", "weight_dtype", "kv_dtype", "throughput_kind", "mode", "flag", "source"),
    ),
    "gemm": Format(
        _sizes("m", "n", "k") | LATENCY, (*_WORDS, "dtype"), {"turns": Column(empty=TURNS)}, ("kernel",)
    ),
    "attention": Format(
        _sizes(*_HEADS) | LATENCY, (*_WORDS, "dtype"), {"window": Column(0, empty=0)}, ("kv_dtype", "kernel")
    ),
    "moe": Format(
        _sizes("num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep") | LATENCY,
        (*_WORDS, "dtype"),
        {"distribution": LAW._replace(empty=0)},
        ("op", "kernel", "source"),
    ),
    "elementwise": Format(
        _sizes("rows", "cols") | {"bytes_moved_ideal": _BYTES} | LATENCY,
        (*_WORDS, "dtype", "op"),
        {},
        ("kernel",),
    ),
    "collective": Format(
        _sizes("num_gpus") | {"bytes": _BYTES} | LATENCY, (*_WORDS, "dtype", "op"), {}, ("note", "kernel")
    ),
}
# Of measured times in a chat log: the figure, by what its column may be called before the unit.
CHAT_FIGURES = {
    "ttft": ("ttft", "time_to_first_token"),
    "tpot": ("tpot", "itl", "time_per_output_token"),
    "e2e": ("e2e", "e2e_latency", "latency", "end_to_end"),
}
_UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6}


def header(path: Path) -> list[str]:
    """The names in a file's first line; InputError if it is no CSV, or empty."""
    try:
        with strict_csv.table(path) as reader:
            return list(reader.fieldnames or [])
    except UnreadableError as error:
        raise InputError(f"{path.name}: {error}") from None


def table(path: Path) -> tuple[str, Table]:
    """The format of a file and its rows; columns it may have and does not are as if empty.

    InputError names the columns that are missing for the format that comes nearest.
    """
    names = header(path)
    fits = {
        f: sum(c in names for c in (*x.numbers, *x.words)) / len((*x.numbers, *x.words))
        for f, x in FORMATS.items()
    }
    best = max(fits, key=lambda f: (fits[f] == 1, fits[f] * len(FORMATS[f].numbers), fits[f]))
    shape = FORMATS[best]
    missing = [c for c in (*shape.numbers, *shape.words) if c not in names]
    if missing:
        near = f"nearest is {best}, without {', '.join(missing)}"
        shown = plain(", ".join(names), limit=120)
        raise InputError(f"{path.name}: not a table that can be validated; {near} (it has {shown})")
    numbers = {**shape.numbers, **{c: k for c, k in shape.more_numbers.items() if c in names}}
    if best == "chat":
        numbers |= {column: _SECONDS for column, _, _ in chat_columns(names)}
    words = [*shape.words, *(w for w in shape.more_words if w in names)]
    found = read(path, numbers, words)
    n = len(found)
    absent = {c: np.full(n, k.empty) for c, k in shape.more_numbers.items() if c not in names}
    absent |= {w: np.full(n, "", dtype=object) for w in shape.more_words if w not in names}
    return best, Table({**found.columns, **absent}, found.problems)


def chat_columns(names: Sequence[str]) -> list[tuple[str, str, float]]:
    """Columns of measured times in a chat log: name, figure, and the seconds in its unit.

    >>> chat_columns(["input_tokens", "TTFT_ms", "latency", "note"])
    [('TTFT_ms', 'ttft', 0.001), ('latency', 'e2e', 1.0)]
    """
    found = []
    for name in names:
        spelled = name.strip().lower().replace(" ", "_").replace("(", "").replace(")", "")
        for figure, stems in CHAT_FIGURES.items():
            for unit, scale in _UNITS.items():
                if spelled in {stem + unit for stem in stems}:
                    found.append((name, figure, scale))
    return found
